"""TrainingClient: passes, optimizer steps and checkpoints of one model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel

from . import types
from ._client import Client
from ._console import training_run_url
from ._custom_pass import run_custom_pass
from ._errors import TinkerError
from ._futures import APIFuture, AwaitableConcurrentFuture
from ._headers import sdk_method
from ._holder import Holder
from ._http import Call
from ._loss_handle import LossHandle, PerDatumLossFn
from ._passes import Pass, run_pass
from ._pools import PoolKind
from ._promise import Expected, submit
from ._queue_state import QueueStateObserver
from ._sampling import SamplingClient
from ._sampling_future import BackcompatSamplingClientFuture
from ._tokenizer import load_tokenizer
from ._turns import Turns
from ._twins import future_twin, plain_twin, value_twin
from .lib.retry_handler import RetryConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizer

M = TypeVar("M", bound=BaseModel)
_PATIENCE_SECONDS = 15 * 60.0


class TrainingClient(Client):
    """Trains one model. Made by ServiceClient; requests run in the order of the calls.

    All methods return at once with a future; several may be under way::

        step = client.forward_backward(data, "cross_entropy")
        update = client.optim_step(types.AdamParams(learning_rate=1e-4))
        print(step.result().metrics, update.result().metrics)
    """

    def __init__(
        self, holder: Holder, model_seq_id: int, model_id: types.ModelID, *, info: types.GetInfoResponse
    ) -> None:
        self.holder = holder
        self.model_id = model_id
        self._model_seq_id = model_seq_id
        self._info = info
        self._turns = Turns()
        self._observer = QueueStateObserver(f"training of {model_id}", _PATIENCE_SECONDS)

    # -- passes --------------------------------------------------------------------------------------------------
    def forward(
        self,
        data: list[types.Datum],
        loss_fn: types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Losses and logprobs without gradients. Raises ValueError for empty ``data``."""
        return self._pass("forward", data, loss_fn, loss_fn_config, forward_only=True)

    def forward_backward(
        self,
        data: list[types.Datum],
        loss_fn: types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Losses, logprobs and gradients, which add up until the next optim_step.

        Big batches are cut into several requests. Raises ValueError for empty ``data``.
        """
        return self._pass("forward_backward", data, loss_fn, loss_fn_config, forward_only=False)

    def _pass(
        self,
        method: str,
        data: list[types.Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        *,
        forward_only: bool,
    ) -> APIFuture[types.ForwardBackwardOutput]:
        plan = Pass.plan(self.holder.flags, data, loss_fn, config, forward_only=forward_only)
        turn = self._turns.reserve(len(plan.chunks))
        started = self._start(method, run_pass(self.holder, self.model_id, plan, turn, self._observer))
        started.future().add_done_callback(turn.finish_soon)
        return started

    def forward_backward_custom(
        self,
        data: list[types.Datum],
        loss_fn: PerDatumLossFn | LossHandle | Any,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """forward_backward with a loss of your own.

        ``loss_fn(data, logprobs)`` gets one torch tensor of target logprobs a datum and returns
        ``(loss, metrics)``; or it is a handle from ServiceClient.create_custom_loss. A loss that runs here costs one
        more forward pass. If it raises, this client cannot go on: requests whose places are reserved are missing.
        """
        if loss_type_input is not None:
            warnings.warn("loss_type_input is deprecated; leave it out", FutureWarning, stacklevel=2)
            if loss_type_input != "logprobs":
                raise ValueError(f"loss_type_input must be 'logprobs', got {loss_type_input!r}")
        if isinstance(loss_fn, LossHandle) and loss_fn.loss_id is not None:
            config = {"loss_id": loss_fn.loss_id}
            return self._pass("forward_backward_custom", data, "custom", config, forward_only=False)
        with sdk_method("TrainingClient.forward_backward_custom"):
            future = run_custom_pass(self.holder, self.model_id, self._turns, self._observer, data, loss_fn)
        return AwaitableConcurrentFuture(future)

    # -- optimizer -----------------------------------------------------------------------------------------------
    def optim_step(
        self, optim_params: types.OptimParams | None = None, *, adam_params: types.AdamParams | None = None
    ) -> APIFuture[types.OptimStepResponse]:
        """Update the weights with the gradients that have added up.

        Raises ValueError for both arguments and TypeError for none.
        """
        if optim_params is not None and adam_params is not None:
            raise ValueError("optim_step takes optim_params or adam_params, not both")
        params = adam_params if optim_params is None else optim_params
        if params is None:
            raise TypeError("optim_step needs optim_params, e.g. types.AdamParams(learning_rate=1e-4)")
        return self._operation(
            "optim_step",
            "optim_step",
            "OptimStep",
            types.OptimStepResponse,
            lambda seq_id: types.OptimStepRequest(optim_params=params, model_id=self.model_id, seq_id=seq_id),
        )

    # -- checkpoints ---------------------------------------------------------------------------------------------
    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[types.SaveWeightsResponse]:
        """Save weights and optimizer as ``tinker://<model_id>/weights/<name>``."""
        return self._operation(
            "save_state",
            "save_weights",
            "SaveWeights",
            types.SaveWeightsResponse,
            lambda seq_id: types.SaveWeightsRequest(
                model_id=self.model_id,
                path=name,
                seq_id=seq_id,
                ttl_seconds=ttl_seconds,
                overwrite=overwrite,
                user_metadata=user_metadata,
            ),
            retries=0,
        )

    def load_state(self, path: str, weights_access_token: str | None = None) -> APIFuture[types.LoadWeightsResponse]:
        """Deprecated: use ServiceClient.create_training_client_from_state."""
        return self._load("load_state", path, weights_access_token, optimizer=False)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[types.LoadWeightsResponse]:
        """Deprecated: use ServiceClient.create_training_client_from_state_with_optimizer."""
        return self._load("load_state_with_optimizer", path, weights_access_token, optimizer=True)

    def _load(
        self, method: str, path: str, token: str | None, *, optimizer: bool
    ) -> APIFuture[types.LoadWeightsResponse]:
        warnings.warn(
            f"TrainingClient.{method} is deprecated; create a client with "
            "ServiceClient.create_training_client_from_state[_with_optimizer]",
            FutureWarning,
            stacklevel=3,
        )
        return self._operation(
            method,
            "load_weights",
            "LoadWeights",
            types.LoadWeightsResponse,
            lambda seq_id: types.LoadWeightsRequest(
                model_id=self.model_id, seq_id=seq_id, path=path, optimizer=optimizer, weights_access_token=token
            ),
        )

    def save_weights_for_sampler(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> APIFuture[types.SaveWeightsForSamplerResponse]:
        """Save what sampling needs as ``tinker://<model_id>/sampler_weights/<name>``."""
        return self._operation(
            "save_weights_for_sampler",
            "save_weights_for_sampler",
            "SaveWeightsForSampler",
            types.SaveWeightsForSamplerResponseInternal,
            lambda seq_id: types.SaveWeightsForSamplerRequest(
                model_id=self.model_id,
                path=name,
                seq_id=seq_id,
                ttl_seconds=ttl_seconds,
                user_metadata=user_metadata,
            ),
            convert=lambda saved: types.SaveWeightsForSamplerResponse(path=_saved_path(saved)),
            retries=0,
        )

    def save_weights_external(
        self, name: str, ttl_seconds: int | None = None, age_encryption_recipients: list[str] | None = None
    ) -> APIFuture[types.SaveWeightsExternalResponse]:
        """Save downloadable weights as ``tinker://<model_id>/external_weights/<name>``."""
        return self._operation(
            "save_weights_external",
            "save_weights_external",
            "SaveWeightsExternal",
            types.SaveWeightsExternalResponseInternal,
            lambda seq_id: types.SaveWeightsExternalRequest(
                model_id=self.model_id,
                path=name,
                seq_id=seq_id,
                ttl_seconds=ttl_seconds,
                age_encryption_recipients=age_encryption_recipients,
            ),
            convert=lambda saved: types.SaveWeightsExternalResponse(path=_saved_path(saved)),
            retries=0,
        )

    # -- sampling ------------------------------------------------------------------------------------------------
    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        kind: types.SamplingClientKind = "snapshot",
    ) -> BackcompatSamplingClientFuture:
        """A client that samples from the weights as they are now (after all earlier requests).

        ``kind="inflight"``: all such clients of this model share weights that later saves replace. ``name`` has no
        effect any more.
        """
        if name is not None:
            warnings.warn("name is deprecated and has no effect; leave it out", FutureWarning, stacklevel=2)
        sampling_session_seq_id = self.holder.next_sampling_session_seq_id()
        saved = self._operation(
            "save_weights_and_get_sampling_client",
            "save_weights_for_sampler",
            "SaveWeightsForSampler",
            types.SaveWeightsForSamplerResponseInternal,
            lambda seq_id: types.SaveWeightsForSamplerRequest(
                model_id=self.model_id,
                sampling_session_seq_id=sampling_session_seq_id,
                kind=kind,
                seq_id=seq_id,
            ),
            retries=0,
        )

        async def make_client() -> SamplingClient:
            response = await saved
            if response.sampling_session_id is None:
                raise TinkerError("the server saved sampler weights without giving a sampling_session_id")
            return SamplingClient(
                self.holder,
                sampling_session_id=response.sampling_session_id,
                base_model=self._base_model(),
                retry_config=retry_config,
                record_stability_info=record_stability_info,
            )

        return BackcompatSamplingClientFuture(self._start("save_weights_and_get_sampling_client", make_client()))

    def create_sampling_client(
        self, model_path: str, retry_config: RetryConfig | None = None, record_stability_info: bool = False
    ) -> BackcompatSamplingClientFuture:
        """A client that samples from saved sampler weights."""
        with sdk_method("TrainingClient.create_sampling_client"):
            future = SamplingClient.create(
                self.holder,
                model_path=model_path,
                retry_config=retry_config,
                record_stability_info=record_stability_info,
            )
        return BackcompatSamplingClientFuture(future)

    # -- information ---------------------------------------------------------------------------------------------
    def get_info(self) -> types.GetInfoResponse:
        """What the server said about the model when this client was made."""
        return self._info

    def get_tokenizer(self) -> PreTrainedTokenizer:
        """The tokenizer of the model; needs transformers."""
        return load_tokenizer(self._base_model(), self._info.model_data.tokenizer_id)

    def get_console_url(self) -> str:
        return training_run_url(self.model_id)

    def _base_model(self) -> str:
        name = self._info.model_data.model_name or self._info.model_name
        if name is None:
            raise TinkerError(f"the server did not say which base model {self.model_id} has (get_info.model_data)")
        return name

    # -- sending -------------------------------------------------------------------------------------------------
    def _operation(
        self,
        method: str,
        path: str,
        request_type: str,
        model: type[M],
        make_request: Callable[[int], BaseModel],
        *,
        convert: Callable[[M], Any] = lambda response: response,
        retries: int | None = None,
    ) -> AwaitableConcurrentFuture[Any]:
        turn = self._turns.reserve()
        options = {} if retries is None else {"retries": retries}

        async def run() -> Any:
            async with turn:
                (seq_id,) = turn.seq_ids
                call = Call("POST", path, make_request(seq_id), **options)  # type: ignore[arg-type]
                expected: Expected[M] = Expected(request_type, model=model)
                turn.sent = True
                sending = submit(self.holder, PoolKind.TRAIN, call, expected, observer=self._observer)
                promise = await turn.complete(sending)
            return convert(await promise.result())

        started = self._start(method, run())
        started.future().add_done_callback(turn.finish_soon)
        return started

    # -- deprecated twins ----------------------------------------------------------------------------------------
    forward_async = future_twin(forward)
    forward_backward_async = future_twin(forward_backward)
    forward_backward_custom_async = future_twin(forward_backward_custom)
    optim_step_async = future_twin(optim_step)
    save_state_async = future_twin(save_state)
    load_state_async = future_twin(load_state)
    load_state_with_optimizer_async = future_twin(load_state_with_optimizer)
    save_weights_for_sampler_async = future_twin(save_weights_for_sampler)
    save_weights_external_async = future_twin(save_weights_external)
    save_weights_and_get_sampling_client_async = value_twin(save_weights_and_get_sampling_client)
    create_sampling_client_async = value_twin(create_sampling_client)
    get_info_async = plain_twin(get_info)


def _saved_path(
    response: types.SaveWeightsForSamplerResponseInternal | types.SaveWeightsExternalResponseInternal,
) -> str:
    if response.path is None:
        raise TinkerError("the server saved weights without giving their path")
    return response.path

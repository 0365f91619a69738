"""ServiceClient: the way in. Makes training and sampling clients."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from . import types
from ._client import Client
from ._console import session_url
from ._futures import APIFuture, AwaitableConcurrentFuture
from ._headers import sdk_method
from ._holder import Holder, shared_holder
from ._http import Call
from ._loss_graph import encode_graph
from ._loss_handle import LossHandle, PerDatumLossFn, declared_inputs, trace
from ._pools import PoolKind
from ._promise import Expected, submit
from ._rest import RestClient
from ._sampling import SamplingClient
from ._sampling_future import BackcompatSamplingClientFuture
from ._training import TrainingClient
from ._training_future import BackcompatTrainingClientFuture
from ._twins import value_twin
from .lib.retry_handler import RetryConfig


class ServiceClient(Client):
    """One session with a Tinker server. Making it sends nothing; the session begins with the first model or sampler.

    Args:
        user_metadata: Labels of the session.
        project_id: Project of the session (default: TINKER_PROJECT_ID).
        display_name: Name of the session in listings.
        base_url: Server (default: TINKER_BASE_URL, else the hosted service).
        api_key: Key (default: TINKER_API_KEY, TINKER_CREDENTIAL_CMD, ``~/.tinker/credentials.json``; a server on
            loopback needs none).
        default_headers_overrides: Headers that replace those of every request.

    Raises:
        TinkerError: No credential, or one of the wrong form.

    As a context manager it closes the session: ``success``, ``errored`` after an exception, ``interrupted`` after
    Ctrl-C.
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        display_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        default_headers_overrides: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            warnings.warn(
                f"ServiceClient ignores unknown arguments: {', '.join(sorted(kwargs))}", FutureWarning, stacklevel=2
            )
        self.holder = Holder(
            base_url,
            api_key,
            user_metadata=user_metadata,
            project_id=project_id,
            display_name=display_name,
            headers=default_headers_overrides,
        )

    # -- training clients ----------------------------------------------------------------------------------------
    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: types.OptimizerConfig | None = None,
    ) -> BackcompatTrainingClientFuture:
        """A new model: ``base_model`` with a fresh adapter."""
        assert any([train_mlp, train_attn, train_unembed]), (
            "at least one of train_mlp, train_attn and train_unembed must be True"
        )
        config = types.LoraConfig(
            rank=rank, seed=seed, train_unembed=train_unembed, train_mlp=train_mlp, train_attn=train_attn
        )
        model_seq_id = self.holder.next_model_seq_id()

        async def create() -> types.ModelID:
            request = types.CreateModelRequest(
                session_id=await self.holder.session(),
                model_seq_id=model_seq_id,
                base_model=base_model,
                user_metadata=user_metadata,
                lora_config=config,
                optimizer_config=optimizer or types.AdamOptimizerConfig(),
            )
            expected: Expected[types.CreateModelResponse] = Expected("CreateModel", model=types.CreateModelResponse)
            call = Call("POST", "create_model", request)
            promise = await submit(self.holder, PoolKind.TRAIN, call, expected, retry=False)
            return (await promise.result()).model_id

        return self._training_client("create_lora_training_client", model_seq_id, create)

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: types.OptimizerConfig | None = None,
    ) -> BackcompatTrainingClientFuture:
        """A new model with the weights of a checkpoint and a fresh optimizer."""
        return self._from_state(
            "create_training_client_from_state",
            with_optimizer=False,
            path=path,
            base_model=base_model,
            user_metadata=user_metadata,
            weights_access_token=weights_access_token,
            optimizer_config=optimizer,
        )

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> BackcompatTrainingClientFuture:
        """A new model that goes on exactly where a checkpoint was taken."""
        return self._from_state(
            "create_training_client_from_state_with_optimizer",
            with_optimizer=True,
            path=path,
            base_model=base_model,
            user_metadata=user_metadata,
            weights_access_token=weights_access_token,
        )

    def _from_state(self, method: str, *, with_optimizer: bool, **fields: Any) -> BackcompatTrainingClientFuture:
        model_seq_id = self.holder.next_model_seq_id()

        async def create() -> types.ModelID:
            session_id = await self.holder.session()
            request = types.LoadWeightsRequest(
                session_id=session_id, model_seq_id=model_seq_id, optimizer=with_optimizer, **fields
            )
            expected: Expected[types.LoadWeightsResponse] = Expected("LoadWeights", model=types.LoadWeightsResponse)
            promise = await submit(self.holder, PoolKind.TRAIN, Call("POST", "load_weights", request), expected)
            await promise.result()
            return f"{session_id}:train:{model_seq_id}"

        return self._training_client(method, model_seq_id, create)

    def _training_client(
        self, method: str, model_seq_id: int, create: Callable[[], Awaitable[types.ModelID]]
    ) -> BackcompatTrainingClientFuture:
        async def make() -> TrainingClient:
            model_id = await create()
            call = Call("POST", "get_info", types.GetInfoRequest(model_id=model_id))
            info = await self.holder.fetch(PoolKind.TRAIN, call, types.GetInfoResponse)
            return TrainingClient(self.holder, model_seq_id, model_id, info=_without_tokenizer_variant(info))

        return BackcompatTrainingClientFuture(self._start(method, make()))

    # -- sampling client -----------------------------------------------------------------------------------------
    def create_sampling_client(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> BackcompatSamplingClientFuture:
        """A client that samples from saved sampler weights or from a base model. ValueError if neither is given."""
        if model_path is None and base_model is None:
            raise ValueError("create_sampling_client needs model_path or base_model")
        with sdk_method("ServiceClient.create_sampling_client"):
            future = SamplingClient.create(
                self.holder,
                model_path=model_path,
                base_model=base_model,
                retry_config=retry_config,
                record_stability_info=record_stability_info,
            )
        return BackcompatSamplingClientFuture(future)

    # -- losses and weights --------------------------------------------------------------------------------------
    def create_custom_loss(
        self, fn: PerDatumLossFn, input_ranks: Mapping[str, types.CustomLossInputRank]
    ) -> APIFuture[LossHandle]:
        """Make a loss of your own from a function of one datum.

        ``fn(logprobs, ...)`` returns ``(loss, metrics)`` with metric keys ``custom/<name>:sum`` or ``:mean``; its
        other parameters are names of ``loss_fn_inputs``. It may use torch, math and operator functions only. The
        server runs it if it offers that, else it runs here. Raises ValueError for functions that do not fit.
        """
        inputs = declared_inputs(fn, input_ranks)
        graph = trace(fn)
        name = getattr(fn, "__name__", "custom_loss")
        wire_graph = encode_graph(graph)

        async def create() -> LossHandle:
            session_id = await self.holder.session()
            if not self.holder.flags.custom_loss_server_side:
                return LossHandle(name, inputs, session_id, graph)
            request = types.CreateCustomLossRequest(
                session_id=session_id,
                custom_loss_seq_id=self.holder.next_custom_loss_seq_id(),
                name=name,
                inputs=list(inputs),
                graph=wire_graph,
            )
            model = types.CreateCustomLossResponse
            expected: Expected[types.CreateCustomLossResponse] = Expected("CreateCustomLoss", model=model)
            call = Call("POST", "create_custom_loss", request)
            promise = await submit(self.holder, PoolKind.TRAIN, call, expected)
            return LossHandle(name, inputs, session_id, graph, (await promise.result()).loss_id)

        return self._start("create_custom_loss", create())

    def copy_weights(
        self, path: str, *, ttl_seconds: int | None = None, weights_access_token: str | None = None
    ) -> APIFuture[str]:
        """Copy a checkpoint into the project of this client; the path of the copy.

        Raises ValueError if this client has no project (argument project_id or TINKER_PROJECT_ID).
        """
        with sdk_method("ServiceClient.copy_weights"):
            return self._rest_client().copy_weights(
                path, self.holder.project_id, ttl_seconds=ttl_seconds, weights_access_token=weights_access_token
            )

    # -- the session ---------------------------------------------------------------------------------------------
    def close(
        self, status: Literal["success", "errored", "interrupted"], detail: str | None = None
    ) -> AwaitableConcurrentFuture[None]:
        """End the session and say how it went."""
        return self._start("close", self.holder.close(status, detail))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            ending = self.close("success")
        else:
            status: Literal["errored", "interrupted"] = "errored" if issubclass(kind, Exception) else "interrupted"
            ending = self.close(status, f"{kind.__name__}: {error}")
        ending.future().result()  # a `with` block in async code has no way to await: the short block is meant

    def get_console_url(self) -> str:
        """The page of the session; that of all sessions before it exists."""
        return session_url(self.holder.session_id or "")

    # -- deprecated ----------------------------------------------------------------------------------------------
    def get_server_capabilities(self) -> types.GetServerCapabilitiesResponse:
        """Deprecated: use RestClient.get_server_capabilities. Blocks."""
        warnings.warn(
            "ServiceClient.get_server_capabilities is deprecated; use RestClient().get_server_capabilities()",
            FutureWarning,
            stacklevel=2,
        )
        return self._rest_client().get_server_capabilities().result()

    async def get_server_capabilities_async(self) -> types.GetServerCapabilitiesResponse:
        """Deprecated: use RestClient.get_server_capabilities."""
        warnings.warn(
            "ServiceClient.get_server_capabilities_async is deprecated; use RestClient().get_server_capabilities()",
            FutureWarning,
            stacklevel=2,
        )
        return await self._rest_client().get_server_capabilities()

    def create_rest_client(self) -> RestClient:
        """Deprecated: RestClient can be made directly."""
        warnings.warn(
            "ServiceClient.create_rest_client is deprecated; use tinker.RestClient()", FutureWarning, stacklevel=2
        )
        return self._rest_client()

    def _rest_client(self) -> RestClient:
        return RestClient(shared_holder(self.holder.base_url, self.holder.api_key))

    create_lora_training_client_async = value_twin(create_lora_training_client)
    create_training_client_from_state_async = value_twin(create_training_client_from_state)
    create_training_client_from_state_with_optimizer_async = value_twin(
        create_training_client_from_state_with_optimizer
    )
    create_sampling_client_async = value_twin(create_sampling_client)


def _without_tokenizer_variant(info: types.GetInfoResponse) -> types.GetInfoResponse:
    """A server may write ``tokenizer:variant``; libraries know only the part before the colon."""
    name = (info.model_data.tokenizer_id or "").partition(":")[0] or None
    return info.model_copy(update={"model_data": info.model_data.model_copy(update={"tokenizer_id": name})})

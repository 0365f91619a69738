"""SamplingClient: completions and log probabilities from one version of weights."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from . import types
from ._client import Client
from ._errors import TinkerError
from ._futures import APIFuture, AwaitableConcurrentFuture, ConcurrentFutureShim, start
from ._holder import Holder
from ._http import Call
from ._pools import PoolKind
from ._queue_state import QueueState, QueueStateObserver
from ._sample_request import SampleOptions, run_sample
from ._session_poller import SessionPoller
from ._tokenizer import load_tokenizer
from ._twins import plain_twin, value_twin
from .lib.retry_handler import RetryConfig, RetryHandler
from .types.client_config import ClientConfigResponse

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizer

_CLONE_STRIDE = 1_000_000_000
_HANDLE_VERSION = 1


class SamplingClient(Client):
    """Samples from one version of weights. Made by ServiceClient or TrainingClient.

    Clients can be pickled into worker processes, or passed as text with :meth:`get_sampler_handle`.
    """

    def __init__(
        self,
        holder: Holder,
        *,
        sampling_session_id: str,
        base_model: str,
        shadow: bool = False,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> None:
        self.holder = holder
        self.sampling_session_id = sampling_session_id
        self._base_model = base_model
        self._shadow = shadow
        self._retry_config = retry_config
        self._record_stability_info = record_stability_info
        self._seq_ids = itertools.count()
        self._clone_id: int | None = None if shadow else 0
        self._joining: asyncio.Lock | None = None
        self._handler: RetryHandler | None = None
        self._poller: SessionPoller | None = None
        self._observer = QueueStateObserver(f"sampling from {sampling_session_id}")

    @staticmethod
    def create(
        holder: Holder,
        *,
        model_path: str | None = None,
        base_model: str | None = None,
        sampling_session_id: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> AwaitableConcurrentFuture[SamplingClient]:
        """Open a sampling session for saved weights or a base model, or join ``sampling_session_id``.

        Raises ValueError for a ``model_path`` that is no tinker path.
        """
        if model_path is not None and not model_path.startswith("tinker://"):
            raise ValueError(f"model_path must start with 'tinker://', got {model_path!r}")

        async def create() -> SamplingClient:
            session = sampling_session_id or await _open_session(holder, model_path, base_model)
            return SamplingClient(
                holder,
                sampling_session_id=session,
                base_model=base_model or await _base_model_of(holder, session),
                retry_config=retry_config,
                record_stability_info=record_stability_info,
            )

        return start(holder.observed(create()))

    # -- sampling ------------------------------------------------------------------------------------------------
    def sample(
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: types.TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> APIFuture[types.SampleResponse]:
        """Sample ``num_samples`` completions of ``prompt``.

        Args:
            prompt: What the model reads.
            num_samples: Number of completions.
            sampling_params: Length, temperature, truncation, stops, seed.
            include_prompt_logprobs: Also score the prompt.
            topk_prompt_logprobs: Likeliest tokens to report at each prompt position.
            topk_sample_logprobs: The same at each sampled position.
            target_prompt_logprobs: int64 [len(prompt) - 1, K] token ids to score at each position; -1 skips.
            prompt_alt_tokens_k: Likeliest tokens to report at each prompt position, as tensors.
            prompt_logprobs_last_n: Score only the last n prompt tokens; needs ``include_prompt_logprobs``.
        """
        options = SampleOptions(
            prompt=prompt,
            num_samples=num_samples,
            sampling_params=sampling_params,
            prompt_logprobs=include_prompt_logprobs,
            topk_prompt_logprobs=topk_prompt_logprobs,
            topk_sample_logprobs=topk_sample_logprobs,
            target_prompt_logprobs=target_prompt_logprobs,
            prompt_alt_tokens_k=prompt_alt_tokens_k,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
            record_stability_info=self._record_stability_info,
        )
        options.check()
        return self._shim("sample", self._sample(options, may_bypass_retries=True))

    def compute_logprobs(
        self, prompt: types.ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> APIFuture[list[float | None]]:
        """The log probability of each token of ``prompt``; None for the first and those that were not asked for."""
        options = SampleOptions(
            prompt=prompt,
            num_samples=1,
            sampling_params=types.SamplingParams(max_tokens=1),
            prompt_logprobs=True,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
            record_stability_info=self._record_stability_info,
        )
        options.check()

        async def run() -> list[float | None]:
            response = await self._sample(options, may_bypass_retries=False)
            if response.prompt_logprobs is None:
                raise TinkerError("the server did not send the prompt logprobs that were asked for")
            return response.prompt_logprobs

        return self._shim("compute_logprobs", run())

    def _shim(self, method: str, work: Coroutine[Any, Any, Any]) -> Any:
        return ConcurrentFutureShim(self._start(method, work).future())

    async def _sample(self, options: SampleOptions, *, may_bypass_retries: bool) -> types.SampleResponse:
        await self.holder.connect()
        if self._shadow:
            await self.holder.session()  # heartbeats
        clone_id = await self._clone()

        async def attempt() -> types.SampleResponse:
            seq_id = clone_id * _CLONE_STRIDE + next(self._seq_ids)
            return await run_sample(
                self.holder, self.sampling_session_id, seq_id, options, self._observer, self._session_poller(clone_id)
            )

        if may_bypass_retries and self.holder.flags.sample_no_retries:
            return await attempt()
        return await self._retry_handler().execute(attempt)

    def _retry_handler(self) -> RetryHandler:
        if self._handler is None:
            flags = self.holder.flags
            limit = None if flags.sample_use_retrieve_futures else flags.sample_max_concurrent_requests
            config = dataclasses.replace(self._retry_config or RetryConfig(), max_connections=limit)
            if not flags.sample_enable_stuck_detection:
                config = dataclasses.replace(config, enable_stuck_detection=False)
            self._handler = RetryHandler(config)
        return self._handler

    def _session_poller(self, clone_id: int) -> SessionPoller | None:
        if not self.holder.flags.sample_use_retrieve_futures:
            return None
        if self._poller is None:
            self._poller = SessionPoller(self.holder, self.sampling_session_id, clone_id)
        return self._poller

    async def _clone(self) -> int:
        """0 in the process that made the client; elsewhere a number of its own, to keep the sequence ids apart."""
        if self._clone_id is None:
            if self._joining is None:
                self._joining = asyncio.Lock()
            async with self._joining:
                if self._clone_id is None:
                    self._clone_id = await self._join()
        return self._clone_id

    async def _join(self) -> int:
        if not self.holder.flags.sample_join_sampling_session:
            return random.randint(1, _CLONE_STRIDE)
        body = types.JoinSamplingSessionRequest(sampling_session_id=self.sampling_session_id)
        call = Call("POST", "join_sampling_session", body)
        joined = await self.holder.fetch(PoolKind.SESSION, call, types.JoinSamplingSessionResponse)
        return joined.client_counter

    # -- information ---------------------------------------------------------------------------------------------
    def get_base_model(self) -> str:
        """The name of the base model."""
        return self._base_model

    def get_tokenizer(self) -> PreTrainedTokenizer:
        """The tokenizer of the base model; needs transformers."""
        return cast("PreTrainedTokenizer", load_tokenizer(self._base_model))

    def on_queue_state_change(self, queue_state: QueueState, queue_state_reason: str | None) -> None:
        self._observer.on_queue_state_change(queue_state, queue_state_reason)

    # -- other processes -----------------------------------------------------------------------------------------
    def get_sampler_handle(self) -> str:
        """Text from which another process can make the same client; holds no credentials."""
        text = json.dumps({"version": _HANDLE_VERSION, **self._state()}, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """The client of a handle. Raises ValueError for text that is no handle."""
        try:
            state = json.loads(base64.urlsafe_b64decode(handle.encode("ascii")))
            version = state.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                "handle is not a sampler handle; use the text of SamplingClient.get_sampler_handle"
            ) from error
        if version != _HANDLE_VERSION:
            raise ValueError(f"sampler handle has version {version!r}, this SDK reads {_HANDLE_VERSION}")
        return _shadow_client(state, api_key)

    def __reduce__(self) -> tuple[Callable[..., SamplingClient], tuple[dict[str, Any], str | None]]:
        return _shadow_client, (self._state(), self.holder.api_key)

    def _state(self) -> dict[str, Any]:
        """What a shadow needs; flags are sent along so that it makes no set-up calls."""
        retry = self._retry_config
        options = None
        if retry is not None:
            options = {f.name: getattr(retry, f.name) for f in dataclasses.fields(retry) if f.name != _UNTRANSFERRED}
        return {
            "base_url": self.holder.base_url,
            "session_id": self.holder.session_id,
            "sampling_session_id": self.sampling_session_id,
            "base_model": self._base_model,
            "flags": self.holder.flags.model_dump(mode="json"),
            "retry_config": options,
            "record_stability_info": self._record_stability_info,
        }

    # -- deprecated twins ----------------------------------------------------------------------------------------
    sample_async = value_twin(sample)
    compute_logprobs_async = value_twin(compute_logprobs)
    get_base_model_async = plain_twin(get_base_model)


_UNTRANSFERRED = "retryable_exceptions"  # classes have no place in a handle
_shadow_holders: dict[tuple[str, str | None, str | None], Holder] = {}


def _shadow_client(state: dict[str, Any], api_key: str | None) -> SamplingClient:
    """A client in another process; clients of one session share a connection there."""
    key = (state["base_url"], api_key, state["session_id"])
    if key not in _shadow_holders:
        _shadow_holders[key] = Holder(
            state["base_url"],
            api_key,
            session_id=state["session_id"],
            flags=ClientConfigResponse.model_validate(state["flags"]),
        )
    return SamplingClient(
        _shadow_holders[key],
        sampling_session_id=state["sampling_session_id"],
        base_model=state["base_model"],
        shadow=True,
        retry_config=RetryConfig(**state["retry_config"]) if state["retry_config"] else None,
        record_stability_info=state["record_stability_info"],
    )


async def _open_session(holder: Holder, model_path: str | None, base_model: str | None) -> str:
    request = types.CreateSamplingSessionRequest(
        session_id=await holder.session(),
        sampling_session_seq_id=holder.next_sampling_session_seq_id(),
        base_model=base_model,
        model_path=model_path,
    )
    call = Call("POST", "create_sampling_session", request)
    opened = await holder.fetch(PoolKind.SESSION, call, types.CreateSamplingSessionResponse, retry=False)
    return opened.sampling_session_id


async def _base_model_of(holder: Holder, sampling_session_id: str) -> str:
    call = Call("GET", f"samplers/{sampling_session_id}")
    return (await holder.fetch(PoolKind.SESSION, call, types.GetSamplerResponse)).base_model

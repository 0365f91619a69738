"""One sample: its options, its way to the server under the limits of the connection, and its result."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import types
from ._decode import decode_sample
from ._encode import input_bytes
from ._errors import BillingError, RateLimitError
from ._http import Call, parse
from ._pools import PoolKind
from ._promise import Expected, Promise, cancelled_on_server
from ._queue_state import QueueStateObserver
from ._retry import BillingPause, execute_with_retries
from .types.tensor_data import TensorDataJson

if TYPE_CHECKING:
    from ._holder import Holder
    from ._session_poller import SessionPoller

_BYTES_PER_TOKEN = 10  # as decimal text in JSON
_BIG_PROMPT_BYTES = 128 * 1024


@dataclass(frozen=True)
class SampleOptions:
    """Everything about a sample but its place in the sequence."""

    prompt: types.ModelInput
    num_samples: int
    sampling_params: types.SamplingParams
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: types.TensorData | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool = False

    def check(self) -> None:
        """Raise ValueError for options that contradict each other."""
        last_n = self.prompt_logprobs_last_n
        if last_n is None:
            return
        if not self.prompt_logprobs:
            raise ValueError("prompt_logprobs_last_n needs include_prompt_logprobs=True")
        if not 1 <= last_n <= self.prompt.length - 1:
            raise ValueError(
                f"prompt_logprobs_last_n must be from 1 to {self.prompt.length - 1} (prompt length - 1), got {last_n}"
            )

    def request(self, sampling_session_id: str, seq_id: int) -> types.SampleRequest:
        target = self.target_prompt_logprobs
        return types.SampleRequest(
            num_samples=self.num_samples,
            prompt=self.prompt,
            sampling_params=self.sampling_params,
            sampling_session_id=sampling_session_id,
            seq_id=seq_id,
            prompt_logprobs=self.prompt_logprobs,
            topk_prompt_logprobs=self.topk_prompt_logprobs,
            topk_sample_logprobs=self.topk_sample_logprobs,
            target_prompt_logprobs=None if target is None else TensorDataJson.of(target),
            prompt_alt_tokens_k=self.prompt_alt_tokens_k,
            prompt_logprobs_last_n=self.prompt_logprobs_last_n,
            record_stability_info=self.record_stability_info,
        )


async def run_sample(
    holder: Holder,
    sampling_session_id: str,
    seq_id: int,
    options: SampleOptions,
    observer: QueueStateObserver,
    poller: SessionPoller | None,
) -> types.SampleResponse:
    """Submit one sample and wait for its result.

    Raises:
        RequestFailedError: The server failed the sample.
        RuntimeError: The answer lacks something that was asked for.
    """
    future, roundtrip = await _submit(holder, options, options.request(sampling_session_id, seq_id))
    ids = future.sample_sequence_ids
    assert ids is not None and len(ids) == options.num_samples, (
        f"the promise of a sample must carry sample_sequence_ids, one a sample ({options.num_samples}), got {ids}"
    )
    expected: Expected[types.SampleResponse] = Expected("Sample", decode=lambda body: decode_sample(body, ids))
    if poller is None:
        promise = Promise(holder, future, expected, roundtrip=roundtrip, observer=observer)
        async with cancelled_on_server(holder, promise):
            response = await promise.result()
    else:
        response = await poller.result(future, expected, roundtrip, observer)
    _check_response(options, response)
    return response


async def _submit(
    holder: Holder, options: SampleOptions, request: types.SampleRequest
) -> tuple[types.UntypedAPIFuture, float]:
    """POST until the server takes the sample. A 429 makes all samples of the connection pause."""
    call = Call("POST", "asample", request, headers={"X-Tinker-Sampling-Backpressure": "1"}, retries=0)
    size = input_bytes(options.prompt, _BYTES_PER_TOKEN)
    billing = BillingPause(holder.flags.billing_exception_max_pause_duration_sec)
    while True:
        await holder.backpressure.wait()
        try:
            async with holder.sample_dispatch, holder.backpressure.caution() as factor:
                async with holder.sample_bytes.hold(size * factor):
                    started = time.monotonic()
                    response = await execute_with_retries(
                        lambda: holder.send(PoolKind.SAMPLE, call, retry=False),
                        billing_pause=0,
                        retry_rate_limits=False,
                    )
                    return parse(response, types.UntypedAPIFuture), time.monotonic() - started
        except RateLimitError:
            holder.backpressure.push_back(1.0 if size <= _BIG_PROMPT_BYTES else 5.0)
        except BillingError as error:
            await billing.wait_or_raise(error)


def _check_response(options: SampleOptions, response: types.SampleResponse) -> None:
    last_n, logprobs = options.prompt_logprobs_last_n, response.prompt_logprobs_np
    if last_n is not None and logprobs is not None and not np.isnan(logprobs[: len(logprobs) - last_n]).all():
        raise RuntimeError(f"the server scored more than the last {last_n} prompt tokens; it may be too old for this")
    if options.prompt_alt_tokens_k > 0 and response.prompt_alt_tokens is None:
        raise RuntimeError("the server did not send prompt_alt_tokens; it may be too old for this")

"""Futures of results and of clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import warnings
from typing import Any

import pytest

import tinker
from tinker import types
from tinker._futures import ConcurrentFutureShim
from tinker._loop import LOOP

PARAMS = types.SamplingParams(max_tokens=3)


async def test_results_can_be_awaited(training: Any, datum: Any) -> None:
    forward = training.forward_backward([datum()], "cross_entropy")
    step = training.optim_step(types.AdamParams())
    assert (await forward).metrics == {"loss:sum": 3.0}
    assert (await step.result_async(10)).metrics == {"grad_norm:mean": 0.3}
    assert (await asyncio.create_task(training.optim_step(types.AdamParams()).coroutine())).metrics


def test_work_starts_with_the_call(server: Any, training: Any) -> None:
    training.optim_step(types.AdamParams())
    server.wait_calls("optim_step", 1)


def test_blocking_on_the_loop_of_the_sdk_is_refused(training: Any) -> None:
    future = training.optim_step(types.AdamParams())

    async def block() -> None:
        future.result()

    with pytest.raises(RuntimeError, match="await"):
        LOOP.start(block()).result(10)


async def test_blocking_in_another_loop_is_warned_about(training: Any, caplog: Any) -> None:
    assert training.optim_step(types.AdamParams()).result(10).metrics
    assert any("await" in record.message for record in caplog.records)


def test_client_futures_are_futures_and_clients(training: Any, service: Any) -> None:
    future = service.create_lora_training_client("m")
    assert isinstance(future, tinker.APIFuture)
    assert isinstance(future, tinker.TrainingClient) and isinstance(future, tinker.BackcompatTrainingClientFuture)
    assert type(future.result(10)) is tinker.TrainingClient
    sampler = training.save_weights_and_get_sampling_client()
    assert isinstance(sampler, tinker.SamplingClient) and isinstance(sampler, tinker.BackcompatSamplingClientFuture)
    assert type(sampler.result(10)) is tinker.SamplingClient


def test_methods_and_attributes_are_forwarded_with_a_warning(service: Any, prompt: Any, datum: Any) -> None:
    future = service.create_lora_training_client("m")
    with pytest.warns(FutureWarning, match="forward_backward"):
        assert future.forward_backward([datum()], "cross_entropy").result(10).metrics
    with pytest.warns(FutureWarning, match="model_id"):
        assert future.model_id == "sess-abc:train:0"
    sampler = service.create_sampling_client(base_model="m")
    with pytest.warns(FutureWarning, match="sample"):
        assert sampler.sample(prompt, 1, PARAMS).result(10).sequences


def test_taking_the_client_out_does_not_warn(service: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = service.create_lora_training_client("m").result(10)
        client.get_info()
        client.save_weights_and_get_sampling_client().result(10).get_base_model()


async def test_twins_of_training_return_futures_and_others_return_values(
    training: Any, service: Any, server: Any, datum: Any, prompt: Any
) -> None:
    with pytest.warns(FutureWarning):
        future = await training.forward_backward_async([datum()], "cross_entropy")
    assert (await future).metrics
    with pytest.warns(FutureWarning):
        assert (await (await training.optim_step_async(types.AdamParams()))).metrics
    with pytest.warns(FutureWarning):
        sampler = await training.save_weights_and_get_sampling_client_async()
    assert type(sampler) is tinker.SamplingClient
    with pytest.warns(FutureWarning):
        assert (await sampler.sample_async(prompt, 1, PARAMS)).sequences
    with pytest.warns(FutureWarning):
        assert await sampler.get_base_model_async() == "Qwen/Qwen3-8B"
    with pytest.warns(FutureWarning):
        assert type(await service.create_lora_training_client_async("m")) is tinker.TrainingClient
    with pytest.warns(FutureWarning):
        assert (await training.get_info_async()).model_id == training.model_id
    rest = tinker.RestClient(base_url=server.url, api_key="tml-test")
    with pytest.warns(FutureWarning):
        assert (await rest.list_sessions_async()).sessions == ["sess-abc"]


def test_samples_are_concurrent_futures_too(sampling: Any, prompt: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(ConcurrentFutureShim, "_warned", False)
    future = sampling.sample(prompt, 1, PARAMS)
    assert isinstance(future, concurrent.futures.Future) and isinstance(future, tinker.APIFuture)
    future.result(10)
    with pytest.warns(FutureWarning, match="concurrent"):
        assert future.done()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # only once
        assert future.exception() is None and not future.cancelled() and not future.running()
    again = sampling.sample(prompt, 1, PARAMS)
    done, pending = concurrent.futures.wait([again], timeout=10)
    assert done == {again} and not pending
    assert len(list(concurrent.futures.as_completed([sampling.compute_logprobs(prompt)], timeout=10))) == 1


async def test_a_timeout_of_an_await_cancels_the_work(server: Any, mock: Any, training: Any) -> None:
    server.always("retrieve_future", mock.Answer(408, json={}, delay=2))
    future = training.optim_step(types.AdamParams())
    with pytest.raises(TimeoutError):
        await future.result_async(0.2)
    with pytest.raises(concurrent.futures.CancelledError):
        future.future().result(5)


def test_a_failing_client_raises_where_it_is_used(server: Any, mock: Any, service: Any) -> None:
    server.script("create_model", mock.Answer(422, json={"detail": "no such model"}))
    with pytest.raises(tinker.UnprocessableEntityError, match="no such model"):
        service.create_lora_training_client("m").result(10)


def test_a_forked_child_gets_a_loop_of_its_own(server: Any) -> None:
    import os

    client = tinker.RestClient(base_url=server.url, api_key="tml-fork")
    client.list_sessions().result(10)
    child = os.fork()
    if child == 0:
        try:
            fresh = tinker.ServiceClient(base_url=server.url, api_key="tml-child")
            ok = type(fresh.create_sampling_client(base_model="m").result(10)) is tinker.SamplingClient
            os._exit(0 if ok else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

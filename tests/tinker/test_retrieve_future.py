"""Every kind of answer of ``retrieve_future``."""

from __future__ import annotations

import time
from typing import Any

import pytest

import tinker
from tinker import types

TRY_AGAIN = {"type": "try_again", "request_id": "r", "queue_state": "active", "queue_state_reason": None}


def step(training: Any) -> Any:
    return training.optim_step(types.AdamParams()).result(20)


def polls(server: Any) -> list[Any]:
    return [c for c in server.calls("retrieve_future") if c.headers["x-tinker-request-type"] != "CreateModel"]


def iterations(server: Any) -> list[int]:
    return [int(call.headers["x-tinker-request-iteration"]) for call in polls(server)]


def test_408_means_again_at_once(server: Any, mock: Any, training: Any, waits: list[float]) -> None:
    server.script("retrieve_future", *[mock.Answer(408, json=TRY_AGAIN)] * 3)
    assert step(training).metrics == {"grad_norm:mean": 0.3}
    assert iterations(server) == [0, 1, 2, 3] and waits == []
    assert "x-tinker-create-promise-roundtrip-time" not in polls(server)[1].headers


def test_200_try_again_means_again_with_a_warning(server: Any, mock: Any, training: Any, caplog: Any) -> None:
    server.script("retrieve_future", mock.Answer(json=TRY_AGAIN))
    step(training)
    assert len(polls(server)) == 2
    assert any(record.levelname == "WARNING" for record in caplog.records)


def test_metadata_reserves_the_size_and_asks_for_the_result(server: Any, mock: Any, training: Any) -> None:
    server.script("retrieve_future", mock.Answer(json={"status": "complete_metadata", "response_payload_size": 1000}))
    step(training)
    assert [call.json["allow_metadata_only"] for call in polls(server)] == [True, False]


def test_metadata_twice_is_an_error(server: Any, mock: Any, training: Any) -> None:
    metadata = mock.Answer(json={"status": "complete_metadata", "response_payload_size": 1})
    server.script("retrieve_future", metadata, metadata)
    with pytest.raises(tinker.TinkerError, match="metadata"):
        step(training)


@pytest.mark.parametrize(
    ("body", "category"),
    [
        ({"error": "bad", "category": "user"}, types.RequestErrorCategory.User),
        ({"error": "bad", "category": "server"}, types.RequestErrorCategory.Server),
        ({"error": "bad", "category": "USER"}, types.RequestErrorCategory.Unknown),
        ({"error": "bad"}, types.RequestErrorCategory.Unknown),
        ({"error": None}, types.RequestErrorCategory.Unknown),
    ],
)
def test_an_error_is_a_failed_request(server: Any, mock: Any, training: Any, body: Any, category: Any) -> None:
    server.script("retrieve_future", mock.Answer(json=body))
    with pytest.raises(tinker.RequestFailedError) as caught:
        step(training)
    assert caught.value.category is category
    assert caught.value.request_id == polls(server)[0].json["request_id"]
    assert str(caught.value) == str(body["error"])
    assert len(polls(server)) == 1
    assert step(training).metrics  # the client goes on


def test_json_where_protobuf_is_due_is_refused(server: Any, mock: Any, training: Any, datum: Any) -> None:
    server.script("retrieve_future", mock.Answer(json={"loss_fn_outputs": []}))
    with pytest.raises(ValueError, match="JSON"):
        training.forward_backward([datum()], "cross_entropy").result(10)


def test_410_is_raised_by_training(server: Any, mock: Any, training: Any) -> None:
    from tinker.lib.retryable_exception import RetryableException

    server.script("retrieve_future", mock.Answer(410, json={"detail": "expired"}))
    with pytest.raises(RetryableException):
        step(training)


def test_410_makes_a_sample_go_out_again_with_a_new_number(
    server: Any, mock: Any, sampling: Any, prompt: Any, waits: list[float]
) -> None:
    server.script("retrieve_future", mock.Answer(410, json={"detail": "expired"}))
    assert sampling.sample(prompt, 1, types.SamplingParams()).result(10).sequences[0].tokens == [0, 1, 2]
    assert [call.json["seq_id"] for call in server.calls("asample")] == [0, 1]
    assert len(waits) == 1 and 0.375 <= waits[0] <= 0.5


@pytest.mark.parametrize("status", [500, 502, 503])
def test_5xx_means_again_without_sleep(server: Any, mock: Any, training: Any, waits: list[float], status: int) -> None:
    server.script("retrieve_future", *[mock.Answer(status)] * 15)
    step(training)
    assert len(polls(server)) == 16 and waits == []


def test_a_server_that_answers_at_once_for_ever_is_slowed_down(
    server: Any, mock: Any, training: Any, waits: list[float]
) -> None:
    server.script("retrieve_future", *[mock.Answer(408, json=TRY_AGAIN)] * 40)
    step(training)
    assert 0 < len(waits) <= 21 and set(waits) == {0.25}


def test_429_and_lost_connections_back_off(server: Any, mock: Any, training: Any, waits: list[float]) -> None:
    server.script("retrieve_future", *[mock.Answer(429)] * 4, *[mock.Answer(drop=True)] * 3)
    step(training)
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_server_that_went_away_is_told_of(
    server: Any, mock: Any, training: Any, waits: list[float], caplog: Any
) -> None:
    server.script("retrieve_future", *[mock.Answer(drop=True)] * 5)
    step(training)
    told = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert len(told) == 1 and told[0].endswith("waiting until it is back")


def test_400_is_repeated_three_times(server: Any, mock: Any, training: Any, waits: list[float]) -> None:
    bad = mock.Answer(400, json={"detail": "bad"})
    server.script("retrieve_future", bad, bad, bad)
    step(training)
    server.script("retrieve_future", bad, bad, bad, bad)
    with pytest.raises(ValueError) as caught:
        step(training)
    assert isinstance(caught.value.__cause__, tinker.BadRequestError)
    assert waits == []


def test_402_is_waited_out(server: Any, mock: Any, training: Any, waits: list[float]) -> None:
    server.script("retrieve_future", *[mock.Answer(402, json={})] * 2)
    step(training)
    assert waits == [5.0, 5.0]


@pytest.mark.parametrize("status", [401, 403, 404, 409, 422])
def test_other_refusals_are_value_errors(server: Any, mock: Any, training: Any, status: int) -> None:
    server.script("retrieve_future", mock.Answer(status, json={"detail": "no"}))
    with pytest.raises(ValueError) as caught:
        step(training)
    assert isinstance(caught.value.__cause__, tinker.APIStatusError)
    assert caught.value.__cause__.status_code == status


def test_a_result_of_the_wrong_form_is_refused(server: Any, mock: Any, training: Any) -> None:
    server.script("retrieve_future", mock.Answer(json={"metrics": 3}))
    with pytest.raises(tinker.APIResponseValidationError):
        step(training)


def test_pauses_of_sampling_are_logged_at_once(server: Any, mock: Any, sampling: Any, prompt: Any, caplog: Any) -> None:
    paused = {**TRY_AGAIN, "queue_state": "paused_capacity", "queue_state_reason": "all engines are busy"}
    server.script("retrieve_future", *[mock.Answer(408, json=paused)] * 3)
    sampling.sample(prompt, 1, types.SamplingParams()).result(10)
    assert sum("all engines are busy" in record.message for record in caplog.records) == 1  # once a minute


def test_pauses_of_training_are_logged_only_after_a_quarter_of_an_hour(
    server: Any, mock: Any, training: Any, caplog: Any
) -> None:
    paused = {**TRY_AGAIN, "queue_state": "paused_rate_limit"}
    server.script("retrieve_future", mock.Answer(408, json=paused))
    step(training)
    assert not [record for record in caplog.records if "paused" in record.message]


def test_the_wait_for_a_result_can_be_limited(server: Any, mock: Any, training: Any) -> None:
    server.script("retrieve_future", mock.Answer(json={"metrics": {}}, delay=1.0))
    future = training.optim_step(types.AdamParams())
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        future.result(0.2)
    assert time.monotonic() - started < 0.8
    assert future.result(10).metrics == {}  # the work went on

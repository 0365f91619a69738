"""Status codes: what is raised, what the HTTP client repeats, what the outer retry repeats."""

from __future__ import annotations

import email.utils
import time
from typing import Any

import pytest

import tinker
from tinker import _retry, types


@pytest.fixture
def client(server: Any) -> tinker.RestClient:
    client = tinker.RestClient(base_url=server.url, api_key="tml-test")
    client.get_server_capabilities().result(10)  # connected
    return client


def attempts(server: Any) -> int:
    return len(server.calls("samplers/s"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, tinker.BadRequestError),
        (401, tinker.AuthenticationError),
        (403, tinker.PermissionDeniedError),
        (404, tinker.NotFoundError),
        (410, tinker.APIStatusError),
        (413, tinker.APIStatusError),
        (422, tinker.UnprocessableEntityError),
    ],
)
def test_final_statuses_are_raised_after_one_try(
    server: Any, mock: Any, client: Any, waits: list[float], status: int, kind: type[Exception]
) -> None:
    server.always("samplers/s", mock.Answer(status, json={"detail": "no"}))
    with pytest.raises(kind) as caught:
        client.get_sampler("s").result(10)
    assert type(caught.value) is kind
    assert caught.value.status_code == status  # type: ignore[attr-defined]
    assert str(caught.value) == f"Error code: {status} - {{'detail': 'no'}}"
    assert attempts(server) == 1 and waits == []


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_passing_statuses_are_repeated_by_the_http_client(
    server: Any, mock: Any, client: Any, waits: list[float], status: int
) -> None:
    server.script("samplers/s", *[mock.Answer(status, json={})] * 10)
    client.get_sampler("s").result(10)
    calls = server.calls("samplers/s")
    assert [call.headers["x-stainless-retry-count"] for call in calls] == [str(n) for n in range(11)]
    expected = [0.5, 1, 2, 4, 8, 10, 10, 10, 10, 10]
    assert all(0.75 * full <= wait <= full for wait, full in zip(waits, expected, strict=True))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(408, tinker.APIStatusError), (409, tinker.ConflictError), (429, tinker.RateLimitError)]
    + [(500, tinker.InternalServerError), (503, tinker.InternalServerError)],
)
def test_the_outer_retry_goes_on_for_five_minutes(
    server: Any, mock: Any, client: Any, waits: list[float], monkeypatch: Any, status: int, kind: type[Exception]
) -> None:
    class Clock:
        @staticmethod
        def monotonic() -> float:
            return sum(waits)

    monkeypatch.setattr(_retry, "time", Clock)
    server.always("samplers/s", mock.Answer(status, json={}))
    with pytest.raises(kind):
        client.get_sampler("s").result(60)
    rounds = attempts(server) // 11
    assert attempts(server) == 11 * rounds
    between = waits[10::11]
    assert between == [1, 2, 4, 8, 16, 30][: len(between)] and len(between) == rounds - 1 >= 4
    assert sum(waits) >= 300 > sum(waits) - sum(waits[-10:]) - between[-1]


def test_the_key_is_constant_within_a_round_and_new_for_the_next(
    server: Any, mock: Any, client: Any, waits: list[float]
) -> None:
    path = "tinker://r/weights/c"
    server.script("training_runs/.*/publish", *[mock.Answer(500)] * 12)
    client.publish_checkpoint_from_tinker_path(path).result(10)
    keys = [call.headers["x-idempotency-key"] for call in server.calls(".*/publish")]
    assert len(keys) == 13 and len(set(keys[:11])) == 1 and len(set(keys[11:])) == 1 and keys[0] != keys[11]


def test_copy_weights_keeps_one_plain_key_over_all_retries(
    server: Any, mock: Any, client: Any, waits: list[float]
) -> None:
    server.script("copy_weights", *[mock.Answer(500)] * 12)
    client.copy_weights("tinker://r/weights/c", "project").result(10)
    keys = {call.headers["x-idempotency-key"] for call in server.calls("copy_weights")}
    assert len(keys) == 1 and not keys.pop().startswith("stainless")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": email.utils.formatdate(time.time() + 3600)}, None),
        ({"retry-after": "61"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "soon"}, None),
    ],
)
def test_the_server_may_say_when_to_come_back(
    server: Any, mock: Any, client: Any, waits: list[float], headers: dict[str, str], wait: float | None
) -> None:
    server.script("samplers/s", mock.Answer(503, headers=headers))
    client.get_sampler("s").result(10)
    assert len(waits) == 1
    assert waits[0] == wait if wait is not None else 0.375 <= waits[0] <= 0.5


def test_a_date_says_when_to_come_back(server: Any, mock: Any, client: Any, waits: list[float]) -> None:
    date = email.utils.formatdate(time.time() + 30)
    server.script("samplers/s", mock.Answer(503, headers={"retry-after": date}))
    client.get_sampler("s").result(10)
    assert 25 < waits[0] <= 31


def test_the_server_may_order_or_forbid_a_retry(server: Any, mock: Any, client: Any, waits: list[float]) -> None:
    server.script("samplers/s", mock.Answer(404, headers={"x-should-retry": "true"}, json={}))
    client.get_sampler("s").result(10)
    assert attempts(server) == 2
    server.script("sessions", mock.Answer(503, headers={"x-should-retry": "false"}, json={}))
    client.list_sessions().result(10)
    first, second = server.calls("sessions")  # the HTTP client obeys, the outer retry goes on
    assert first.headers["x-stainless-retry-count"] == second.headers["x-stainless-retry-count"] == "0"


def test_a_lost_connection_is_repeated(server: Any, mock: Any, client: Any, waits: list[float]) -> None:
    server.script("samplers/s", mock.Answer(drop=True), mock.Answer(drop=True))
    client.get_sampler("s").result(10)
    assert attempts(server) == 3


def test_a_server_that_does_not_answer_is_told_of_once(
    server: Any, mock: Any, client: Any, waits: list[float], caplog: Any
) -> None:
    server.script("samplers/s", *[mock.Answer(drop=True)] * 5)
    client.get_sampler("s").result(10)
    server.script("samplers/s", *[mock.Answer(drop=True)] * 5)
    client.get_sampler("s").result(10)
    told = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith(f"{server.url} does not answer (")


def test_billing_refusals_are_waited_out(server: Any, mock: Any, client: Any, waits: list[float]) -> None:
    server.script("samplers/s", *[mock.Answer(402, json={"detail": "pay"})] * 3)
    client.get_sampler("s").result(10)
    assert waits == [5.0] * 3


def test_the_billing_pause_has_an_end(server: Any, mock: Any, waits: list[float]) -> None:
    server.flags = {"billing_exception_max_pause_duration_sec": 0}
    server.always("samplers/s", mock.Answer(402, json={"detail": "pay"}))
    with pytest.raises(tinker.BillingError):
        tinker.RestClient(base_url=server.url, api_key="tml-other").get_sampler("s").result(10)


def test_a_400_without_length_is_taken_for_a_lost_connection(
    server: Any, mock: Any, client: Any, waits: list[float]
) -> None:
    server.script("samplers/s", mock.Answer(400, json={"detail": "long enough"}, chunked=True))
    client.get_sampler("s").result(10)
    first, second = server.calls("samplers/s")
    assert first.connection != second.connection
    assert waits == [1.0]  # the outer retry, not the HTTP client


def test_refusals_without_length_are_real_once_the_budget_is_spent(
    server: Any, mock: Any, client: Any, waits: list[float]
) -> None:
    server.always("samplers/s", mock.Answer(400, json={"detail": "long enough"}, chunked=True))
    with pytest.raises(tinker.BadRequestError):
        client.get_sampler("s").result(10)
    assert attempts(server) == 17


def test_creating_a_model_is_not_behind_the_outer_retry(server: Any, mock: Any, service: Any) -> None:
    server.script("create_model", mock.Answer(402, json={"detail": "pay"}))
    with pytest.raises(tinker.BillingError):
        service.create_lora_training_client("m").result(10)


def test_an_answer_of_another_form_is_refused(server: Any, mock: Any, client: Any) -> None:
    server.script("samplers/s", mock.Answer(json={"sampler_id": 1.5}))
    with pytest.raises(tinker.APIResponseValidationError, match="GetSamplerResponse"):
        client.get_sampler("s").result(10)


def test_deprecation_notes_are_logged(server: Any, mock: Any, client: Any, caplog: Any) -> None:
    headers = {"x-deprecation-note": "old", "x-deprecation-level": "error"}
    server.script("samplers/s", mock.Answer(json={"sampler_id": "s", "base_model": "m"}, headers=headers))
    client.get_sampler("s").result(10)
    assert ("tinker", 40, "old") in caplog.record_tuples


def test_a_missing_dynamic_config_gives_the_defaults(server: Any, mock: Any) -> None:
    server.always("client/dynamic_config", mock.Answer(404, json={"detail": "Not Found"}))
    client = tinker.RestClient(base_url=server.url, api_key="tml-x")
    client.get_sampler("s").result(10)
    assert client.holder.dynamic_flags.sample_cancel_max_batch_size == 64


def test_a_missing_config_is_fatal(server: Any, mock: Any) -> None:
    server.always("client/config", mock.Answer(404, json={"detail": "Not Found"}))
    with pytest.raises(tinker.NotFoundError):
        tinker.RestClient(base_url=server.url, api_key="tml-x").get_sampler("s").result(10)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_answers_are_read(server: Any, mock: Any, client: Any, encoding: str) -> None:
    import gzip
    import json

    import zstandard

    body = json.dumps({"sampler_id": "s", "base_model": "m"}).encode()
    packed = gzip.compress(body) if encoding == "gzip" else zstandard.ZstdCompressor().compress(body)
    server.script("samplers/s", mock.Answer(body=packed, headers={"content-encoding": encoding}))
    assert client.get_sampler("s").result(10).base_model == "m"


def test_redirects_are_followed(server: Any, mock: Any) -> None:
    server.script("audit", mock.Answer(302, headers={"location": f"{server.url}/api/v1/elsewhere"}))
    server.script("elsewhere", mock.Answer(json={"entries": []}))
    assert tinker.AdminClient(base_url=server.url, api_key="tml-x").get_audit_log().result(10).entries == []


def test_metadata_and_defaults_of_request_bodies(server: Any, training: Any) -> None:
    training.save_state("s").result(10)
    body = server.calls("save_weights")[0].json
    assert "ttl_seconds" not in body and body["overwrite"] is False  # None is left out, defaults are sent
    assert types.SaveWeightsRequest(model_id="m").overwrite is False

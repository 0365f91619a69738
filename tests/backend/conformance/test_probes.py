"""Our server holds every claim of the conformance suite; a server that breaks one is caught by the probe for it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from click.testing import CliRunner

from tinker_backend.conformance import Suite, Verdict, conformance, select, wire
from tinker_backend.conformance.probe import PROBES

Edit = Callable[[str, bytes], bytes]


@pytest.fixture(scope="module")
def suite(engine_backend: Any, door_keys: tuple[Path, dict[str, str]], tiny_model: Path) -> Iterator[Suite]:
    suite = Suite(engine_backend.url, door_keys[1]["alice"], deadline=60)
    yield suite
    suite.close()


@pytest.mark.parametrize("name", [probe.name for probe in select(None)])
def test_our_server_holds_the_claim(suite: Suite, name: str) -> None:
    outcome = PROBES[name].run(suite)
    assert outcome.verdict is Verdict.PASS, outcome.detail


class Liar:
    """A proxy that changes requests or answers on their way, so that the server behind it seems to be wrong."""

    def __init__(self, upstream: str) -> None:
        self.request: Edit = lambda path, body: body
        self.answer: Edit = lambda path, body: body
        self._client = httpx.AsyncClient(base_url=upstream, timeout=60)
        self._server = uvicorn.Server(
            uvicorn.Config(self._app, port=0, log_level="error", lifespan="off", interface="asgi3")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            threading.Event().wait(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = [(k, v) for k, v in scope["headers"] if k not in (b"host", b"content-length")]
        body = await asyncio.to_thread(self.request, scope["path"], body)
        url = httpx.URL(path=scope["path"], query=scope["query_string"])
        answer = await self._client.request(scope["method"], url, content=body, headers=headers)
        content = self.answer(scope["path"], answer.content)
        kind = answer.headers.get("content-type", "").encode()
        start = {"type": "http.response.start", "status": answer.status_code}
        await send({**start, "headers": [(b"content-type", kind), (b"content-length", str(len(content)).encode())]})
        await send({"type": "http.response.body", "body": content})


@pytest.fixture
def liar(engine_backend: Any) -> Iterator[Liar]:
    liar = Liar(engine_backend.url)
    yield liar
    liar.stop()


def _mean_instead_of_sum(path: str, body: bytes) -> bytes:
    """Divides the weights by their sum, as a server does that takes means."""
    if not path.endswith("forward_backward"):
        return body
    request = wire.message("ForwardBackwardRequest")
    request.ParseFromString(body)
    total = sum(np.frombuffer(datum.loss_fn_inputs["weights"].dense, "<f4").sum() for datum in request.data)
    for datum in request.data:
        tensor = datum.loss_fn_inputs["weights"]
        tensor.dense = (np.frombuffer(tensor.dense, "<f4") / max(total, 1e-6)).astype("<f4").tobytes()
    return bytes(request.SerializeToString())


def _edit_json(ending: str, change: Callable[[dict[str, Any]], Any]) -> Edit:
    def edit(path: str, body: bytes) -> bytes:
        if not path.endswith(ending):
            return body
        document = json.loads(body)
        change(document)
        return json.dumps(document).encode()

    return edit


def _no_clipping(document: dict[str, Any]) -> None:
    document["adam_params"]["grad_clip_norm"] = 0.0


def _no_optimizer(document: dict[str, Any]) -> None:
    document["optimizer"] = False


def _one_seed(document: dict[str, Any]) -> None:
    document["lora_config"]["seed"] = 0


def _no_seed(document: dict[str, Any]) -> None:
    document["sampling_params"].pop("seed", None)


def _ids_stop_nothing(document: dict[str, Any]) -> None:
    document["sampling_params"]["stop"] = []


def _no_temperature(document: dict[str, Any]) -> None:
    document["sampling_params"]["temperature"] = 1.0


def _accept_anything(document: dict[str, Any]) -> None:
    document["base_model"] = "tiny"


LIES: list[tuple[str, Edit]] = [
    ("weights-scale-the-gradient", _mean_instead_of_sum),
    ("a-batch-sums", _mean_instead_of_sum),
    ("grad-clip-norm-clips", _edit_json("optim_step", _no_clipping)),
    ("a-clipped-step-is-shorter", _edit_json("optim_step", _no_clipping)),
    ("a-resume-with-optimizer-is-exact", _edit_json("load_weights", _no_optimizer)),
    ("the-lora-seed-is-honoured", _edit_json("create_model", _one_seed)),
    ("seeds-repeat-samples", _edit_json("asample", _no_seed)),
    ("stop-ids-end-a-sample", _edit_json("asample", _ids_stop_nothing)),
    ("temperature-shows-in-the-logprobs", _edit_json("asample", _no_temperature)),
    ("an-unknown-base-model-is-refused", _edit_json("create_sampling_session", _accept_anything)),
]


@pytest.mark.parametrize(("name", "lie"), LIES, ids=[name for name, _ in LIES])
def test_a_server_that_breaks_the_claim_is_caught(
    liar: Liar, door_keys: tuple[Path, dict[str, str]], name: str, lie: Edit
) -> None:
    liar.request = lie
    suite = Suite(liar.url, door_keys[1]["alice"], deadline=60)
    try:
        outcome = PROBES[name].run(suite)
    finally:
        suite.close()
    assert outcome.verdict is Verdict.FAIL, outcome.detail
    # It is the claim that failed, not the proxy.
    assert not re.match(r"(Refused|Failed|Overdue|\w+Error|\w+Timeout):|an answer has another form", outcome.detail)


def test_an_honest_proxy_changes_no_verdict(liar: Liar, door_keys: tuple[Path, dict[str, str]]) -> None:
    suite = Suite(liar.url, door_keys[1]["alice"], deadline=60)
    try:
        for name in ("weights-scale-the-gradient", "seeds-repeat-samples"):
            assert PROBES[name].run(suite).verdict is Verdict.PASS
    finally:
        suite.close()


def _rename_metrics(path: str, body: bytes) -> bytes:
    return body.replace(b"loss:sum", b"loss-sum") if path.endswith("retrieve_future") else body


def test_a_server_with_wrong_answers_is_caught(liar: Liar, door_keys: tuple[Path, dict[str, str]]) -> None:
    liar.answer = _rename_metrics
    suite = Suite(liar.url, door_keys[1]["alice"], deadline=60)
    try:
        assert PROBES["metrics-name-their-reducer"].run(suite).verdict is Verdict.FAIL
    finally:
        suite.close()


def test_the_command_exits_by_the_verdicts(liar: Liar, door_keys: tuple[Path, dict[str, str]]) -> None:
    options = ["--base-url", liar.url, "--api-key", door_keys[1]["alice"], "--only", "metrics-name-their-reducer"]
    good = CliRunner().invoke(conformance, [*options, "--json"])
    document = json.loads(good.stdout)
    assert good.exit_code == 0 and document["counts"] == {"pass": 1, "fail": 0, "skip": 0}
    liar.answer = _rename_metrics
    bad = CliRunner().invoke(conformance, options)
    assert bad.exit_code == 1 and "loss:sum is missing" in " ".join(bad.stdout.split())


def test_the_command_says_when_there_is_nothing_to_probe() -> None:
    nobody = CliRunner().invoke(conformance, ["--base-url", "http://127.0.0.1:9", "--only", "service"])
    assert nobody.exit_code == 2 and "cannot be probed" in nobody.output
    unknown = CliRunner().invoke(conformance, ["--base-url", "http://127.0.0.1:9", "--only", "nonsense"])
    assert unknown.exit_code == 2 and "no such probe" in unknown.output


def test_every_probe_has_a_claim_of_its_own() -> None:
    claims = [probe.claim for probe in select(None)]
    assert len(claims) == len(set(claims)) > 80
    assert all(len(claim) > 20 for claim in claims)


def test_the_documentation_lists_every_probe_with_its_claim() -> None:
    text = (Path(__file__).parents[3] / "docs" / "conformance.md").read_text()
    for probe in select(None):
        assert f"| `{probe.name}` | {probe.claim} |" in text, probe.name

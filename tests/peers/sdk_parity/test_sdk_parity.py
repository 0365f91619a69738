"""Our SDK and the official one: the same names, the same requests, the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tinker import _proto

pytestmark = [pytest.mark.peers, pytest.mark.timeout(280)]

# Set by the HTTP stack or different by nature: names of machines, times, random keys.
HEADERS = [
    "accept",
    "content-type",
    "content-encoding",
    "x-api-key",
    "user-agent",
    "x-sdk-version",
    "x-sdk-method",
    "x-stainless-retry-count",
    "x-stainless-read-timeout",
    "x-stainless-package-version",
    "x-stainless-os",
    "x-stainless-arch",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-async",
    "x-stainless-raw-response",
    "x-tinker-sampling-backpressure",
    "x-tinker-request-iteration",
    "x-tinker-request-type",
    "x-tinker-weights-access-token",
]


def requests_of(server: Any) -> list[Any]:
    """What was sent, without background calls. Protobuf is compared by content: the order of maps is free."""
    found = []
    for call in server.requests:
        if call.path in ("telemetry", "session_heartbeat", "client/config", "client/dynamic_config"):
            continue  # how many connections are set up, and when, is a matter of each SDK
        body: Any = call.body
        if call.path == "forward_backward":
            body = _proto.ForwardBackwardRequest.FromString(body).SerializeToString(deterministic=True).hex()
        elif body:
            body = body.decode()  # JSON is compared to the byte
        headers = {name: call.headers[name] for name in HEADERS if name in call.headers}
        found.append([call.method, call.path, call.query, body, headers])
    return found


def test_the_surface_is_the_same(official: str, ours: str, walk: Any) -> None:
    theirs, mine = (json.loads(walk(python, "print_surface.py")[0]) for python in (official, ours))
    assert mine["all"] == theirs["all"]
    assert mine["mro"] == theirs["mro"]
    assert set(theirs["models"]) <= set(mine["models"])
    for name, fields in theirs["models"].items():
        assert mine["models"][name] == fields, name
    for name, methods in theirs["clients"].items():
        for method, signature in methods.items():
            assert method in mine["clients"][name], f"{name}.{method}"
            if not name.startswith("Backcompat"):  # those take (*args, **kwargs)
                assert mine["clients"][name][method] == signature, f"{name}.{method}"


def test_every_method_sends_and_returns_the_same(official: str, ours: str, walk: Any) -> None:
    their_output, their_server = walk(official, "walk_everything.py")
    our_output, our_server = walk(ours, "walk_everything.py")
    assert our_output.splitlines() == their_output.splitlines()
    theirs, mine = requests_of(their_server), requests_of(our_server)
    assert [call[:3] for call in mine] == [call[:3] for call in theirs]
    for our_call, their_call in zip(mine, theirs, strict=True):
        assert our_call == their_call


@pytest.mark.parametrize("parallel", [True, False])
def test_chunks_are_sent_alike(official: str, ours: str, walk: Any, parallel: bool) -> None:
    def prepare(server: Any, mock: Any) -> None:
        server.flags = {
            "fwdbwd_max_chunk_len": 2,
            "parallel_fwdbwd_chunks": parallel,
            "fwdbwd_max_chunk_bytes_count": 150,
        }

    their_output, their_server = walk(official, "walk_chunks.py", prepare)
    our_output, our_server = walk(ours, "walk_chunks.py", prepare)
    assert our_output == their_output

    def sent(server: Any) -> dict[int, int]:
        return {call.fb.seq_id: len(call.fb.data) for call in server.calls("forward_backward")}

    assert sent(our_server) == sent(their_server)
    order = [[call.fb.seq_id for call in s.calls("forward_backward")] for s in (our_server, their_server)]
    if parallel:
        chunks = len(order[0]) // 3
        for seq_ids in order:  # the first of a batch goes last
            assert [seq_ids[n * chunks + chunks - 1] for n in range(3)] == [1 + n * (chunks + 1) for n in range(3)]
    else:
        assert order[0] == order[1]


def test_our_sdk_gets_the_same_outcomes_from_our_server(
    official: str, ours: str, run_walk: Any, peer_server: Any
) -> None:
    outcomes = [
        run_walk(python, "walk_full.py", peer_server().url, "fake-model")["outcomes"] for python in (official, ours)
    ]
    theirs, mine = ({name: text.partition(":")[0] for name, text in found.items()} for found in outcomes)
    tried = {name for name, text in theirs.items() if text != "not tried"}  # what needs torch, where it has none
    assert set(mine) == set(theirs) and len(tried) > 50
    assert {name: mine[name] for name in tried} == {name: theirs[name] for name in tried}

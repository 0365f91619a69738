"""The proxy mode against a small upstream of this test."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rock.model_service.journal import read_journal
from rock.model_service.proxy import ProxyConfig, ProxyServer, parse_rules

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def proxy_upstream():
    """An upstream that answers with the statuses in ``script`` (200 once it is used up)."""
    calls, script = [], []

    class Upstream(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            calls.append((self.path, self.headers.get("authorization"), body))
            status = script.pop(0) if script else 200
            if body.get("stream") and status == 200:
                content, kind = b'data: {"n": 1}\n\ndata: [DONE]\n\n', "text/event-stream"
            else:
                content, kind = json.dumps({"n": len(calls), "status": status}).encode(), "application/json"
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", calls, script
    server.shutdown()
    server.server_close()


def connect(config):
    return httpx.AsyncClient(transport=httpx.ASGITransport(ProxyServer(config).app()), base_url="http://proxy")


async def test_busy_upstreams_are_tried_again_and_other_failures_are_passed_on(proxy_upstream):
    url, calls, script = proxy_upstream
    async with connect(ProxyConfig(base_url=url, first_backoff=0.01)) as client:
        script[:] = [429, 500]
        reply = await client.post("/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer k"})
        assert (reply.status_code, len(calls)) == (200, 3)
        assert calls[0] == ("/v1/chat/completions", "Bearer k", CHAT)
        script[:] = [403]
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 403
        script[:] = [500] * 6
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 500
        assert len(calls) == 3 + 1 + 6


async def test_rules_choose_the_upstream_by_model_and_unknown_models_are_refused(proxy_upstream):
    url, calls, _ = proxy_upstream
    async with connect(ProxyConfig(rules=parse_rules((f"m={url}",)))) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        reply = await client.post("/v1/chat/completions", json={**CHAT, "model": "z"})
        assert reply.status_code == 404 and "'z'" in reply.json()["error"]["message"]


async def test_an_upstream_that_is_not_there_is_a_bad_gateway():
    async with connect(ProxyConfig(base_url="http://127.0.0.1:9/v1", first_backoff=0.001)) as client:
        reply = await client.post("/v1/chat/completions", json=CHAT)
    assert reply.status_code == 502 and "127.0.0.1:9" in reply.json()["error"]["message"]


async def test_a_recording_replays_in_order_and_says_when_it_is_used_up(proxy_upstream, tmp_path):
    url, _, _ = proxy_upstream
    tape = tmp_path / "tape.jsonl"
    async with connect(ProxyConfig(base_url=url, recording_file=tape)) as client:
        plain = await client.post("/v1/chat/completions", json=CHAT)
        stream = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert [(call["status"], call["stream"]) for call in read_journal(tape)] == [(200, False), (200, True)]
    async with connect(ProxyConfig(replay_file=tape)) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).json() == plain.json()
        again = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert again.text == stream.text and "[DONE]" in again.text
        over = await client.post("/v1/chat/completions", json=CHAT)
        assert over.status_code == 404 and "2 calls" in over.json()["error"]["message"]


def test_settings_that_contradict_one_another_are_refused(tmp_path):
    with pytest.raises(ValueError, match="exclude one another"):
        ProxyConfig(base_url="http://x", recording_file=tmp_path / "a", replay_file=tmp_path / "b")
    with pytest.raises(ValueError, match="--proxy-base-url"):
        ProxyConfig()
    with pytest.raises(ValueError, match="MODEL=http"):
        parse_rules(("broken",))

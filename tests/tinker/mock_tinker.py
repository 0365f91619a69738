"""A scriptable Tinker server over a real socket, for the tests of the SDK.

Every request is recorded. By default it behaves like a small, well-mannered server; a test may script answers for any
path: ``server.script("optim_step", Answer(500), Answer(500))`` gives these two answers first, then the default again.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from tinker import _proto


@dataclass
class Recorded:
    method: str
    path: str  # below /api/v1, without a leading slash
    query: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]
    received_at: float
    answered_at: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def fb(self) -> Any:
        """The body as ForwardBackwardRequest."""
        return _proto.ForwardBackwardRequest.FromString(self.body)


@dataclass
class Answer:
    status: int = 200
    json: Any = None
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    chunked: bool = False  # leave Content-Length out
    drop: bool = False  # close the connection without an answer
    wait_for: threading.Event | None = None

    def encoded(self) -> tuple[bytes, dict[str, str]]:
        headers = {"content-type": "application/json"} | {k.lower(): v for k, v in self.headers.items()}
        if self.body is not None:
            return self.body, headers
        return (b"" if self.json is None else json.dumps(self.json).encode()), headers


Script = Answer | Callable[[Recorded], Answer]


def fb_output(
    rows: list[list[float]], metrics: dict[str, float] | None = None, dtype: int = _proto.DTYPE_FLOAT32
) -> bytes:
    """A ForwardBackwardOutput with one ``logprobs`` row per datum."""
    message = _proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    record = message.loss_fn_outputs.add()
    record.num_datums = len(rows)
    tensor = record.fields["logprobs"]
    offsets, data = [0], b""
    for row in rows:
        data += struct.pack(f"<{len(row)}f", *row)
        offsets.append(len(data))
    tensor.data, tensor.offsets, tensor.dtype = data, struct.pack(f"<{len(offsets)}q", *offsets), dtype
    for key, value in ({"loss:sum": 3.0} if metrics is None else metrics).items():
        message.metrics[key] = value
    return bytes(message.SerializeToString())


def sample_output(count: int, tokens: list[int], prompt_logprobs: list[float] | None = None, **fields: Any) -> bytes:
    message = _proto.SampleResponse(**fields)
    for _ in range(count):
        message.sequences.add(
            stop_reason=_proto.STOP_REASON_LENGTH,
            tokens=struct.pack(f"<{len(tokens)}i", *tokens),
            logprobs=struct.pack(f"<{len(tokens)}f", *[-0.1] * len(tokens)),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = struct.pack(f"<{len(prompt_logprobs)}f", *prompt_logprobs)
    return bytes(message.SerializeToString())


PROTO_HEADERS = {"content-type": "application/x-protobuf"}
NOW = "2026-01-01T00:00:00Z"


class MockTinker:
    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self.flags: dict[str, Any] = {}
        self.dynamic: dict[str, Any] = {}
        self.results: dict[str, Answer] = {}  # request id -> final answer
        self.created: dict[Any, str] = {}  # idempotency key -> request id
        self._scripts: dict[str, deque[Script]] = defaultdict(deque)
        self._always: dict[str, Script] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.url = ""

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        listener = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio turns Nagle off only for these
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._app, log_level="critical", interface="asgi3", lifespan="off", timeout_keep_alive=30, backlog=4096
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline, "mock server did not start"
            time.sleep(0.005)

    def stop(self) -> None:
        assert self._server and self._thread
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)

    # -- scripting -------------------------------------------------------------------------------------------------
    def script(self, path: str, *answers: Script) -> None:
        """The next answers for a path (a full match of the regular expression below /api/v1)."""
        self._scripts[path].extend(answers)

    def always(self, path: str, answer: Script) -> None:
        self._always[path] = answer

    def calls(self, path: str) -> list[Recorded]:
        return [r for r in self.requests if re.fullmatch(path, r.path)]

    def wait_calls(self, path: str, count: int, timeout: float = 5.0) -> list[Recorded]:
        deadline = time.monotonic() + timeout
        while len(self.calls(path)) < count:
            assert time.monotonic() < deadline, f"{len(self.calls(path))} calls of {path}, wanted {count}"
            time.sleep(0.005)
        return self.calls(path)

    def paths(self, *, background: bool = False) -> list[str]:
        hidden = () if background else ("telemetry", "session_heartbeat")
        return [r.path for r in self.requests if r.path not in hidden]

    # -- ASGI ------------------------------------------------------------------------------------------------------
    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        path = scope["path"].split("/api/v1/", 1)[-1]
        recorded = Recorded(
            method=scope["method"],
            path=path,
            query=scope["query_string"].decode(),
            headers={k.decode().lower(): v.decode() for k, v in scope["headers"]},
            body=body,
            connection=tuple(scope["client"]),
            received_at=time.monotonic(),
        )
        with self._lock:
            self.requests.append(recorded)
            answer = self._answer(recorded)
        if answer.wait_for is not None:
            while not answer.wait_for.is_set():
                await asyncio.sleep(0.005)
        if answer.delay:
            await asyncio.sleep(answer.delay)
        recorded.answered_at = time.monotonic()
        if answer.drop:  # an answer that never becomes complete: uvicorn closes the connection
            start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]}
            await send(start)
            return
        content, headers = answer.encoded()
        if not answer.chunked:
            headers["content-length"] = str(len(content))
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            }
        )
        if answer.chunked:
            await send({"type": "http.response.body", "body": content[:5], "more_body": True})
            content = content[5:]
        await send({"type": "http.response.body", "body": content})

    def _answer(self, request: Recorded) -> Answer:
        for pattern, queue in self._scripts.items():
            if queue and re.fullmatch(pattern, request.path):
                item = queue.popleft()
                return item(request) if callable(item) else item
        for pattern, item in self._always.items():
            if re.fullmatch(pattern, request.path):
                return item(request) if callable(item) else item
        return self._default(request)

    # -- default behaviour -----------------------------------------------------------------------------------------
    def promise(self, key: Any, result: Answer, **extra: Any) -> Answer:
        """A promise whose result is ready; the same key gives the same promise."""
        if key not in self.created:
            self._count += 1
            self.created[key] = f"req-{self._count}"
            self.results[self.created[key]] = result
        return Answer(json={"request_id": self.created[key], **extra})

    def fb_result(self, request: Recorded) -> Answer:
        rows = []
        for datum in request.fb.data:
            count = sum(len(chunk.encoded_text.tokens) // 4 for chunk in datum.model_input)
            rows.append([-0.5] * max(count, 1))
        return Answer(body=fb_output(rows), headers=PROTO_HEADERS)

    def sample_result(self, request: Recorded) -> Answer:
        body = request.json
        prompt_length = sum(len(chunk.get("tokens", [])) for chunk in body["prompt"]["chunks"])
        logprobs = [float("nan")] + [-0.25] * (prompt_length - 1) if body.get("prompt_logprobs") else None
        output = sample_output(body["num_samples"], [0, 1, 2], logprobs)
        return Answer(body=output, headers=PROTO_HEADERS)

    def _default(self, request: Recorded) -> Answer:
        path = request.path
        if path == "client/config":
            return Answer(json=self.flags)
        if path == "client/dynamic_config":
            return Answer(json=self.dynamic)
        if path == "telemetry":
            return Answer(json={"status": "accepted"})
        if path == "session_heartbeat":
            return Answer(json={"type": "session_heartbeat"})
        if path == "retrieve_future":
            request_id = request.json["request_id"]
            return self.results.get(request_id, Answer(404, json={"detail": f"no future {request_id}"}))
        if path == "forward_backward":
            message = request.fb
            return self.promise((message.model_id, message.seq_id), self.fb_result(request), model_id=message.model_id)
        if request.method == "GET" or request.method == "DELETE":
            return self._default_rest(request)
        body = request.json or {}
        if path == "create_session":
            return Answer(json={"type": "create_session", "session_id": "sess-abc"})
        if path == "create_model":
            model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
            return self.promise(("model", model_id), Answer(json={"model_id": model_id, "type": "create_model"}))
        if path == "get_info":
            info = {
                "model_id": body["model_id"],
                "model_data": {"arch": "q", "model_name": "Qwen/Qwen3-8B", "tokenizer_id": "Qwen/Qwen3-8B:foo"},
                "is_lora": True,
                "lora_rank": 32,
            }
            return Answer(json=info)
        if path == "load_weights":
            model_id = body.get("model_id") or f"{body['session_id']}:train:{body['model_seq_id']}"
            result = Answer(json={"path": body["path"], "model_id": model_id, "type": "load_weights"})
            return self.promise(("load", model_id, body.get("seq_id")), result)
        key = (path, body.get("model_id") or body.get("sampling_session_id"), body.get("seq_id"))
        if path == "optim_step":
            return self.promise(key, Answer(json={"metrics": {"grad_norm:mean": 0.3}}))
        if path in ("save_weights", "save_weights_external", "save_weights_for_sampler"):
            kind = {"save_weights": "weights", "save_weights_external": "external_weights"}.get(path, "sampler_weights")
            if body.get("path") is None:
                sampler = f"{body['model_id'].split(':')[0]}:sample:{body['sampling_session_seq_id']}"
                return self.promise(key, Answer(json={"sampling_session_id": sampler}))
            return self.promise(
                key, Answer(json={"path": f"tinker://{body['model_id']}/{kind}/{body['path']}", "type": path})
            )
        if path == "asample":
            ids = [f"seq-{index}" for index in range(body["num_samples"])]
            return self.promise(key, self.sample_result(request), sample_sequence_ids=ids)
        if path == "create_sampling_session":
            return Answer(
                json={"sampling_session_id": f"{body['session_id']}:sample:{body['sampling_session_seq_id']}"}
            )
        if path == "create_custom_loss":
            return self.promise(("loss", body["custom_loss_seq_id"]), Answer(json={"loss_id": "loss-1"}))
        if path == "weights_info":
            return Answer(json={"base_model": "Qwen/Qwen3-8B", "is_lora": True, "lora_rank": 8})
        if path == "copy_weights":
            return Answer(json={"tinker_path": "tinker://copy:train:0/weights/c"})
        if path == "join_sampling_session":
            return Answer(json={"client_counter": 7})
        if path == "sessions/search":
            return Answer(json={"sessions": []})
        return Answer(json={})

    def _default_rest(self, request: Recorded) -> Answer:
        path = request.path
        checkpoint = {
            "checkpoint_id": "weights/c1",
            "checkpoint_type": "training",
            "time": NOW,
            "tinker_path": "tinker://run:train:0/weights/c1",
            "size_bytes": 12,
        }
        run = {
            "training_run_id": "run:train:0",
            "base_model": "Qwen/Qwen3-8B",
            "model_owner": "me",
            "is_lora": True,
            "lora_rank": 8,
            "last_request_time": NOW,
            "last_checkpoint": checkpoint,
        }
        page = {"offset": 0, "limit": 20, "total_count": 1}
        if request.method == "DELETE":
            return Answer()
        if path == "get_server_capabilities":
            model = {"model_name": "Qwen/Qwen3-8B", "max_context_length": 32768, "trainable": True, "sampleable": True}
            return Answer(json={"supported_models": [model]})
        if path.startswith("samplers/"):
            return Answer(json={"sampler_id": path[9:], "base_model": "Qwen/Qwen3-8B"})
        if path.endswith("/external_weights_urls"):
            return Answer(json={"urls": {"a/b.bin": f"{self.url}/files/a"}, "expires": NOW})
        if path.endswith("/checkpoints") or path == "checkpoints":
            return Answer(json={"checkpoints": [checkpoint], "cursor": page})
        if path == "training_runs":
            return Answer(json={"training_runs": [run], "cursor": page})
        if path.startswith("training_runs/"):
            return Answer(json=run)
        if path == "sessions":
            return Answer(json={"sessions": ["sess-abc"]})
        if path.endswith("/trace_export"):
            return Answer(json={"status": "ready", "url": f"{self.url}/trace"})
        if path.startswith("sessions/"):
            return Answer(json={"training_run_ids": ["a"], "sampler_ids": []})
        if path == "audit":
            return Answer(json={"entries": [{"timestamp": NOW, "event": "e"}]})
        if path == "billing/usage/events":
            return Answer(json={"data": [], "sessions": {}})
        if path == "billing/usage/checkpoints/current":
            return Answer(json={"data": []})
        if path == "healthz":
            return Answer(json={"status": "ok"})
        return Answer(404, json={"detail": "Not Found"})

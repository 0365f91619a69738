"""A small, deterministic runtime that speaks the real ZeroMQ protocol, for tests of the server without torch.

A run is one number ``weight`` (and gradient, momentum); a forward_backward adds ``sum(weights or advantages)`` to the
gradient; an optimizer step moves the weight. Logprobs depend on tokens and weight, so that lost, doubled or
reordered work shows. Run as a program: ``fake_runtime.py --engine FILE --endpoint ENDPOINT --parent PID``; the engine
file is YAML: {delay_seconds, die_on_token, fail_start, hang_on_token}.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
import zmq
import zmq.asyncio

from tinker_backend.runtime import messages
from tinker_backend.runtime.roles import (
    CsrArray,
    LossRequest,
    LossResult,
    ModelCard,
    OptimParams,
    RunSpec,
    RuntimeFault,
    SampleRequest,
    SampleResult,
    SavedWeights,
    Sequence,
    TopK,
)

VOCAB = 1000
CONTEXT = 512


def logprob(weight: float, token: int, position: int) -> float:
    """A logprob below zero that depends on weight, token and position."""
    return -1.0 - 0.5 * np.sin(0.1 * token + 0.01 * position + weight) ** 2


class FakeRuntime:
    """State and methods; names as in the protocol."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.delay = float(options.get("delay_seconds", 0.0))
        self.runs: dict[str, dict[str, Any]] = {}
        self.samplers: dict[str, float] = {}
        self.trainer = asyncio.Lock()
        self.cancelled: set[str] = set()

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        trainer_methods = ("create", "forward_backward", "optim_step", "save", "load", "drop_run", "publish")
        handler = getattr(self, method)
        if method == "hello":
            await asyncio.sleep(self.options.get("slow_hello", 0))
        if method in trainer_methods:
            async with self.trainer:
                await asyncio.sleep(self.delay)
                return handler(**params)
        result = handler(**params)
        return await result if asyncio.iscoroutine(result) else result

    def hello(self) -> dict[str, Any]:
        if self.options.get("fail_hello"):
            raise RuntimeFault(self.options["fail_hello"], "user")
        card = ModelCard(
            "fake-model", "/nowhere", "fake", VOCAB, CONTEXT, "/nowhere", aliases=["Org/Fake"], max_lora_rank=64
        )
        other = ModelCard("other-model", "/nowhere", "fake", VOCAB, CONTEXT, "/nowhere", max_lora_rank=64)
        return {
            "version": "fake",
            "pid": os.getpid(),
            "device": "cpu",
            "dtype": "none",
            "threads": 1,
            "models": [card, other],
        }

    def status(self) -> dict[str, Any]:
        return {"runs": list(self.runs), "samplers": list(self.samplers), "memory_bytes": 0, "queues": {}}

    def ping(self) -> dict[str, Any]:
        return {}

    def create(self, run: RunSpec) -> None:
        if run.run_id in self.runs:
            raise RuntimeFault(f"run {run.run_id} exists")
        seed = float((run.lora.seed or 0) % 97) / 97
        self.runs[run.run_id] = {"weight": seed, "gradient": 0.0, "momentum": 0.0, "steps": 0, "rank": run.lora.rank}

    def _run(self, run_id: str) -> dict[str, Any]:
        if run_id not in self.runs:
            raise RuntimeFault(f"run {run_id} is not here")
        return self.runs[run_id]

    def forward_backward(self, batch: list[LossRequest]) -> list[Any]:
        return [self._one(request) for request in batch]

    def _one(self, request: LossRequest) -> Any:
        run = self._run(request.run_id)
        outputs, loss = [], 0.0
        for datum in request.data:
            if self.options.get("die_on_token") in datum.tokens.tolist():
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.options.get("fault_on_token") in datum.tokens.tolist():
                return RuntimeFault("this token is bad", "user")
            targets = datum.inputs["target_tokens"]
            dense = np.zeros(targets.shape) if isinstance(targets, CsrArray) else targets
            values = np.vectorize(lambda token: logprob(run["weight"], int(token), 0))(dense).astype(np.float32)
            outputs.append({"logprobs": values})
            scale = datum.inputs.get("weights", datum.inputs.get("advantages"))
            scale = np.ones(values.shape) if scale is None else scale
            scale = scale.values.sum() if isinstance(scale, CsrArray) else scale
            loss -= float((values * scale).sum())
            if not request.forward_only:
                run["gradient"] += float(np.sum(scale)) + 1e-3 * float(datum.tokens.sum())
        return LossResult(outputs, {"loss:sum": loss})

    def optim_step(self, run_id: str, params: OptimParams) -> dict[str, float]:
        run = self._run(run_id)
        run["momentum"] = params.beta1 * run["momentum"] + run["gradient"]
        run["weight"] -= params.learning_rate * run["momentum"]
        norm, run["gradient"] = abs(run["gradient"]), 0.0
        run["steps"] += 1
        return {"grad_norm": norm, "weight": run["weight"], "steps": float(run["steps"])}

    def save(self, run_id: str, path: str, kind: str) -> SavedWeights:
        run = self._run(run_id)
        target = Path(path)
        if target.exists():
            raise RuntimeFault(f"{path} exists")
        temporary = target.with_name(target.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        state = dict(run) if kind == "training" else {"weight": run["weight"], "rank": run["rank"]}
        (temporary / "tinker.json").write_text(json.dumps(state))
        (temporary / "adapter_model.safetensors").write_bytes(b"x" * 1000)
        temporary.rename(target)
        files = {p.name: p.stat().st_size for p in target.iterdir()}
        return SavedWeights(path, sum(files.values()), files)

    def load(self, run: RunSpec, path: str, optimizer: bool) -> None:
        state = json.loads((Path(path) / "tinker.json").read_text())
        if not optimizer:
            state |= {"momentum": 0.0, "gradient": 0.0, "steps": 0}
        self.runs[run.run_id] = state

    def drop_run(self, run_id: str) -> None:
        self.runs.pop(run_id, None)

    def publish(self, run_id: str, version: str) -> None:
        self.samplers[version] = self._run(run_id)["weight"]

    def load_sampler(self, version: str, base_model: str, path: str | None) -> None:
        self.samplers[version] = 0.0 if path is None else json.loads((Path(path) / "tinker.json").read_text())["weight"]

    def drop_sampler(self, version: str) -> None:
        self.samplers.pop(version, None)

    def cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)

    def read_weights_info(self, path: str) -> dict[str, Any]:
        return {"base_model": "fake-model", "is_lora": True}

    async def sample(self, request: SampleRequest) -> SampleResult:
        if request.sampler not in self.samplers:
            raise RuntimeFault(f"sampler {request.sampler} is not here")
        weight = self.samplers[request.sampler]
        if self.options.get("die_on_token") in request.tokens.tolist():
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.options.get("hang_on_token") in request.tokens.tolist():
            await asyncio.sleep(10_000)
        await asyncio.sleep(float(self.options.get("sample_seconds", self.delay)))
        count = 5 if request.max_tokens is None else request.max_tokens
        sequences = []
        for i in range(request.num_samples):
            text = f"{request.seed}:{i}:{request.tokens.tobytes().hex()}:{weight:.9f}"
            digest = hashlib.sha256(text.encode()).digest()
            tokens = np.array([digest[j % 32] for j in range(count)], np.int32)
            logprobs = np.array([logprob(weight, int(t), j) for j, t in enumerate(tokens)], np.float32)
            topk = _topk(weight, count, request.topk_sample_logprobs) if request.topk_sample_logprobs else None
            sequences.append(Sequence(tokens, logprobs, "length", topk))
        length = request.tokens.size
        prompt = None
        if request.prompt_logprobs:
            prompt = np.array([np.nan] + [logprob(weight, int(t), 0) for t in request.tokens[1:]], np.float32)
            if request.prompt_logprobs_last_n is not None:
                prompt[: length - request.prompt_logprobs_last_n] = np.nan
        target = request.target_prompt_logprobs
        if isinstance(target, CsrArray):
            target = CsrArray(_scores(weight, target.values), target.crow_indices, target.col_indices, target.shape)
        elif target is not None:
            target = _scores(weight, target)
        return SampleResult(
            sequences,
            prompt,
            _topk(weight, length, request.topk_prompt_logprobs) if request.topk_prompt_logprobs else None,
            target,
            _topk(weight, length - 1, request.prompt_alt_tokens_k) if request.prompt_alt_tokens_k else None,
        )


def _scores(weight: float, ids: Any) -> Any:
    return np.where(ids >= 0, -1.0 - 0.001 * ids - 0.1 * weight, 0.0).astype(np.float32)


def _topk(weight: float, rows: int, k: int) -> TopK:
    ids = np.tile(np.arange(k, dtype=np.int32), (rows, 1))
    return TopK(ids, (-1.0 - 0.1 * ids - 0.01 * weight).astype(np.float32))


async def serve(endpoint: str, runtime: FakeRuntime) -> None:
    socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(endpoint)
    tasks = set()

    async def answer(identity: bytes, call: dict[str, Any]) -> None:
        try:
            reply = {"id": call["id"], "result": await runtime.call(call["method"], call["params"])}
        except RuntimeFault as fault:
            reply = {"id": call["id"], "fault": {"message": str(fault), "category": fault.category}}
        await socket.send_multipart([identity, messages.pack(reply)])

    while True:
        identity, frame = await socket.recv_multipart()
        task = asyncio.create_task(answer(identity, messages.unpack(frame)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine")
    parser.add_argument("--endpoint")
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if arguments.parent and os.getppid() != arguments.parent:  # it died before the line above
        sys.exit("the server is gone")
    options = yaml.safe_load(Path(arguments.engine).read_text()) or {}
    if options.get("fail_start"):
        sys.exit(f"cannot start: {options['fail_start']}")
    asyncio.run(serve(arguments.endpoint, FakeRuntime(options)))


if __name__ == "__main__":
    main()

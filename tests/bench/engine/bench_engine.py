"""Measures the embedded engine through the API against plain torch, peft and transformers, turn by turn in one run.

    python tests/bench/engine/bench_engine.py --model tiny --dtype float32
    python tests/bench/engine/bench_engine.py --model SmolLM2-135M-Instruct --dtype bfloat16 --rounds 3

Prints one JSON document. ``wall`` is the best round in seconds, ``cpu`` the CPU seconds of that side in its best round;
on a machine that others use too, the CPU figure is the steadier one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TINKER_API_KEY", "tml-bench")
os.environ.setdefault("TINKER_TELEMETRY", "0")
# The plain programs get the same kind of threads as the engine: those that wait spin for a moment and then sleep.
os.environ.setdefault("GOMP_SPINCOUNT", "1500")

BATCH, LENGTH, RANK = 8, 128, 8
SAMPLES, SAMPLE_TOKENS, PROMPT_TOKENS = 64, 64, 32


class Rounds:
    """Several programs, run in turn; keeps the best wall and CPU time of each."""

    warm_up = 1
    """Rounds before the ones that count."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._programs: dict[str, tuple[Callable[[], object], Callable[[], float]]] = {}

    def add(self, name: str, program: Callable[[], object], cpu: Callable[[], float]) -> None:
        """``cpu`` reads the CPU clock of the side that does the work."""
        self._programs[name] = (program, cpu)

    def run(self) -> dict[str, dict[str, float]]:
        """Runs the rounds to warm up, then all rounds."""
        best = {name: {"wall": float("inf"), "cpu": float("inf")} for name in self._programs}
        for number in range(-self.warm_up, self._rounds):
            for name, (program, cpu) in self._programs.items():
                cpu_start, start = cpu(), time.perf_counter()
                program()
                wall, used = time.perf_counter() - start, cpu() - cpu_start
                if number >= 0:
                    best[name]["wall"] = min(best[name]["wall"], wall)
                    best[name]["cpu"] = min(best[name]["cpu"], used)
        return {name: {k: round(v, 4) for k, v in times.items()} for name, times in best.items()}


class Bench:
    """All measurements of one model."""

    def __init__(self, backend: Any, bare: Any, rounds: int) -> None:
        import tinker
        from tinker import types

        self.backend, self.bare, self.rounds = backend, bare, rounds
        self.types = types
        self.service = tinker.ServiceClient(base_url=backend.url)
        self.rng = np.random.default_rng(0)
        self.adam = types.AdamParams(learning_rate=1e-4)

    def client(self, rank: int = RANK) -> Any:
        """A new LoRA run."""
        return self.service.create_lora_training_client(base_model="bench", rank=rank).result()

    def rows(self, count: int, length: int) -> np.ndarray:
        """Random token rows (count, length + 1)."""
        return self.rng.integers(100, 4000, (count, length + 1)).astype(np.int64)

    def data(self, rows: np.ndarray) -> list[Any]:
        """Cross-entropy datums of the rows."""
        return [
            self.types.Datum(
                model_input=self.types.ModelInput.from_ints(row[:-1].tolist()),
                loss_fn_inputs={"target_tokens": row[1:], "weights": np.ones(len(row) - 1, dtype=np.float32)},
            )
            for row in rows
        ]

    def step(self, client: Any, rows: np.ndarray) -> Callable[[], None]:
        """Submits one step; the returned function waits for it."""
        futures = client.forward_backward(self.data(rows), "cross_entropy"), client.optim_step(self.adam)

        def wait() -> None:
            for future in futures:
                future.result()

        return wait

    def memory(self) -> dict[str, Any]:
        """(e) four runs that train and are sampled; must come first, as a peak stays."""
        clients = [self.client() for _ in range(4)]
        params = self.types.SamplingParams(max_tokens=8, temperature=1.0, stop=[])
        prompt = self.types.ModelInput.from_ints(self.rng.integers(100, 4000, PROMPT_TOKENS).tolist())
        for client in clients:
            start = time.perf_counter()
            self.step(client, self.rows(BATCH, LENGTH))()
            if client is clients[0]:
                first = time.perf_counter() - start
            sampler = client.save_weights_and_get_sampling_client().result()
            sampler.sample(prompt=prompt, num_samples=8, sampling_params=params).result()
        return {"first_step_seconds": round(first, 3), "peak_megabytes": round(self.backend.peak_megabytes())}

    def training(self) -> dict[str, Any]:
        """(a) one run against the bare loop on the same batches."""
        client, tokens = self.client(), BATCH * LENGTH
        rounds = Rounds(self.rounds)
        rounds.add("engine", lambda: self.step(client, self.rows(BATCH, LENGTH))(), self.backend.cpu_seconds)
        rounds.add("bare", lambda: self.bare.step(self.rows(BATCH, LENGTH)), time.process_time)
        times = rounds.run()
        return {
            "times": times,
            "engine_tokens_per_second": round(tokens / times["engine"]["wall"], 1),
            "bare_tokens_per_second": round(tokens / times["bare"]["wall"], 1),
            **_ratios(times, "engine", "bare"),
        }

    def many_runs(self) -> dict[str, Any]:
        """(b) eight runs at once: large batches against one run with all of it, small ones against one after another."""
        clients = [self.client() for _ in range(8)]

        def together(rows: int, length: int) -> None:
            waits = [self.step(c, self.rows(rows, length)) for c in clients]
            for wait in waits:
                wait()

        def in_turn(rows: int, length: int) -> None:
            for client in clients:
                self.step(client, self.rows(rows, length))()

        cpu = self.backend.cpu_seconds
        large = Rounds(max(1, self.rounds // 2))
        large.add("eight_runs", lambda: together(2, LENGTH), cpu)
        large.add("one_run_with_all", lambda: self.step(clients[0], self.rows(16, LENGTH))(), cpu)
        small = Rounds(self.rounds)
        small.add("eight_runs", lambda: together(1, 32), cpu)
        small.add("one_after_another", lambda: in_turn(1, 32), cpu)
        small.add("one_run", lambda: self.step(clients[0], self.rows(1, 32))(), cpu)
        large_times, small_times = large.run(), small.run()
        return {
            "large": {"times": large_times, **_ratios(large_times, "eight_runs", "one_run_with_all")},
            "small": {"times": small_times, **_ratios(small_times, "eight_runs", "one_after_another")},
            "step_latency_alone_and_with_8": [small_times["one_run"]["wall"], small_times["eight_runs"]["wall"]],
        }

    def sampling(self) -> dict[str, Any]:
        """(c) and (d): samples against ``generate``, one request or many, one stream; time to publish."""
        client = self.client(rank=32)
        self.step(client, self.rows(1, 16))()
        publish: dict[str, list[float]] = {"after_a_step": [], "one_after_another": []}
        for kind, times in publish.items():
            for _ in range(max(5, self.rounds)):
                if kind == "after_a_step":
                    self.step(client, self.rows(1, 16))()
                start = time.perf_counter()
                client.save_weights_and_get_sampling_client().result()
                times.append(time.perf_counter() - start)
        light = self.client()
        self.step(light, self.rows(1, 16))()
        sampler = light.save_weights_and_get_sampling_client().result()
        base = self.service.create_sampling_client(base_model="bench").result()
        params = self.types.SamplingParams(max_tokens=SAMPLE_TOKENS, temperature=1.0, stop=[])

        def prompt() -> Any:
            return self.types.ModelInput.from_ints(self.rng.integers(100, 4000, PROMPT_TOKENS).tolist())

        def one(which: Any, samples: int) -> None:
            which.sample(prompt=prompt(), num_samples=samples, sampling_params=params).result()

        def many(which: Any) -> None:
            shared = prompt()
            futures = [which.sample(prompt=shared, num_samples=1, sampling_params=params) for _ in range(SAMPLES)]
            for future in futures:
                future.result()

        def bare(samples: int) -> None:
            self.bare.generate(self.rng.integers(100, 4000, PROMPT_TOKENS), samples, SAMPLE_TOKENS)

        cpu = self.backend.cpu_seconds
        wide = Rounds(max(1, self.rounds // 2))
        wide.add("base_one_request", lambda: one(base, SAMPLES), cpu)
        wide.add("base_64_requests", lambda: many(base), cpu)
        wide.add("adapter_one_request", lambda: one(sampler, SAMPLES), cpu)
        wide.add("adapter_64_requests", lambda: many(sampler), cpu)
        wide.add("generate", lambda: bare(SAMPLES), time.process_time)
        single = Rounds(self.rounds)
        single.add("base", lambda: one(base, 1), cpu)
        single.add("adapter", lambda: one(sampler, 1), cpu)
        single.add("generate", lambda: bare(1), time.process_time)
        wide_times, single_times = wide.run(), single.run()
        total = SAMPLES * SAMPLE_TOKENS
        return {
            "publish_milliseconds": {kind: [round(1000 * t, 1) for t in times] for kind, times in publish.items()},
            "wide": {
                "times": wide_times,
                "tokens_per_second": {n: round(total / t["wall"], 1) for n, t in wide_times.items()},
                "ratios": {n: _ratios(wide_times, n, "generate") for n in wide_times if n != "generate"},
            },
            "single": {
                "times": single_times,
                "tokens_per_second": {n: round(SAMPLE_TOKENS / t["wall"], 1) for n, t in single_times.items()},
                "ratios": {n: _ratios(single_times, n, "generate") for n in ("base", "adapter")},
            },
        }

    def numerics(self) -> dict[str, Any]:
        """Logprobs of sampled tokens: sampler against trainer, on a run that has taken one step."""
        client = self.client()
        self.step(client, self.rows(2, 32))()
        sampler = client.save_weights_and_get_sampling_client().result()
        params = self.types.SamplingParams(max_tokens=SAMPLE_TOKENS, temperature=1.0, stop=[], seed=1)
        gaps = []
        for _ in range(4):
            prompt = self.rng.integers(100, 4000, PROMPT_TOKENS).tolist()
            model_input = self.types.ModelInput.from_ints(prompt)
            sampled = sampler.sample(prompt=model_input, num_samples=8, sampling_params=params).result()
            rows = np.array([[*prompt, *sequence.tokens] for sequence in sampled.sequences])
            scored = client.forward(self.data(rows), "cross_entropy").result()
            for sequence, output in zip(sampled.sequences, scored.loss_fn_outputs, strict=True):
                learner = np.array(output["logprobs"].data)[PROMPT_TOKENS - 1 :]
                gaps.append(np.array(sequence.logprobs) - learner)
        gap = np.concatenate(gaps)
        return {
            "tokens": len(gap),
            "largest_difference": float(np.abs(gap).max()),
            "mean_difference": float(np.abs(gap).mean()),
            "kl_sample_train_v1": float(gap.mean()),
            "kl_sample_train_v2": float(0.5 * (gap**2).mean()),
        }


def _ratios(times: dict[str, dict[str, float]], mine: str, other: str) -> dict[str, float]:
    """How many times faster ``mine`` is than ``other``."""
    return {f"{kind}_ratio": round(times[other][kind] / max(times[mine][kind], 1e-9), 2) for kind in ("wall", "cpu")}


def main() -> None:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="tiny", help="tiny, a folder, or SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that do not count; large models need none")
    parser.add_argument("--parts", default="memory,training,many_runs,sampling,numerics")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch
    from backend_process import Backend
    from bare import Bare

    from tinker_backend.models.location import resolve_model
    from tinker_backend.models.tiny import make_tiny_model

    torch.set_num_threads(options.threads)
    Rounds.warm_up = options.warm_up
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as work:
        if options.model == "tiny":
            sizes = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "layers": 4, "context": 2048}
            folder = make_tiny_model(Path(work) / "tiny", "qwen3", init_scale=0.02, **sizes)
        else:
            folder = resolve_model(options.model)
        backend = Backend(Path(work), folder, options.dtype, options.threads)
        try:
            bench = Bench(backend, Bare(folder, options.dtype, RANK), options.rounds)
            report: dict[str, Any] = {
                "model": options.model,
                "dtype": options.dtype,
                "threads": options.threads,
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
                "load_average": os.getloadavg(),
                "ready_seconds": round(backend.ready_seconds, 2),
            }
            for part in options.parts.split(","):
                report[part] = getattr(bench, part)()
            report["peak_megabytes_of_backend_and_runtime"] = round(backend.peak_megabytes())
            report["load_average_after"] = os.getloadavg()
        finally:
            backend.close()
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

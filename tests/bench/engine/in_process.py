"""CPU seconds of the engine's work without a server: the steadiest figures on a machine that others use too.

    python tests/bench/engine/in_process.py MODEL_FOLDER float32 [train small wide adapter_wide one adapter_one]

Prints the best wall and CPU milliseconds of each over a few rounds. ``THREADS`` (2) in the environment.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tinker_backend.runtime.base_model import load_base_model
from tinker_backend.runtime.hardware import keep_freed_memory, use_fast_float32
from tinker_backend.runtime.roles import Datum, LoraSpec, LossRequest, OptimParams, RunSpec, SampleRequest
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer

ROUNDS = 4


class Work:
    """Eight runs of rank 8, the base and one adapter to sample from."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        base = load_base_model(folder, "m", [], dtype, torch.device("cpu"), 2048, 128)
        self.trainer = TorchTrainer({"m": base}, 2048, False)
        self.sampler = TorchSampler({"m": base}, 65536, 64)
        for _ in self.sampler.prepare():
            pass
        self.rng = np.random.default_rng(0)
        self.requests = 0
        for number in range(8):
            self.trainer.create(RunSpec(f"r{number}", "m", LoraSpec(rank=8, seed=number)))
        self.train(["r1"], 1, 16)
        self.sampler.load("base", "m", None)
        self.sampler.publish(self.trainer.run("r1"), "adapter")

    def train(self, runs: list[str], rows: int, length: int) -> None:
        """One step of each run in one pass."""

        def datum() -> Datum:
            tokens = self.rng.integers(100, 4000, length + 1)
            inputs = {"target_tokens": tokens[1:].astype(np.int64), "weights": np.ones(length, np.float32)}
            return Datum(tokens[:-1].astype(np.int32), inputs)

        batch = [LossRequest(run, 1, [datum() for _ in range(rows)], "cross_entropy") for run in runs]
        for result in self.trainer.forward_backward(batch):
            if isinstance(result, Exception):
                raise result
        for run in runs:
            self.trainer.optim_step(run, OptimParams())

    def sample(self, version: str, samples: int) -> None:
        """64 tokens for each sample from a prompt of 32."""
        self.requests += 1
        prompt = self.rng.integers(100, 4000, 32).astype(np.int32)
        name, seed = f"q{self.requests}", self.requests
        request = SampleRequest(name, version, prompt, samples, max_tokens=64, seed=seed, stop_token_ids=[])
        future = self.sampler.sample(request)
        while not self.sampler.idle:
            self.sampler.step()
        future.result()


def main() -> None:
    """Command line."""
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    use_fast_float32()
    keep_freed_memory()
    work = Work(Path(sys.argv[1]), getattr(torch, sys.argv[2]))
    programs: dict[str, Callable[[], None]] = {
        "train": lambda: work.train(["r0"], 8, 128),
        "small": lambda: work.train([f"r{number}" for number in range(8)], 1, 32),
        "wide": lambda: work.sample("base", 64),
        "adapter_wide": lambda: work.sample("adapter", 64),
        "one": lambda: work.sample("base", 1),
        "adapter_one": lambda: work.sample("adapter", 1),
    }
    for name in sys.argv[3:] or programs:
        wall, cpu = [], []
        for _ in range(ROUNDS):
            start, used = time.perf_counter(), time.process_time()
            programs[name]()
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - used)
        print(f"{name:13s} wall {1000 * min(wall):8.1f} ms  cpu {1000 * min(cpu):8.1f} ms", flush=True)


if __name__ == "__main__":
    main()

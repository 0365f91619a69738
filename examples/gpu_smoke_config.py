"""Writes engine.yaml and runtime.yaml of the GPU smoke test. See gpu_smoke.sh."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml


def engine(model: str, gpus: int, width: int = 1) -> dict[str, Any]:
    """engine.yaml for a number of GPUs, ``width`` of them a replica; 0 is the CPU with two ranks and one replica."""
    train: dict[str, Any] = {"strategy_name": "fsdp2_train", "strategy_config": {}}
    sample: dict[str, Any] = {"strategy_name": "vllm", "strategy_config": {"enforce_eager": gpus == 0}}
    content: dict[str, Any] = {
        "pretrain": model,
        "model_name": "smoke",
        "device": "cuda" if gpus else "cpu",
        "sequence_length": 4096 if gpus else 256,
        "actor_train": {"strategy_args": train, "model_args": {"max_lora_rank": 32}},
        "actor_infer": {"strategy_args": sample},
    }
    if gpus == 1:
        train["strategy_name"] = "torch"
        sample["strategy_config"]["gpu_memory_utilization"] = 0.5
        content["actor_train"]["device_mapping"] = content["actor_infer"]["device_mapping"] = [0]
        return content
    # All weights go straight from the ranks to the replicas: over NCCL, or over gloo on the CPU.
    sample["strategy_config"]["weight_transfer"] = "broadcast"
    if gpus:
        half = gpus // 2
        content["actor_train"]["device_mapping"] = list(range(half))
        content["actor_infer"]["device_mapping"] = list(range(half, gpus))
        content["actor_infer"]["num_gpus_per_worker"] = width
    else:
        train["strategy_config"]["dtype"] = "float32"
        content["threads"] = 1
        content["actor_train"]["device_mapping"], content["actor_infer"]["device_mapping"] = [0, 1], [2]
        content["cluster"] = {"cpus": 3, "object_store_bytes": 100 * 1024 * 1024}
    return content


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    (given.folder / "engine.yaml").write_text(
        yaml.safe_dump(engine(given.model, given.gpus, given.width), sort_keys=False)
    )
    runtime = {"backend": {"port": 0}, "runtime": {"engine": "engine.yaml", "start_timeout_seconds": 1800}}
    (given.folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))


if __name__ == "__main__":
    main()

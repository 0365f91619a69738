"""Prints the tables of ``docs/scaling.md``: ``python -m tinker_backend.scaling``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tinker_backend.scaling.estimate import (
    GIB,
    SampleKnobs,
    TrainKnobs,
    sample_memory,
    tokens_to_hide_gather,
    traffic,
    train_memory,
)
from tinker_backend.scaling.model_shape import PRESETS, ModelShape, read_shape

_RANKS = (8, 64, 512)
_PARALLEL = {"4B": (1, 2), "32B": (2, 4), "235B-A22B": (8, 16)}


def train_table(shape: ModelShape, gpu_gib: float, tokens: int) -> list[str]:
    """Memory of a training rank for adapters and for all weights."""
    rows = [
        "| GPUs | training | weights | gathered | gradients + moments | adapters | activations | total GiB | fits |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for ranks in _RANKS:
        for rank in (32, 0):
            m = train_memory(shape, TrainKnobs(ranks, rank, tokens=tokens))
            kind = f"LoRA {rank}" if rank else "all weights"
            parts = (m.base, m.gathered, m.gradients + m.optimizer, m.adapters, m.activations + m.logits)
            cells = " | ".join(f"{part / GIB:.2f}" for part in parts)
            fits = "yes" if m.fits(gpu_gib * GIB) else "no"
            rows.append(f"| {ranks} | {kind} | {cells} | {m.gpu / GIB:.1f} | {fits} |")
    return rows


def sample_table(shape: ModelShape, gpu_gib: float) -> list[str]:
    """Memory of a sampling GPU by tensor parallelism."""
    rows = ["| GPUs a replica | weights GiB | adapters GiB | cache tokens a replica |", "|---|---|---|---|"]
    for parallel in _PARALLEL.get(shape.name, (1, 2, 4, 8)):
        m = sample_memory(shape, SampleKnobs(parallel), gpu_gib * GIB)
        rows.append(f"| {parallel} | {m.weights / GIB:.1f} | {m.adapters / GIB:.2f} | {m.cache_tokens:,} |")
    return rows


def traffic_table(shape: ModelShape, network: float, flops: float, tokens: int) -> list[str]:
    """Traffic of a micro-batch and of a publication."""
    rows = [
        "| GPUs | training | gather GB | reduce GB | publish GB | publish s | tokens a rank that hide the gather |",
        "|---|---|---|---|---|---|---|",
    ]
    for ranks in _RANKS:
        for rank in (32, 0):
            knobs = TrainKnobs(ranks, rank, tokens=tokens)
            t = traffic(shape, knobs)
            hide = tokens_to_hide_gather(shape, knobs, flops, network)
            kind = f"LoRA {rank}" if rank else "all weights"
            rows.append(
                f"| {ranks} | {kind} | {t.gather / 1e9:.1f} | {t.reduce / 1e9:.2f} | {t.publish / 1e9:.2f} | "
                f"{t.publish / network:.2f} | {hide:,} |"
            )
    return rows


def report(shapes: list[ModelShape], gpu_gib: float, network: float, flops: float, tokens: int) -> str:
    """All tables in Markdown."""
    text = []
    for shape in shapes:
        text += [f"### {shape.name}: {shape.parameters / 1e9:.1f} B parameters, {shape.active / 1e9:.1f} B active", ""]
        text += [*train_table(shape, gpu_gib, tokens), "", *sample_table(shape, gpu_gib), ""]
        text += [*traffic_table(shape, network, flops, tokens), ""]
    return "\n".join(text)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="tinker_backend.scaling", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder instead of the three presets")
    parser.add_argument("--gpu-gib", type=float, default=80, help="memory of a GPU in GiB")
    parser.add_argument("--network", type=float, default=50e9, help="bytes a second that a GPU receives")
    parser.add_argument("--flops", type=float, default=400e12, help="floating-point operations a second reached")
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of a micro-batch on one rank")
    given = parser.parse_args()
    shapes = [read_shape(given.model)] if given.model else list(PRESETS.values())
    print(report(shapes, given.gpu_gib, given.network, given.flops, given.tokens))


if __name__ == "__main__":
    main()

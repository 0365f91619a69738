"""Client of the GPU smoke test: trains, publishes, samples, compares, and prints a Markdown table. See gpu_smoke.sh."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import tinker
from tinker import types

PARITY = 0.05
"""Largest mean difference of sampler's and trainer's logprobs that is no sign of a bug."""


def datum(tokens: list[int]) -> Any:
    """A next-token datum."""
    size = len(tokens) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[size]),
            "weights": types.TensorData(data=[1.0] * size, dtype="float32", shape=[size]),
        },
    )


def round_trip(service: Any, rank: int, length: int, batch: int, samples: int) -> dict[str, float]:
    """One run: four steps, publication, samples, and the difference of logprobs."""
    training = service.create_lora_training_client(base_model="smoke", rank=rank, seed=1).result()
    data = [datum([(31 * i + 7 * j) % 480 + 5 for j in range(length)]) for i in range(batch)]
    rate = types.AdamParams(learning_rate=1e-3 if rank else 1e-5)
    losses, started = [], 0.0
    for step in range(4):
        if step == 1:
            started = time.monotonic()  # the first step warms kernels up
        forward = training.forward_backward(data, "cross_entropy")
        training.optim_step(rate).result()
        losses.append(forward.result().metrics["loss:sum"])
    train_seconds = time.monotonic() - started
    if not losses[-1] < losses[0]:
        raise SystemExit(f"FAIL: the loss does not fall with rank {rank}: {losses}")
    started = time.monotonic()
    sampler = training.save_weights_and_get_sampling_client().result()
    prompt = list(range(10, 26))
    params = types.SamplingParams(max_tokens=length // 2, temperature=1.0, seed=5, stop=[])
    first = sampler.sample(types.ModelInput.from_ints(prompt), 1, types.SamplingParams(max_tokens=1, stop=[])).result()
    publish_seconds = time.monotonic() - started
    assert len(first.sequences[0].tokens) == 1
    started = time.monotonic()
    result = sampler.sample(types.ModelInput.from_ints(prompt), samples, params).result()
    sample_seconds = time.monotonic() - started
    generated = sum(len(sequence.tokens) for sequence in result.sequences)
    gaps = []
    for sequence in result.sequences[:4]:
        whole = [*prompt, *sequence.tokens]
        scored = training.forward([datum(whole)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
        theirs = list(scored)[-len(sequence.tokens) :]
        gaps += [abs(a - b) for a, b in zip(sequence.logprobs, theirs, strict=True)]
    return {
        "train": 3 * batch * length / train_seconds,
        "publish": publish_seconds,
        "sample": generated / sample_seconds,
        "mean": sum(gaps) / len(gaps),
        "max": max(gaps),
    }


def main() -> None:
    """Command line; exits with 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--samples", type=int, default=16)
    given = parser.parse_args()
    service = tinker.ServiceClient(base_url=given.url, api_key="tml-smoke")
    print("| weights | train tokens/s | publish + first token s | sample tokens/s | mean gap | max gap |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for name, rank in (("LoRA 32", 32), ("all", 0)):
        row = round_trip(service, rank, given.length, given.batch, given.samples)
        worst = max(worst, row["mean"])
        cells = (
            f"{row['train']:.0f} | {row['publish']:.2f} | {row['sample']:.0f} | {row['mean']:.1e} | {row['max']:.1e}"
        )
        print(f"| {name} | {cells} |", flush=True)
    if worst > PARITY:
        print(f"FAIL: sampler and trainer differ by {worst:.3f} in the mean", file=sys.stderr)
        raise SystemExit(1)
    print("\nPASS: trained, published and sampled; sampler and trainer agree")


if __name__ == "__main__":
    main()

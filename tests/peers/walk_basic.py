"""Runs inside the environment of an official SDK: the whole basic flow. Prints one JSON line at its end.

Arguments: base URL of the server, base model. Differences between SDK releases are bridged here, nowhere else.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("TINKER_API_KEY", "tml-test")
os.environ["TINKER_BASE_URL"] = sys.argv[1]

import tinker
from tinker import types

BASE_MODEL = sys.argv[2]


def done(value: Any) -> Any:
    """The result of a future; old releases return some results at once."""
    return value.result() if hasattr(value, "result") and callable(value.result) else value


def datum(tokens: list[int], **extra: Any) -> Any:
    inputs: dict[str, Any] = {
        "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1]),
    }
    if not extra:
        extra = {"weights": [1.0] * (len(tokens) - 1)}
    for name, values in extra.items():
        inputs[name] = types.TensorData(data=values, dtype="float32", shape=[len(values)])
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def main() -> None:
    service = tinker.ServiceClient()
    capabilities = done(service.get_server_capabilities())
    assert BASE_MODEL in [m.model_name for m in capabilities.supported_models]
    training = done(service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=3))
    assert training.get_info().model_data.model_name == BASE_MODEL

    data = [datum([1, 2, 3, 4, 5]), datum([7, 8, 9])]
    # Pipelined, as every recipe does it.
    losses = []
    for _ in range(3):
        forward_backward = training.forward_backward(data, "cross_entropy")
        optim = training.optim_step(types.AdamParams(learning_rate=1e-3))
        output = done(forward_backward)
        losses.append(output.metrics["loss:sum"])
        assert len(output.loss_fn_outputs) == 2
        assert len(output.loss_fn_outputs[0]["logprobs"].data) == 4
        done(optim)
    forward = done(training.forward(data, "cross_entropy"))
    scored = [list(o["logprobs"].data) for o in forward.loss_fn_outputs]

    ppo = [datum([1, 2, 3, 4, 5], logprobs=scored[0], advantages=[1.0, -1.0, 0.5, 0.0])]
    for name in ("importance_sampling", "ppo"):
        assert "loss:sum" in done(training.forward_backward(ppo, name)).metrics
    done(training.optim_step(types.AdamParams(learning_rate=1e-3)))

    state = done(training.save_state("walk"))
    assert state.path.endswith("/weights/walk"), state.path
    resumed = done(service.create_training_client_from_state(state.path))
    again = done(resumed.forward(data, "cross_entropy"))
    before = done(training.forward(data, "cross_entropy"))
    assert again.metrics["loss:sum"] == before.metrics["loss:sum"]

    sampler = done(training.save_weights_and_get_sampling_client("walk"))
    prompt = types.ModelInput.from_ints([1, 2, 3])
    params = types.SamplingParams(max_tokens=6, seed=5, temperature=1.0)
    sample = done(sampler.sample(prompt=prompt, num_samples=2, sampling_params=params))
    assert len(sample.sequences) == 2
    assert all(len(s.tokens) == len(s.logprobs) > 0 for s in sample.sequences)
    logprobs = done(sampler.compute_logprobs(prompt))
    assert logprobs[0] is None and len(logprobs) == 3

    named = done(training.save_weights_for_sampler("named"))
    assert named.path.endswith("/sampler_weights/named"), named.path
    from_path = done(service.create_sampling_client(model_path=named.path))
    same = done(from_path.sample(prompt=prompt, num_samples=2, sampling_params=params))
    assert [s.tokens for s in same.sequences] == [s.tokens for s in sample.sequences]
    base = done(service.create_sampling_client(base_model=BASE_MODEL))
    assert len(done(base.compute_logprobs(prompt))) == 3

    rest = service.create_rest_client()
    listed = done(rest.list_checkpoints(training.model_id))
    kinds = sorted(c.checkpoint_type for c in listed.checkpoints)
    assert kinds == ["sampler", "training"], kinds
    run = done(rest.get_training_run(training.model_id))
    assert run.base_model == BASE_MODEL
    done(rest.delete_checkpoint(training.model_id, "weights/walk"))
    assert len(done(rest.list_checkpoints(training.model_id)).checkpoints) == 1
    print(json.dumps({"version": getattr(tinker, "__version__", "?"), "losses": losses}))


if __name__ == "__main__":
    main()

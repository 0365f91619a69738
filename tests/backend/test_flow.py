"""The basic flow over real sockets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinker_backend.wire import schema


def test_a_run_trains_saves_loads_and_samples(wire: Any) -> None:
    session = wire.session()
    model = wire.model(session)
    info = wire.post("get_info", model_id=model)
    assert info["model_data"]["model_name"] == "fake-model" and info["lora_rank"] == 8

    promise = wire.forward_backward(model, 1)
    output = schema.ForwardBackwardOutput()
    output.ParseFromString(wire.result(promise, accept="application/x-protobuf"))
    assert output.metrics["loss:sum"] > 0
    logprobs = np.frombuffer(output.loss_fn_outputs[0].fields["logprobs"].data, "<f4")
    assert logprobs.shape == (3,) and (logprobs < 0).all()

    first = wire.result(wire.optim_step(model, 2))
    assert first["metrics"]["steps"] == 1
    saved = wire.result(wire.post("save_weights", model_id=model, seq_id=3, path="one"))
    assert saved["path"] == f"tinker://{model}/weights/one"

    copy = wire.result(
        wire.post("load_weights", session_id=session, model_seq_id=1, path=saved["path"], optimizer=True)
    )
    assert copy["model_id"] == f"{session}:train:1"
    for run, seq in ((model, 4), (copy["model_id"], 1)):
        wire.forward_backward(run, seq)
    a, b = wire.result(wire.optim_step(model, 5)), wire.result(wire.optim_step(copy["model_id"], 2))
    assert a["metrics"] == b["metrics"]

    sampler = wire.result(
        wire.post("save_weights_for_sampler", model_id=model, seq_id=6, sampling_session_seq_id=0, kind="snapshot")
    )["sampling_session_id"]
    body = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "num_samples": 2,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
    }
    promise = wire.post("asample", **body, sampling_params={"max_tokens": 4, "seed": 1}, prompt_logprobs=True)
    assert len(promise["sample_sequence_ids"]) == 2
    result = wire.result(promise)
    assert [len(s["tokens"]) for s in result["sequences"]] == [4, 4]
    assert result["prompt_logprobs"][0] is None and len(result["prompt_logprobs"]) == 3
    again = wire.post("asample", **body, sampling_params={"max_tokens": 4, "seed": 1}, prompt_logprobs=True)
    assert again == promise

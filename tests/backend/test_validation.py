"""Bad requests are refused at the door with a sentence that names the field, and harm nobody else."""

from __future__ import annotations

from typing import Any

import pytest

BAD_LOSSES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown loss": ({"loss_fn": "cross_entropi"}, ["cross_entropi", "did you mean 'cross_entropy'"]),
    "stable_reinforce": (
        {"loss_fn": "stable_reinforce"},
        ["no published formula", "importance_sampling, ppo, cispo or gspo", "losses.stable_reinforce"],
    ),
    "unknown config key": ({"loss_fn": "ppo", "config": {"clip_low": 0.8}, **{}}, ["clip_low", "clip_low_threshold"]),
    "thresholds crossed": ({"loss_fn": "ppo", "config": {"clip_low_threshold": 2.0}}, ["above"]),
    "ppo without logprobs": ({"loss_fn": "ppo", "advantages": [1.0] * 3, "weights": None}, ["lacks 'logprobs'"]),
    "ppo with weights": (
        {"loss_fn": "ppo", "advantages": [1.0] * 3, "logprobs": [-1.0] * 3},
        ["'weights'", "does not take"],
    ),
    "short weights": ({"weights": [1.0, 1.0]}, ["weights", "[2]", "(3,)"]),
    "weights as integers": ({"weights": [1, 1, 1]}, ["weights", "float32"]),
    "targets as floats": ({"target_tokens": [1.0, 2.0, 3.0]}, ["target_tokens", "int64"]),
    "NaN weights": ({"weights": [1.0, float("nan"), 1.0]}, ["NaN"]),
    "target outside the vocabulary": ({"target_tokens": [1, 2, 1000]}, ["1000", "0..999"]),
    "negative target": ({"target_tokens": [1, 2, -100]}, ["-100"]),
    "token outside the vocabulary": ({"tokens": [1, 2, 1000], "target_tokens": [1, 2, 3]}, ["model_input", "1000"]),
    "too long": ({"tokens": [1] * 513}, ["513", "512"]),
    "unknown input": ({"mask": [1.0, 1.0, 1.0]}, ["'mask'"]),
    "targets of three dimensions": ({"target_tokens": [[[1]], [[2]], [[3]]], "weights": None}, ["shape"]),
    "weights of another shape": ({"target_tokens": [[1, 2]] * 3, "weights": [1.0] * 3}, ["agree"]),
    "custom without an upload": ({"loss_fn": "custom"}, ["loss_id"]),
}


BAD_GRAPHS: dict[str, tuple[dict[str, Any], str]] = {
    "code": (
        {"op": "call_function", "target": "builtins.eval", "name": "a"},
        "function 'builtins.eval' is not allowed",
    ),
    "a file": ({"op": "call_function", "target": "torch.load", "name": "a"}, "function 'torch.load' is not allowed"),
    "a hook": ({"op": "call_method", "target": "register_hook", "name": "a"}, "method 'register_hook' is not allowed"),
    "a module": ({"op": "call_module", "target": "layer", "name": "a"}, "op 'call_module'"),
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_a_loss_that_names_anything_but_mathematics_is_refused_at_its_upload(wire: Any, case: str) -> None:
    node, words = BAD_GRAPHS[case]
    upload = {"name": "loss", "inputs": [{"name": "logprobs", "rank": 1}], "graph": {"format": 1, "nodes": [node]}}
    refusal = wire.post("create_custom_loss", _status=400, session_id=wire.session(), custom_loss_seq_id=0, **upload)
    assert words in refusal["detail"]


def test_stable_reinforce_is_computed_by_its_substitute_where_the_server_says_so(
    make_backend: Any, new_wire: Any
) -> None:
    backend = make_backend(losses={"stable_reinforce": "truncated_importance_sampling"})
    wire = new_wire(backend.url)
    run = wire.model()
    policy = {"advantages": [1.0] * 3, "logprobs": [-1.0] * 3, "weights": None}
    named, config = [
        wire.result(wire.forward_backward(run, seq_id, loss_fn=loss, config={"kl_coeff": 0.5}, **policy))
        for seq_id, loss in ((1, "stable_reinforce"), (2, "truncated_importance_sampling"))
    ]
    assert named == config
    detail = wire.forward_backward(run, 3, _status=400, loss_fn="stable_reinforce", config={"alpha": 1.0}, **policy)
    assert "'alpha'" in detail["detail"] and "kl_coeff, ratio_limit" in detail["detail"]


@pytest.mark.parametrize("case", BAD_LOSSES)
def test_a_bad_loss_request_is_refused_by_name(wire: Any, case: str) -> None:
    inputs, words = BAD_LOSSES[case]
    run = wire.model()
    detail = wire.forward_backward(run, 1, _status=400, **dict(inputs))["detail"]
    assert all(word in detail for word in words), detail
    assert wire.result(wire.optim_step(run, 2))["metrics"]["grad_norm"] == 0


def test_two_dimensional_targets_are_accepted(wire: Any) -> None:
    run = wire.model()
    promise = wire.forward_backward(run, 1, target_tokens=[[1, 2], [3, 4], [5, 6]], weights=[[1.0, 0.5]] * 3)
    assert wire.result(promise)["loss_fn_outputs"][0]["logprobs"]["shape"] == [3, 2]


def test_a_refused_neighbour_changes_nothing_for_the_others(wire: Any) -> None:
    alone, beside = wire.model(), wire.model()
    bad = wire.model()
    expected = wire.result(wire.forward_backward(alone, 1))
    wire.forward_backward(bad, 1, _status=400, weights=[1.0])
    assert wire.result(wire.forward_backward(beside, 1)) == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"base_model": "fake-modell"}, ["fake-modell", "did you mean 'fake-model'"]),
        ({"lora_config": {"rank": 65}}, ["rank 65", "64"]),
        ({"lora_config": {"rank": -1}}, ["rank -1"]),
        (
            {"lora_config": {"rank": 8, "train_mlp": False, "train_attn": False, "train_unembed": False}},
            ["trains nothing"],
        ),
        ({"optimizer_config": {"type": "dimuon", "version": 1}}, ["dimuon", "adamw"]),
    ],
)
def test_a_bad_model_is_refused_by_name(wire: Any, fields: dict[str, Any], words: list[str]) -> None:
    body = {"session_id": wire.session(), "model_seq_id": 0, "base_model": "fake-model"} | fields
    detail = wire.post("create_model", 400, **body)["detail"]
    assert all(word in detail for word in words), detail


@pytest.mark.parametrize(
    "fields", [{"learning_rate": 1e31}, {"learning_rate": -1}, {"weight_decay": 1e7}, {"eps": 1e31}, {"beta1": 1}]
)
def test_optimizer_numbers_that_leave_float32_are_refused_by_name(wire: Any, fields: dict[str, float]) -> None:
    run = wire.model()
    detail = wire.post("optim_step", 422, model_id=run, seq_id=1, adam_params=fields)["detail"]
    assert f"adam_params.{next(iter(fields))}" in detail
    assert wire.result(wire.optim_step(run, 2))["metrics"]["grad_norm"] == 0


@pytest.mark.parametrize(
    ("route", "content", "detail"),
    [
        ("optim_step", "{bad", "the body is no JSON: Expecting property name enclosed in double quotes at character 1"),
        (
            "asample",
            '{"prompt": {}, "sampling_params": {"stop": 5}}',
            "sampling_params.stop: Input should be a valid string or Input should be a valid list (found '5')",
        ),
        (
            "asample",
            '{"prompt": {}, "sampling_params": {"stop": ["a", 5.5]}}',
            "sampling_params.stop.1: Input should be a valid string or Input should be a valid integer",
        ),
    ],
)
def test_a_body_of_the_wrong_form_is_told_in_one_sentence_a_place(
    wire: Any, route: str, content: str, detail: str
) -> None:
    answer = wire.http.post(route, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert detail in answer.json()["detail"] and "list[" not in answer.json()["detail"]


def test_an_alias_names_the_same_model(wire: Any) -> None:
    run = wire.model(base_model="Org/Fake")
    assert wire.post("get_info", model_id=run)["model_data"]["model_name"] == "Org/Fake"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\x00b", "x" * 300, "-rf"])
def test_a_checkpoint_name_that_could_leave_its_folder_is_refused(wire: Any, name: str) -> None:
    run = wire.model()
    status = 400
    answer = wire.http.post("save_weights_external", json={"model_id": run, "seq_id": 1, "path": name})
    assert answer.status_code == status, answer.text
    assert wire.http.post("save_weights", json={"model_id": run, "seq_id": 2, "path": name or "../"}).status_code == 400


BAD_SAMPLES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no tokens": ({"prompt": {"chunks": []}}, ["prompt"]),
    "image": ({"prompt": {"chunks": [{"type": "image", "data": "", "format": "png"}]}}, ["image", "text only"]),
    "prompt outside the vocabulary": ({"prompt": {"chunks": [{"tokens": [1000]}]}}, ["1000"]),
    "float tokens": ({"prompt": {"chunks": [{"tokens": [1.5]}]}}, ["integers"]),
    "negative temperature": ({"sampling_params": {"temperature": -1}}, ["temperature"]),
    "top_p": ({"sampling_params": {"top_p": 0}}, ["top_p"]),
    "top_k": ({"sampling_params": {"top_k": 0}}, ["top_k"]),
    "too many tokens": ({"sampling_params": {"max_tokens": 512}}, ["context", "512"]),
    "no samples": ({"num_samples": 0}, ["num_samples"]),
    "a stop that is empty": ({"sampling_params": {"stop": [""]}}, ["stop"]),
    "a stop outside the vocabulary": ({"sampling_params": {"stop": [5000]}}, ["stop", "5000"]),
    "last_n alone": ({"prompt_logprobs_last_n": 1}, ["prompt_logprobs"]),
    "last_n too large": ({"prompt_logprobs_last_n": 3, "prompt_logprobs": True}, ["last_n"]),
    "targets of the wrong length": (
        {"target_prompt_logprobs": {"data": [1, 2, 3], "dtype": "int64", "shape": [3, 1]}},
        ["[2, K]"],
    ),
    "top-k too large": ({"topk_prompt_logprobs": 2000}, ["topk_prompt_logprobs"]),
    "top-k of the whole vocabulary": ({"topk_sample_logprobs": 1000}, ["topk_sample_logprobs 1000", "999"]),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_a_bad_sample_is_refused_by_name(wire: Any, case: str) -> None:
    fields, words = BAD_SAMPLES[case]
    sampler = wire.post(
        "create_sampling_session", session_id=wire.session(), sampling_session_seq_id=0, base_model="fake-model"
    )
    body = {
        "sampling_session_id": sampler["sampling_session_id"],
        "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
    }
    detail = wire.post("asample", 400, **(body | fields))["detail"]
    assert all(word in detail for word in words), detail


def test_things_that_do_not_exist_are_not_found(wire: Any) -> None:
    assert wire.http.post("retrieve_future", json={"request_id": "nothing"}).status_code == 404
    assert wire.http.post("get_info", json={"model_id": "nothing"}).status_code == 404
    assert wire.http.get("samplers/nothing").status_code == 404
    assert wire.http.get("sessions/nothing").status_code == 404
    assert wire.http.get("training_runs/nothing").status_code == 404
    assert wire.http.post("weights_info", json={"tinker_path": "tinker://a/weights/b"}).status_code == 404
    assert wire.http.post("weights_info", json={"tinker_path": "nothing"}).status_code == 400


def test_refusals_carry_their_length_and_are_not_compressed(wire: Any) -> None:
    run = wire.model()
    headers = {"accept-encoding": "gzip, zstd"}
    answer = wire.http.post("save_weights", json={"model_id": run, "seq_id": 1, "path": "a/b"}, headers=headers)
    assert answer.status_code == 400
    assert int(answer.headers["content-length"]) == len(answer.content) > 0
    assert "content-encoding" not in answer.headers


def test_bodies_and_headers_above_their_limit_are_refused(make_backend: Any, new_wire: Any) -> None:
    wire = new_wire(make_backend(limits={"body_bytes": 2000, "header_bytes": 4000}).url)
    assert wire.http.post("telemetry", content=b"x" * 2001).status_code == 413
    assert wire.http.post("telemetry", content=(b"x" * 100 for _ in range(30))).status_code == 413
    assert wire.http.get("healthz", headers={"x-long": "x" * 5000}).status_code in (413, 400, 431)
    assert wire.http.get("healthz").status_code == 200


def test_garbage_is_a_refusal_and_never_a_server_error(wire: Any) -> None:
    for body in (b"", b"\xff" * 50, b"\x0a\x03abc", b"{}", b"[]", b"null"):
        for kind in ("application/x-protobuf", "application/json"):
            answer = wire.http.post("forward_backward", content=body, headers={"content-type": kind})
            assert 400 <= answer.status_code < 500, (body, kind, answer.text)
    for route in ("asample", "optim_step", "save_weights", "create_model", "retrieve_future", "load_weights"):
        for body in (b"", b"{", b"[]", b"null", b'{"model_id": 3}', b'{"path": "x", "seq_id": 1e99}'):
            answer = wire.http.post(route, content=body, headers={"content-type": "application/json"})
            assert 400 <= answer.status_code < 500, (route, body, answer.text)

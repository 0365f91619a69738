"""Our SDK and our server with the embedded engine, on a tiny random model, over sockets."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinker
from tinker import types

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
MODEL = "tiny"
TOKENS = [5, 9, 11, 17, 33, 21, 8, 40]


def _server_process() -> Any:
    path = Path(__file__).parents[1] / "backend" / "conftest.py"
    spec = importlib.util.spec_from_file_location("sdk_server_process", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.BackendProcess


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tinker_backend.models.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model") / MODEL, "llama")


@pytest.fixture(scope="module")
def backend(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    engine = {"pretrain": str(model_folder), "model_name": MODEL, "sequence_length": 128}
    command = [sys.executable, "-m", "tinker_backend.runtime"]
    server = _server_process()(tmp_path_factory.mktemp("server"), engine, {"runtime": {"command": command}})
    yield server
    server.stop()


@pytest.fixture
def service(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tinker.ServiceClient]:
    monkeypatch.setenv("TINKER_BASE_URL", backend.url)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)  # a server on loopback without keys needs none
    with tinker.ServiceClient(user_metadata={"test": "e2e"}) as client:
        yield client


def datum(tokens: list[int] = TOKENS) -> types.Datum:
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    return types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)


def test_training_learns_and_sampling_sees_it(service: tinker.ServiceClient) -> None:
    client = service.create_lora_training_client(MODEL, rank=16, seed=1).result(60)
    assert client.get_info().model_data.model_name == MODEL and client.get_info().lora_rank == 16
    before = client.save_weights_and_get_sampling_client()
    steps = []
    for _ in range(25):
        steps.append(client.forward_backward([datum(), datum()], "cross_entropy"))
        client.optim_step(types.AdamParams(learning_rate=5e-2))
    losses = [step.result(60).metrics["loss:sum"] for step in steps]
    assert losses[-1] < 0.5 * losses[0]
    after = client.save_weights_and_get_sampling_client().result(60)
    prompt = types.ModelInput.from_ints(TOKENS)
    scores = [sum(s.compute_logprobs(prompt).result(60)[1:]) for s in (before.result(60), after)]  # type: ignore[arg-type]
    assert -scores[0] * 2 == pytest.approx(losses[0], rel=1e-3)  # the loss is a sum over both datums
    assert scores[1] > scores[0]
    forward = client.forward([datum()], "cross_entropy").result(60)
    trained = forward.loss_fn_outputs[0]["logprobs"].to_numpy()
    sampled = np.array(after.compute_logprobs(prompt).result(60)[1:], dtype=np.float32)
    np.testing.assert_allclose(trained, sampled, atol=1e-4)
    greedy = types.SamplingParams(max_tokens=3, temperature=0.0)
    answer = after.sample(types.ModelInput.from_ints(TOKENS[:4]), 2, greedy, topk_sample_logprobs=1).result(60)
    one, two = answer.sequences
    assert one.tokens == two.tokens == [row[0][0] for row in one.topk_logprobs or [] if row]
    assert len({s.sequence_id for s in answer.sequences}) == 2


def test_chunks_add_up_like_one_request(service: tinker.ServiceClient) -> None:
    data = [datum([i % 50 + 3 for i in range(start, start + 6)]) for start in range(7)]
    whole = service.create_lora_training_client(MODEL, rank=4, seed=2).result(60)
    parts = service.create_lora_training_client(MODEL, rank=4, seed=2).result(60)
    expected = whole.forward_backward(data, "cross_entropy").result(60)
    flags = service.holder.flags
    service.holder.flags = flags.model_copy(update={"fwdbwd_max_chunk_len": 2})
    try:
        split = parts.forward_backward(data, "cross_entropy").result(60)
    finally:
        service.holder.flags = flags
    assert split.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-4)
    for one, other in zip(split.loss_fn_outputs, expected.loss_fn_outputs, strict=True):
        np.testing.assert_allclose(one["logprobs"].to_numpy(), other["logprobs"].to_numpy(), atol=1e-4)
    norms = [c.optim_step(types.AdamParams(learning_rate=1e-2)).result(60).metrics for c in (whole, parts)]
    for key in set(norms[0] or {}) & set(norms[1] or {}):
        assert norms[0][key] == pytest.approx(norms[1][key], rel=1e-3), key  # type: ignore[index]
    after = [c.forward(data, "cross_entropy").result(60).metrics["loss:sum"] for c in (whole, parts)]
    assert after[0] == pytest.approx(after[1], rel=1e-3)


def test_a_loss_of_ones_own_equals_the_built_in_one(service: tinker.ServiceClient) -> None:
    def nll(data: Any, logprobs: Any) -> Any:
        return -sum(lp.sum() for lp in logprobs), {"mine": 1.0}

    def traced(logprobs: Any) -> Any:
        return -logprobs.sum(), {"custom/tokens:sum": logprobs.sum() * 0 + 7}

    handle = service.create_custom_loss(traced, {"logprobs": 1}).result(60)
    results = []
    for loss in ("cross_entropy", nll, handle):
        client = service.create_lora_training_client(MODEL, rank=4, seed=3).result(60)
        if isinstance(loss, str):
            client.forward_backward([datum()], loss).result(60)  # type: ignore[arg-type]
        else:
            client.forward_backward_custom([datum()], loss).result(60)
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result(60)
        results.append(client.forward([datum()], "cross_entropy").result(60).metrics["loss:sum"])
    assert results[1] == pytest.approx(results[0], rel=1e-4) and results[2] == pytest.approx(results[0], rel=1e-4)


def test_states_come_back_with_and_without_the_optimizer(service: tinker.ServiceClient) -> None:
    client = service.create_lora_training_client(MODEL, rank=4, seed=4).result(60)

    def step(c: tinker.TrainingClient) -> float:
        loss = c.forward_backward([datum()], "cross_entropy")
        c.optim_step(types.AdamParams(learning_rate=1e-2)).result(60)
        return loss.result(60).metrics["loss:sum"]

    step(client)
    path = client.save_state("s1", user_metadata={"k": "v"}).result(60).path
    assert path == f"tinker://{client.model_id}/weights/s1"
    expected = [step(client) for _ in range(3)]
    resumed = service.create_training_client_from_state_with_optimizer(path).result(60)
    assert [step(resumed) for _ in range(3)] == pytest.approx(expected, rel=1e-4)
    fresh = service.create_training_client_from_state(path).result(60)
    losses = [step(fresh) for _ in range(3)]
    assert losses[0] == pytest.approx(expected[0], rel=1e-4)


def test_what_is_stored_can_be_looked_at_and_removed(service: tinker.ServiceClient) -> None:
    client = service.create_lora_training_client(MODEL, rank=4).result(60)
    state = client.save_state("state").result(60).path
    sampler = client.save_weights_for_sampler("sampler", ttl_seconds=3600).result(60).path
    rest = tinker.RestClient()
    assert MODEL in [m.model_name for m in rest.get_server_capabilities().result(60).supported_models]
    assert rest.get_training_run_by_tinker_path(state).result(60).training_run_id == client.model_id
    info = rest.get_weights_info_by_tinker_path(state).result(60)
    assert (info.base_model, info.is_lora, info.lora_rank) == (MODEL, True, 4)
    listed = rest.list_checkpoints(client.model_id).result(60).checkpoints
    assert {c.tinker_path for c in listed} == {state, sampler}
    assert next(c for c in listed if c.tinker_path == sampler).expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(sampler, None).result(60)
    rest.publish_checkpoint_from_tinker_path(state).result(60)
    listed = rest.list_checkpoints(client.model_id).result(60).checkpoints
    assert next(c for c in listed if c.tinker_path == sampler).expires_at is None
    assert next(c for c in listed if c.tinker_path == state).public
    rest.unpublish_checkpoint_from_tinker_path(state).result(60)
    assert service.holder.session_id in rest.list_sessions().result(60).sessions
    rest.delete_checkpoint_from_tinker_path(state).result(60)
    assert [c.tinker_path for c in rest.list_checkpoints(client.model_id).result(60).checkpoints] == [sampler]
    from_path = service.create_sampling_client(model_path=sampler).result(60)
    assert from_path.get_base_model() == MODEL
    with pytest.raises(tinker.NotFoundError):
        rest.get_training_run("nobody:train:0").result(60)


def test_mistakes_are_refused_with_a_sentence(service: tinker.ServiceClient) -> None:
    with pytest.raises((tinker.APIStatusError, tinker.RequestFailedError), match="no-such-model"):
        service.create_lora_training_client("no-such-model").result(60)
    client = service.create_lora_training_client(MODEL, rank=4).result(60)
    bad = types.Datum(types.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [1.0]})
    with pytest.raises((tinker.APIStatusError, tinker.RequestFailedError), match="weights"):
        client.forward_backward([bad], "cross_entropy").result(60)
    assert client.forward_backward([datum()], "cross_entropy").result(60).metrics["loss:sum"] > 0


def test_every_option_of_sampling(service: tinker.ServiceClient) -> None:
    sampler = service.create_sampling_client(base_model=MODEL).result(60)
    prompt = types.ModelInput.from_ints(TOKENS)
    params = types.SamplingParams(max_tokens=4, seed=7, temperature=0.9, top_k=20, top_p=0.95)
    target = types.TensorData.from_numpy(np.array([[t, -1] for t in TOKENS[1:]]))

    def ask() -> types.SampleResponse:
        return sampler.sample(
            prompt,
            2,
            params,
            include_prompt_logprobs=True,
            topk_prompt_logprobs=3,
            topk_sample_logprobs=2,
            target_prompt_logprobs=target,
            prompt_alt_tokens_k=2,
        ).result(60)

    one, two = ask(), ask()
    assert [s.tokens for s in one.sequences] == [s.tokens for s in two.sequences]
    assert one.prompt_logprobs is not None and one.prompt_logprobs[0] is None
    assert one.topk_prompt_logprobs is not None and len(one.topk_prompt_logprobs[3] or []) == 3
    assert all(len(row or []) == 2 for row in one.sequences[0].topk_logprobs or [])
    assert one.target_prompt_logprobs is not None and one.prompt_alt_tokens is not None
    scored = one.target_prompt_logprobs.to_numpy()
    np.testing.assert_allclose(scored[:, 0], one.prompt_logprobs_np[1:], atol=1e-4)  # type: ignore[index]
    assert (scored[:, 1] == 0).all()
    assert list(one.prompt_alt_tokens.tokens.shape or []) == [len(TOKENS) - 1, 2]
    last = sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2).result(60)
    assert last[:-2] == [None] * (len(TOKENS) - 2) and last[-2:] == pytest.approx(one.prompt_logprobs[-2:], abs=1e-4)


CHILD = """
import pickle, sys, tinker
client = pickle.loads(bytes.fromhex(sys.argv[1]))
print(client.sample(tinker.ModelInput.from_ints([5, 9]), 1, tinker.SamplingParams(max_tokens=2)).result(60)
      .sequences[0].stop_reason)
"""


def test_samplers_work_in_other_processes(service: tinker.ServiceClient) -> None:
    sampler = service.create_sampling_client(base_model=MODEL).result(60)
    text = pickle.dumps(sampler).hex()
    done = subprocess.run([sys.executable, "-c", CHILD, text], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() in ("length", "stop"), done.stderr


def test_the_tokenizer_of_a_model(service: tinker.ServiceClient) -> None:
    client = service.create_lora_training_client(MODEL, rank=4).result(60)
    tokenizer = client.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("hello", add_special_tokens=False)) == "hello"


def test_the_command_line_downloads_a_loadable_adapter(
    service: tinker.ServiceClient, backend: Any, tmp_path: Path
) -> None:
    client = service.create_lora_training_client(MODEL, rank=4, seed=5).result(60)
    client.forward_backward([datum()], "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result(60)
    state = client.save_state("to-download").result(60).path
    external = client.save_weights_external("ext").result(60).path
    program = [sys.executable, "-c", "from tinker.cli import main; main()", "-f", "json", "checkpoint"]
    environment = {**os.environ, "TINKER_BASE_URL": backend.url}
    for path in (state, external):
        done = subprocess.run(
            [*program, "download", path, "-o", str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        folder = Path(json.loads(done.stdout)["destination"])
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["r"] == 4 and (folder / "adapter_model.safetensors").stat().st_size > 1000
    listed = subprocess.run(
        [*program, "list", "--run-id", client.model_id], env=environment, capture_output=True, text=True, timeout=60
    )
    assert {c["tinker_path"] for c in json.loads(listed.stdout)["checkpoints"]} == {state, external}


def test_a_finished_session_is_left_in_peace(service: tinker.ServiceClient) -> None:
    with tinker.ServiceClient() as other:
        other.create_lora_training_client(MODEL, rank=4).result(60)
        session_id = other.holder.session_id
    summary = tinker.RestClient().get_session(str(session_id)).result(60)
    assert summary.training_run_ids == [f"{session_id}:train:0"]

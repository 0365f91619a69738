"""Runs inside the environment of the newest official SDK: every public method once. Prints one JSON line at its end.

Arguments: base URL, base model, API key. The line maps ``Class.method`` to ``ok``, or to the refusal that the server
gives by intent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import sys
import typing
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

warnings.simplefilter("ignore")
os.environ["TINKER_BASE_URL"] = sys.argv[1]
os.environ["TINKER_API_KEY"] = sys.argv[3] if len(sys.argv) > 3 else "tml-test"

if lent := os.environ.get("WALK_TORCH"):
    sys.path.append(lent)  # behind the environment's own packages: only what is missing there comes from it

import tinker  # noqa: E402
from tinker import types  # noqa: E402

BASE_MODEL = sys.argv[2]
NAMES = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AdminClient")
CLIENTS = {getattr(tinker, name): name for name in NAMES}
OUTCOMES: dict[str, str] = {}


def check(name: str, call: Callable[[], Any]) -> Any:
    """Makes a call, waits for its future, and notes that it worked."""
    value = call()
    if hasattr(value, "result") and callable(value.result):
        value = value.result()
    OUTCOMES[name] = "ok"
    return value


def refused(name: str, call: Callable[[], Any]) -> None:
    """A call that the server refuses by intent."""
    try:
        check(name, call)
    except (tinker.APIStatusError, tinker.RequestFailedError) as error:
        OUTCOMES[name] = f"refused: {str(error)[:200]}"
    else:
        raise AssertionError(f"{name} was expected to be refused")


def datum(tokens: list[int], **inputs: list[float]) -> Any:
    inputs = inputs or {"weights": [1.0] * (len(tokens) - 1)}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": tokens[1:], **inputs}
    )


DATA = [datum([1, 2, 3, 4, 5]), datum([7, 8, 9])]
PROMPT = types.ModelInput.from_ints([1, 2, 3])


def training(service: Any) -> tuple[Any, Any]:
    client = check(
        "ServiceClient.create_lora_training_client",
        lambda: service.create_lora_training_client(BASE_MODEL, rank=8, seed=1),
    )
    info = check("TrainingClient.get_info", client.get_info)
    assert info.model_data.model_name == BASE_MODEL and info.lora_rank == 8
    output = check("TrainingClient.forward_backward", lambda: client.forward_backward(DATA, "cross_entropy"))
    assert output.metrics["loss:sum"] > 0
    check("TrainingClient.optim_step", lambda: client.optim_step(types.AdamParams(learning_rate=1e-3)))
    forward = check("TrainingClient.forward", lambda: client.forward(DATA, "cross_entropy"))
    old = list(forward.loss_fn_outputs[0]["logprobs"].data)
    policy = [datum([1, 2, 3, 4, 5], logprobs=old, advantages=[1.0, -1.0, 0.5, 0.0])]
    for loss, config in (
        ("importance_sampling", None),
        ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        ("cispo", None),
        ("dro", {"beta": 0.05}),
    ):
        result = client.forward_backward(policy, loss, config).result()
        assert "loss:sum" in result.metrics, loss
    masked = [datum([1, 2, 3, 4, 5], logprobs=old, advantages=[1.0] * 4, sequence_ratio_mask=[1.0] * 4)]
    assert "loss:sum" in client.forward_backward(masked, "gspo").result().metrics
    many = [datum([1 + i % 50, 2, 3]) for i in range(2500)]  # three chunks, the first of which is posted last
    chunked = client.forward_backward(many, "cross_entropy").result()
    assert len(chunked.loss_fn_outputs) == 2500

    try:
        import torch
    except ImportError:
        OUTCOMES["TrainingClient.forward_backward_custom"] = "not tried: torch is not installed"
    else:

        def loss_fn(data: Any, logprobs: list[Any]) -> Any:
            total = torch.stack([-x.sum() for x in logprobs]).sum()
            return total, {"custom/total:sum": float(total)}

        custom = check("TrainingClient.forward_backward_custom", lambda: client.forward_backward_custom(DATA, loss_fn))
        assert "loss:sum" in custom.metrics

    state = check(
        "TrainingClient.save_state", lambda: client.save_state("s", ttl_seconds=3600, user_metadata={"k": "v"})
    )
    check("TrainingClient.load_state", lambda: client.load_state(state.path))
    check("TrainingClient.load_state_with_optimizer", lambda: client.load_state_with_optimizer(state.path))
    named = check("TrainingClient.save_weights_for_sampler", lambda: client.save_weights_for_sampler("n"))
    external = check(
        "TrainingClient.save_weights_external", lambda: client.save_weights_external("e", ttl_seconds=3600)
    )
    sampler = check("TrainingClient.save_weights_and_get_sampling_client", client.save_weights_and_get_sampling_client)
    inflight = client.save_weights_and_get_sampling_client(kind="inflight").result()
    assert len(inflight.sample(PROMPT, 1, types.SamplingParams(max_tokens=2)).result().sequences) == 1
    check("TrainingClient.create_sampling_client", lambda: client.create_sampling_client(named.path))
    check("TrainingClient.get_console_url", client.get_console_url)
    if BASE_MODEL != "fake-model":
        assert check("TrainingClient.get_tokenizer", client.get_tokenizer).decode([1]) is not None
    from_state = check(
        "ServiceClient.create_training_client_from_state", lambda: service.create_training_client_from_state(state.path)
    )
    check(
        "ServiceClient.create_training_client_from_state_with_optimizer",
        lambda: service.create_training_client_from_state_with_optimizer(state.path),
    )
    a = client.forward(DATA, "cross_entropy").result().metrics["loss:sum"]
    assert a == from_state.forward(DATA, "cross_entropy").result().metrics["loss:sum"]
    refused("TrainingClient.optim_step (dimuon)", lambda: client.optim_step(types.DimuonParams(learning_rate=1e-3)))
    refused(
        "TrainingClient.forward_backward (stable_reinforce)",
        lambda: client.forward_backward(policy, "stable_reinforce"),
    )
    client.optim_step(types.AdamParams(learning_rate=1e-3)).result()  # goes on after a refusal
    return client, (state, named, external, sampler)


def sampling(service: Any, sampler: Any, named: Any) -> None:
    by_path = check(
        "ServiceClient.create_sampling_client", lambda: service.create_sampling_client(model_path=named.path)
    )
    base = service.create_sampling_client(base_model=BASE_MODEL).result()
    params = types.SamplingParams(max_tokens=4, seed=1)
    sample = check(
        "SamplingClient.sample",
        lambda: sampler.sample(
            PROMPT, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3
        ),
    )
    assert len(sample.sequences) == 2 and len(sample.prompt_logprobs) == 3 and sample.prompt_logprobs[0] is None
    assert len(sample.topk_prompt_logprobs) == 3
    assert all(len(s.topk_logprobs) == len(s.tokens) for s in sample.sequences)
    same = sampler.sample(PROMPT, 2, params).result()
    assert [list(s.tokens) for s in same.sequences] == [list(s.tokens) for s in sample.sequences]
    targets = types.TensorData(data=[2, 5, 3, -1], dtype="int64", shape=[2, 2])
    scored = sampler.sample(
        PROMPT, 1, params, target_prompt_logprobs=targets, prompt_alt_tokens_k=2, include_prompt_logprobs=True
    )
    scored = scored.result()
    assert list(scored.target_prompt_logprobs.shape) == [2, 2]
    assert scored.target_prompt_logprobs.data[3] == 0.0 and scored.prompt_alt_tokens is not None
    sparse = types.TensorData(
        data=[2, 3], dtype="int64", shape=[2, 2], sparse_crow_indices=[0, 1, 2], sparse_col_indices=[0, 0]
    )
    assert sampler.sample(PROMPT, 1, params, target_prompt_logprobs=sparse).result().target_prompt_logprobs is not None
    last = check("SamplingClient.compute_logprobs", lambda: sampler.compute_logprobs(PROMPT, prompt_logprobs_last_n=1))
    assert last[:2] == [None, None] and last[2] < 0
    assert base.compute_logprobs(PROMPT).result()[0] is None
    for stop in (None, [], ["\n"], [5], "x"):
        sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=2, stop=stop)).result()
    assert check("SamplingClient.get_base_model", sampler.get_base_model) == BASE_MODEL
    handle = check("SamplingClient.get_sampler_handle", by_path.get_sampler_handle)
    shadow = check("SamplingClient.from_sampler_handle", lambda: tinker.SamplingClient.from_sampler_handle(handle))
    shadow.sample(PROMPT, 1, params).result()
    clone = pickle.loads(pickle.dumps(by_path))
    assert len(clone.sample(PROMPT, 1, params).result().sequences) == 1
    OUTCOMES["SamplingClient pickled"] = "ok"


def rest(client: Any, paths: Any, service: Any) -> None:
    state, named, external, sampler = paths
    run = client.model_id
    api = check("RestClient", tinker.RestClient)
    assert check("RestClient.get_server_capabilities", api.get_server_capabilities).supported_models
    assert check("RestClient.get_training_run", lambda: api.get_training_run(run)).training_run_id == run
    check("RestClient.get_training_run_by_tinker_path", lambda: api.get_training_run_by_tinker_path(state.path))
    info = check("RestClient.get_weights_info_by_tinker_path", lambda: api.get_weights_info_by_tinker_path(state.path))
    assert info.base_model == BASE_MODEL and info.lora_rank == 8
    runs = check("RestClient.list_training_runs", lambda: api.list_training_runs(limit=5))
    assert run in [r.training_run_id for r in runs.training_runs]
    listed = check("RestClient.list_checkpoints", lambda: api.list_checkpoints(run)).checkpoints
    assert sorted(c.checkpoint_type for c in listed) == ["external", "sampler", "training"]
    assert check("RestClient.list_user_checkpoints", api.list_user_checkpoints).checkpoints
    urls = check("RestClient.get_external_weights_urls", lambda: api.get_external_weights_urls(external.path))
    assert "adapter_model.safetensors" in urls.urls
    check("RestClient.publish_checkpoint_from_tinker_path", lambda: api.publish_checkpoint_from_tinker_path(state.path))
    check(
        "RestClient.unpublish_checkpoint_from_tinker_path",
        lambda: api.unpublish_checkpoint_from_tinker_path(state.path),
    )
    check(
        "RestClient.set_checkpoint_ttl_from_tinker_path",
        lambda: api.set_checkpoint_ttl_from_tinker_path(state.path, 7200),
    )
    copy = check("RestClient.copy_weights", lambda: api.copy_weights(state.path, destination_project_id="p"))
    assert copy.startswith("tinker://")
    check("ServiceClient.copy_weights", lambda: service.copy_weights(named.path))
    sessions = check("RestClient.list_sessions", api.list_sessions).sessions
    session = run.split(":")[0]
    assert session in sessions
    assert run in check("RestClient.get_session", lambda: api.get_session(session)).training_run_ids
    check("RestClient.assign_session_project", lambda: api.assign_session_project(session, "p2"))
    search = types.SessionSearchRequest(project_ids=["p2"])
    found = check("RestClient.search_sessions", lambda: api.search_sessions(search)).sessions
    assert session in [s.session_id for s in found]
    assert check("RestClient.export_session_trace", lambda: api.export_session_trace(session)).startswith("http")
    sampler_id = api.get_session(session).result().sampler_ids[0]
    assert check("RestClient.get_sampler", lambda: api.get_sampler(sampler_id)).base_model == BASE_MODEL
    try:
        who = check("RestClient.whoami", api.whoami)
        assert who.user_urn
    except RuntimeError as error:
        OUTCOMES["RestClient.whoami"] = f"needs API keys on the server: {str(error)[:80]}"
    check("RestClient.delete_checkpoint", lambda: api.delete_checkpoint(run, "sampler_weights/n"))
    check(
        "RestClient.delete_checkpoint_from_tinker_path", lambda: api.delete_checkpoint_from_tinker_path(external.path)
    )


def own_key() -> None:
    assert isinstance(check("auth.tinker_has_credentials", tinker.auth.tinker_has_credentials), bool)
    check("auth.get_tinker_token", tinker.auth.get_tinker_token)
    check("auth.raise_if_tinker_not_accessible", tinker.auth.raise_if_tinker_not_accessible)


def admin() -> None:
    api = check("AdminClient", tinker.AdminClient)
    assert check("AdminClient.get_audit_log", lambda: api.get_audit_log("checkpoints")).entries
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    usage = check(
        "AdminClient.get_billing_usage",
        lambda: api.get_billing_usage(hour - timedelta(hours=1), hour + timedelta(hours=1)),
    )
    assert {"training", "sampling_prefill", "sampling_sample"} <= {item.event_info.type for item in usage.data}
    assert check("AdminClient.get_current_checkpoint_storage_usage", api.get_current_checkpoint_storage_usage).data


def custom_loss(service: Any, client: Any) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        OUTCOMES["ServiceClient.create_custom_loss"] = "not tried: torch is not installed"
        return

    def loss(logprobs: Any, scale: Any) -> Any:
        total = -(logprobs * scale).sum()
        return total, {"custom/total:sum": total}

    handle = check(
        "ServiceClient.create_custom_loss", lambda: service.create_custom_loss(loss, {"logprobs": 1, "scale": 1})
    )
    import numpy as np

    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints([1, 2, 3]),
            loss_fn_inputs={"target_tokens": [2, 3, 4], "scale": np.ones(3, np.float32)},
        )
    ]
    result = client.forward_backward_custom(data, handle).result()
    assert "loss:sum" in result.metrics, result.metrics


def twins(service: Any, client: Any, sampler: Any) -> None:
    """Each method again by its coroutine."""
    asyncio.run(_twins(service, client, sampler))


async def _twins(service: Any, client: Any, sampler: Any) -> None:
    async def twin(owner: Any, method: str, *arguments: Any, **options: Any) -> Any:
        value = await getattr(owner, f"{method}_async")(*arguments, **options)
        while hasattr(value, "result_async"):
            value = await value.result_async()
        OUTCOMES[f"{CLIENTS[type(owner)]}.{method}_async"] = "ok"
        return value

    api, admin_api = tinker.RestClient(), tinker.AdminClient()
    await twin(service, "get_server_capabilities")
    await twin(service, "create_lora_training_client", BASE_MODEL, rank=8)
    await twin(service, "create_sampling_client", base_model=BASE_MODEL)
    await twin(client, "get_info")
    for method in ("forward", "forward_backward"):
        await twin(client, method, DATA, "cross_entropy")
    if (
        "TrainingClient.forward_backward_custom" in OUTCOMES
        and OUTCOMES["TrainingClient.forward_backward_custom"] == "ok"
    ):
        import torch

        def loss_fn(data: Any, logprobs: list[Any]) -> Any:
            return torch.stack([-x.sum() for x in logprobs]).sum(), {}

        await twin(client, "forward_backward_custom", DATA, loss_fn)
    await twin(client, "optim_step", types.AdamParams(learning_rate=1e-3))
    state = await twin(client, "save_state", "s2")
    await twin(client, "load_state", state.path)
    await twin(client, "load_state_with_optimizer", state.path)
    named = await twin(client, "save_weights_for_sampler", "n2")
    external = await twin(client, "save_weights_external", "e2")
    await twin(client, "save_weights_and_get_sampling_client")
    await twin(client, "create_sampling_client", named.path)
    for method in ("create_training_client_from_state", "create_training_client_from_state_with_optimizer"):
        await twin(service, method, state.path)
    await twin(sampler, "sample", PROMPT, 1, types.SamplingParams(max_tokens=2))
    await twin(sampler, "compute_logprobs", PROMPT)
    await twin(sampler, "get_base_model")
    run = client.model_id
    session = run.split(":")[0]
    await twin(api, "get_training_run", run)
    for method in (
        "get_training_run_by_tinker_path",
        "publish_checkpoint_from_tinker_path",
        "unpublish_checkpoint_from_tinker_path",
    ):
        await twin(api, method, state.path)
    await twin(api, "set_checkpoint_ttl_from_tinker_path", state.path, 7200)
    for method in ("list_training_runs", "list_user_checkpoints", "list_sessions"):
        await twin(api, method)
    await twin(api, "list_checkpoints", run)
    await twin(api, "get_external_weights_urls", external.path)
    await twin(api, "copy_weights", state.path, destination_project_id="p")
    await twin(api, "assign_session_project", session, "p2")
    await twin(api, "export_session_trace", session)
    await twin(api, "get_sampler", (await twin(api, "get_session", session)).sampler_ids[0])
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for owner in (api, admin_api):
        await twin(owner, "get_audit_log")
        await twin(owner, "get_billing_usage", hour - timedelta(hours=1), hour + timedelta(hours=1))
        await twin(owner, "get_current_checkpoint_storage_usage")
    await twin(api, "delete_checkpoint", run, "sampler_weights/n2")
    await twin(api, "delete_checkpoint_from_tinker_path", external.path)


def remaining(service: Any, client: Any, sampler: Any) -> None:
    """What needs no work of the server, and the deprecated places of what was called elsewhere."""
    api, admin_api = check("ServiceClient.create_rest_client", service.create_rest_client), tinker.AdminClient()
    check("ServiceClient.get_server_capabilities", service.get_server_capabilities)
    for owner in (service, client, sampler, api, admin_api):
        check(f"{CLIENTS[type(owner)]}.get_telemetry", owner.get_telemetry)
    check("SamplingClient.create", lambda: tinker.SamplingClient.create(service.holder, base_model=BASE_MODEL))
    state = typing.get_type_hints(type(sampler).on_queue_state_change)["queue_state"]
    check("SamplingClient.on_queue_state_change", lambda: sampler.on_queue_state_change(next(iter(state)), None))
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    check("RestClient.get_audit_log", api.get_audit_log)
    check("RestClient.get_billing_usage", lambda: api.get_billing_usage(hour - timedelta(hours=1), hour))
    check("RestClient.get_current_checkpoint_storage_usage", api.get_current_checkpoint_storage_usage)
    if BASE_MODEL != "fake-model":
        check("SamplingClient.get_tokenizer", sampler.get_tokenizer)


def cancellation(sampler: Any) -> None:
    async def impatient() -> None:
        with contextlib.suppress(TimeoutError):
            await sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=200)).result_async(timeout=0.001)

    asyncio.run(impatient())
    OUTCOMES["cancel by timeout"] = "ok"


def main() -> None:
    with tinker.ServiceClient(user_metadata={"walk": "full"}, display_name="walk", project_id="p") as service:
        client, paths = training(service)
        sampling(service, paths[3], paths[1])
        rest(client, paths, service)
        admin()
        own_key()
        custom_loss(service, client)
        sampler = paths[3]
        remaining(service, client, sampler)
        twins(service, client, sampler)
        cancellation(paths[3])
        check("ServiceClient.get_console_url", service.get_console_url)
    OUTCOMES["ServiceClient.close"] = "ok"
    print(json.dumps({"version": tinker.__version__, "outcomes": OUTCOMES}))


if __name__ == "__main__":
    main()

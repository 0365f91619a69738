"""Uploaded loss graphs: computed exactly, bounded, and confined to a closed list of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tinker_backend.runtime.loss_graph import check_graph, run_graph
from tinker_backend.runtime.roles import Datum, LoraSpec, LossRequest, LossResult, RunSpec, RuntimeFault
from tinker_backend.runtime.torch_trainer import TorchTrainer


def placeholder(name: str) -> dict[str, Any]:
    return {"op": "placeholder", "name": name, "target": name, "args": [], "kwargs": {}}


def call(name: str, target: str, *args: Any, op: str = "call_function", **kwargs: Any) -> dict[str, Any]:
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


def output(loss: str, **metrics: str) -> dict[str, Any]:
    pairs = {f"custom/{k.replace('__', ':')}": {"ref": v} for k, v in metrics.items()}
    return {
        "op": "output",
        "name": "output",
        "target": "output",
        "args": [{"tuple": [{"ref": loss}, {"dict": pairs}]}],
        "kwargs": {},
    }


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


POLICY = {
    "format": 1,
    "nodes": [
        placeholder("logprobs"),
        placeholder("old"),
        placeholder("adv"),
        call("delta", "operator.sub", ref("logprobs"), ref("old")),
        call("ratio", "torch.exp", ref("delta")),
        call("capped", "torch.clamp", ref("ratio"), min=0.8, max=1.2),
        call("a", "operator.mul", ref("ratio"), ref("adv")),
        call("b", "mul", ref("capped"), ref("adv"), op="call_method"),
        call("least", "torch.minimum", ref("a"), ref("b")),
        call("total", "sum", ref("least"), op="call_method"),
        call("loss", "operator.neg", ref("total")),
        call("first", "operator.getitem", ref("ratio"), {"slice": [0, 1, None]}),
        call("one", "sum", ref("first"), op="call_method"),
        output("loss", first__mean="one", total__sum="total"),
    ],
}


def test_a_graph_that_spells_ppo_equals_ppo_in_loss_and_gradient(
    new_trainer: Callable[..., TorchTrainer], data: Any
) -> None:
    batch = [data.policy_datum(n) for n in (9, 14)]
    custom = [
        Datum(
            d.tokens,
            {"target_tokens": d.inputs["target_tokens"], "old": d.inputs["logprobs"], "adv": d.inputs["advantages"]},
        )
        for d in batch
    ]
    trainer = new_trainer()
    for run_id in ("a", "b"):
        trainer.create(RunSpec(run_id, "tiny", LoraSpec(rank=4, seed=1)))
    requests = [
        LossRequest("a", 1, batch, "ppo"),
        LossRequest("b", 1, custom, "custom", {"loss_id": "x"}, graph=POLICY),
    ]
    ppo, graph = trainer.forward_backward(requests)
    assert isinstance(ppo, LossResult) and isinstance(graph, LossResult), graph
    assert graph.metrics["loss:sum"] == pytest.approx(ppo.metrics["loss:sum"], rel=1e-6)
    assert graph.metrics["custom/total:sum"] == pytest.approx(-ppo.metrics["loss:sum"], rel=1e-6)
    ratios = [np.exp(o["logprobs"][0] - d.inputs["logprobs"][0]) for o, d in zip(ppo.outputs, batch, strict=True)]
    assert graph.metrics["custom/first:mean"] == pytest.approx(np.mean(ratios), rel=1e-5)
    torch.testing.assert_close(trainer.runs["a"].gradients, trainer.runs["b"].gradients, atol=1e-6, rtol=1e-5)


def single(node: dict[str, Any]) -> dict[str, Any]:
    return {"format": 1, "nodes": [placeholder("logprobs"), node, call("s", "torch.sum", ref("n")), output("s")]}


FORBIDDEN = [
    call("n", "os.system", "true"),
    call("n", "builtins.eval", "1"),
    call("n", "builtins.__import__", "os"),
    call("n", "torch.load", "/etc/passwd"),
    call("n", "torch.ops.load_library", "x.so"),
    call("n", "operator.attrgetter", "__class__"),
    call("n", "operator.methodcaller", "backward"),
    call("n", "torch.utils.data.DataLoader", ref("logprobs")),
    call("n", "builtins.getattr", ref("logprobs"), "__class__"),
    call("n", "__reduce__", ref("logprobs"), op="call_method"),
    call("n", "numpy", ref("logprobs"), op="call_method"),
    call("n", "tofile", ref("logprobs"), "/tmp/x", op="call_method"),
    call("n", "register_hook", ref("logprobs"), op="call_method"),
    call("n", "anything", op="call_module"),
    call("n", "anything", op="get_attr"),
    call("n", "torch.zeros", [100000, 100000]),
    call("n", "new_zeros", ref("logprobs"), [2**40], op="call_method"),
    call("n", "torch.arange", 2**40),
    call("n", "operator.pow", 2**40, 2**40),
    call("n", "operator.pow", 2, 2**20),
    call("n", "operator.mul", [0, 0], 10**9),
    call("n", "torch.add", ref("later"), 1),
    call("n", "torch.add", {"code": "1"}, 1),
]


@pytest.mark.parametrize("node", FORBIDDEN, ids=lambda n: f"{n['op']}-{n['target']}")
def test_what_is_not_on_the_list_is_refused(node: dict[str, Any]) -> None:
    with pytest.raises(RuntimeFault, match="custom loss graph") as caught:
        run_graph(single(node), torch.zeros(3, requires_grad=True), {})
    assert caught.value.category == "user"


def test_broadcasting_cannot_take_the_memory_of_the_machine() -> None:
    nodes = [
        placeholder("logprobs"),
        call("column", "torch.reshape", ref("logprobs"), [-1, 1]),
        call("square", "torch.mul", ref("column"), ref("logprobs")),
        call("flat", "torch.flatten", ref("square")),
        call("tall", "torch.reshape", ref("flat"), [-1, 1]),
        call("huge", "torch.mul", ref("tall"), ref("flat")),
        call("s", "torch.sum", ref("huge")),
        output("s"),
    ]
    with pytest.raises(RuntimeFault, match="torch.mul would make more than"):
        run_graph({"format": 1, "nodes": nodes}, torch.zeros(1000, requires_grad=True), {})


def test_a_forbidden_function_is_found_before_any_data_is_there() -> None:
    check_graph(POLICY)
    with pytest.raises(RuntimeFault, match="os.system"):
        check_graph(single(FORBIDDEN[0]))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"format": 2, "nodes": []}, "format must be 1"),
        ({"format": 1, "nodes": [placeholder("logprobs")]}, "no output"),
        ({"format": 1, "nodes": [placeholder("missing"), output("missing")]}, "'missing' is not in loss_fn_inputs"),
        ({"format": 1, "nodes": [placeholder("logprobs"), output("logprobs")]}, "one element"),
        ({"format": 1, "nodes": [placeholder("logprobs")] * 5000}, "at most 4096"),
    ],
)
def test_malformed_graphs_are_refused(graph: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeFault, match=message):
        run_graph(graph, torch.zeros(3, requires_grad=True), {})


def test_metrics_must_have_a_name_that_clients_can_merge() -> None:
    nodes = [placeholder("logprobs"), call("s", "torch.sum", ref("logprobs"))]
    bad = output("s")
    bad["args"][0]["tuple"][1]["dict"] = {"loss": {"ref": "s"}}
    with pytest.raises(RuntimeFault, match="custom/<name>:sum"):
        run_graph({"format": 1, "nodes": [*nodes, bad]}, torch.zeros(3, requires_grad=True), {})


def test_the_list_that_the_server_reads_is_the_one_that_the_runtime_binds() -> None:
    from tinker_backend.loss_vocabulary import graph_mistake
    from tinker_backend.runtime.graph_vocabulary import FUNCTIONS

    assert len(FUNCTIONS) > 100
    for name in FUNCTIONS:
        assert graph_mistake({"format": 1, "nodes": [call("a", name)]}) is None
    assert graph_mistake({"format": 1, "nodes": [call("a", "torch.save")]}) is not None

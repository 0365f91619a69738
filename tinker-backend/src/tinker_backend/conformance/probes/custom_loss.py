"""Losses that the client uploads as a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..client import Failed, Refused, Session
from ..effect import same_step
from ..probe import Skipped, check, check_refused, probe
from ..suite import Suite
from ..wire import Example


def _node(op: str, name: str, target: str, *args: Any) -> dict[str, Any]:
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": {}}


def _ref(name: str) -> dict[str, str]:
    return {"ref": name}


def _graph(function: str = "operator.mul") -> list[dict[str, Any]]:
    """``-sum(logprobs * adv)`` with a metric of its own."""
    return [
        _node("placeholder", "logprobs", "logprobs"),
        _node("placeholder", "adv", "adv"),
        _node("call_function", "product", function, _ref("logprobs"), _ref("adv")),
        _node("call_method", "total", "sum", _ref("product")),
        _node("call_function", "loss", "operator.neg", _ref("total")),
        _node("output", "output", "output", {"tuple": [_ref("loss"), {"dict": {"custom/total:sum": _ref("total")}}]}),
    ]


def _upload(session: Session, nodes: list[dict[str, Any]]) -> str:
    body = {
        "session_id": session.id,
        "custom_loss_seq_id": 0,
        "name": "probe",
        "inputs": [{"name": "logprobs", "rank": 1}, {"name": "adv", "rank": 1}],
        "graph": {"format": 1, "nodes": nodes},
        "type": "create_custom_loss",
    }
    return str(session.client.promise("create_custom_loss", body).result()["loss_id"])


@probe("An uploaded loss computes what its graph says, value and gradient")
def an_uploaded_loss_is_computed(suite: Suite) -> str:
    plain = suite.example()
    weights = np.linspace(-1, 1, 12).astype("<f4")
    custom = Example(plain.tokens, {"target_tokens": plain.inputs["target_tokens"], "adv": weights})
    with suite.session() as session:
        try:
            loss_id = _upload(session, _graph())
        except (Refused, Failed) as error:
            raise Skipped(f"the server takes no uploaded losses: {error}") from error
        output = session.run(suite.base_model).loss([custom], "custom", {"loss_id": loss_id})
        wanted = -float((output.logprobs[0] * weights).sum())
        check(abs(output.loss - wanted) <= 1e-3 * max(1.0, abs(wanted)), f"loss:sum {output.loss}, graph {wanted}")
        total = output.metrics.get("custom/total:sum")
        check(total is not None and abs(total + wanted) <= 1e-3 * max(1.0, abs(wanted)), f"its own metric is {total}")
        uploaded = suite.effect(lambda run: run.loss([custom], "custom", {"loss_id": loss_id}))
    surrogate = Example(plain.tokens, {**plain.inputs, "weights": weights})
    entropy = suite.effect(lambda run: run.loss([surrogate]))
    return same_step(uploaded, entropy, "uploaded loss against cross entropy")


@probe("A graph that names anything but mathematics is refused, at its upload or at its first use")
def a_graph_cannot_run_code(suite: Suite) -> str:
    plain = suite.example()
    data = [Example(plain.tokens, {"target_tokens": plain.inputs["target_tokens"], "adv": np.ones(12, dtype="<f4")})]
    try:
        with suite.session() as session:
            _upload(session, _graph())
    except (Refused, Failed) as error:
        raise Skipped(f"the server takes no uploaded losses: {error}") from error
    details = []
    for target in ("os.system", "builtins.eval", "torch.load", "operator.attrgetter"):
        with suite.session() as session:

            def attempt(session: Session = session, target: str = target) -> None:
                loss_id = _upload(session, _graph(target))
                session.run(suite.base_model).loss(data, "custom", {"loss_id": loss_id})

            details.append(check_refused(attempt, target))
    return details[0]

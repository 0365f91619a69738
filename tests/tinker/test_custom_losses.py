"""forward_backward_custom and uploaded losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinker
from tinker import _proto, types

torch = pytest.importorskip("torch")


def weights_of(call: Any) -> list[np.ndarray]:
    return [np.frombuffer(datum.loss_fn_inputs["weights"].dense, dtype="<f4") for datum in call.fb.data]


def squared(data: Any, logprobs: Any) -> Any:
    loss = sum((lp**2).sum() for lp in logprobs)
    return loss, {"custom_metric": float(len(data))}


def test_the_derivative_becomes_weights(server: Any, training: Any, datum: Any) -> None:
    result = training.forward_backward_custom([datum(3), datum(2)], squared).result(20)
    forward, backward = server.calls("forward_backward")
    assert (forward.fb.forward_only, backward.fb.forward_only) == (True, False)
    assert (forward.fb.seq_id, backward.fb.seq_id) == (1, 2)
    assert forward.fb.loss_fn == backward.fb.loss_fn == "cross_entropy"
    assert [w.tolist() for w in weights_of(backward)] == [[1.0] * 3, [1.0] * 2]  # -d(lp^2)/dlp at lp = -0.5
    assert result.metrics == {"surrogate_loss:sum": 3.0, "custom_metric": 2.0, "loss:sum": pytest.approx(5 * 0.25)}
    assert len(result.loss_fn_outputs) == 2


def test_only_targets_and_weights_are_sent(server: Any, training: Any, datum: Any) -> None:
    data = [datum(3, target_tokens=[1, 2, 3], advantages=[1.0, 1.0, 1.0])]
    training.forward_backward_custom(data, squared).result(20)
    forward, _ = server.calls("forward_backward")
    (sent,) = forward.fb.data
    assert set(sent.loss_fn_inputs) == {"target_tokens", "weights"}
    assert weights_of(forward)[0].tolist() == [0.0] * 3


def test_the_loss_sees_the_datums_as_given(training: Any, datum: Any) -> None:
    seen = []

    def loss(data: Any, logprobs: Any) -> Any:
        seen.extend(data)
        assert all(lp.requires_grad for lp in logprobs)
        return logprobs[0].sum() * 0 + 1, {}

    given = datum(2, target_tokens=[1, 2], advantages=[3.0, 4.0])
    training.forward_backward_custom([given], loss).result(20)
    assert seen == [given] and "advantages" in seen[0].loss_fn_inputs


def test_numbers_of_both_phases_are_reserved_at_once(server: Any, datum: Any) -> None:
    server.flags = {"fwdbwd_max_chunk_len": 2}
    client = tinker.ServiceClient(base_url=server.url).create_lora_training_client("m").result(10)
    custom = client.forward_backward_custom([datum(n) for n in (1, 2, 3, 4, 5)], squared)
    step = client.optim_step(types.AdamParams())
    custom.result(20)
    step.result(20)
    calls = server.calls("forward_backward")
    assert sorted(call.fb.seq_id for call in calls if call.fb.forward_only) == [1, 2, 3]
    assert sorted(call.fb.seq_id for call in calls if not call.fb.forward_only) == [4, 5, 6]
    sizes = {call.fb.seq_id: len(call.fb.data) for call in calls}
    assert [sizes[n] for n in range(1, 7)] == [2, 2, 1, 2, 2, 1]
    assert server.calls("optim_step")[0].json["seq_id"] == 7


def test_a_loss_that_raises_ends_the_client(server: Any, training: Any, datum: Any) -> None:
    def broken(data: Any, logprobs: Any) -> Any:
        raise ZeroDivisionError("mine")

    failed = training.forward_backward_custom([datum()], broken)
    queued = training.optim_step(types.AdamParams())
    with pytest.raises(ZeroDivisionError, match="mine"):
        failed.result(20)
    for future in (queued, training.optim_step(types.AdamParams())):
        with pytest.raises(RuntimeError, match="previous request failed"):
            future.result(20)
    assert server.calls("optim_step") == []


@pytest.mark.parametrize("value", [3.0, "x", torch.zeros(2)])
def test_a_loss_must_be_a_scalar_tensor(training: Any, datum: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="scalar"):
        training.forward_backward_custom([datum()], lambda data, logprobs: (value, {})).result(20)


def test_arguments_are_checked_at_the_call(server: Any, training: Any, datum: Any) -> None:
    with pytest.raises(ValueError, match="target_tokens"):
        training.forward_backward_custom([datum(2, weights=[1.0, 1.0])], squared)
    with pytest.raises(ValueError, match="Datum"):
        training.forward_backward_custom([], squared)
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match="loss_type_input"):
        training.forward_backward_custom([datum()], squared, loss_type_input="logits")
    with pytest.warns(FutureWarning):
        training.forward_backward_custom([datum()], squared, loss_type_input="logprobs").result(20)
    assert server.calls("forward_backward")[0].fb.seq_id == 1  # refused calls use no number


def test_shapes_of_logprobs_are_kept(server: Any, mock: Any, training: Any, datum: Any) -> None:
    message = _proto.ForwardBackwardOutput()
    field = message.loss_fn_outputs.add(num_datums=1).fields["logprobs"]
    field.data, field.dtype = np.arange(6, dtype="<f4").tobytes(), _proto.DTYPE_FLOAT32
    field.offsets, field.trailing_shape[:] = np.array([0, 24], dtype="<i8").tobytes(), [2]
    message.metrics["loss:sum"] = 1
    answer = mock.Answer(body=message.SerializeToString(), headers=mock.PROTO_HEADERS)
    server.script("retrieve_future", answer)
    shapes = []

    def loss(data: Any, logprobs: Any) -> Any:
        shapes.append(tuple(logprobs[0].shape))
        return logprobs[0].sum(), {}

    data = [datum(3, target_tokens=np.ones((3, 2), dtype=np.int64))]
    training.forward_backward_custom(data, loss).result(20)
    assert shapes == [(3, 2)]
    (sent,) = server.calls("forward_backward")[1].fb.data
    assert list(sent.loss_fn_inputs["weights"].shape) == [3, 2]


# -- handles -------------------------------------------------------------------------------------------------------
def reinforce(logprobs: Any, adv: Any) -> Any:
    loss = -(torch.exp(logprobs) * adv).sum()
    return loss, {"custom/x:sum": loss, "custom/y:mean": adv.mean()}


def test_a_traced_loss_runs_here_if_the_server_does_not(server: Any, training: Any, service: Any, datum: Any) -> None:
    handle = service.create_custom_loss(reinforce, {"logprobs": 1, "adv": 1}).result(20)
    assert (handle.loss_id, handle.input_names, handle.name) == (None, ("logprobs", "adv"), "reinforce")
    assert server.calls("create_custom_loss") == []
    data = [datum(2, target_tokens=[1, 2], adv=np.array([a, a], dtype=np.float32)) for a in (1.0, 3.0)]
    result = training.forward_backward_custom(data, handle).result(20)
    weight = math.exp(-0.5)
    _, backward = server.calls("forward_backward")
    assert [w.tolist() for w in weights_of(backward)] == [
        pytest.approx([weight] * 2),
        pytest.approx([3 * weight] * 2),
    ]
    assert result.metrics["custom/y:mean"] == pytest.approx(2.0)
    assert result.metrics["custom/x:sum"] == result.metrics["loss:sum"] == pytest.approx(-8 * weight, rel=1e-5)


def test_a_loss_is_uploaded_if_the_server_runs_it(server: Any, datum: Any) -> None:
    server.flags = {"custom_loss_server_side": True}
    service = tinker.ServiceClient(base_url=server.url)
    training = service.create_lora_training_client("m").result(10)
    handle = service.create_custom_loss(reinforce, {"logprobs": 1, "adv": 1}).result(20)
    assert handle.loss_id == "loss-1"
    (call,) = server.calls("create_custom_loss")
    body = call.json
    assert {k: body[k] for k in ("session_id", "custom_loss_seq_id", "name", "inputs", "type")} == {
        "session_id": "sess-abc",
        "custom_loss_seq_id": 0,
        "name": "reinforce",
        "inputs": [{"name": "logprobs", "rank": 1}, {"name": "adv", "rank": 1}],
        "type": "create_custom_loss",
    }
    nodes = body["graph"]["nodes"]
    assert body["graph"]["format"] == 1
    assert nodes[0] == {
        "op": "placeholder",
        "name": "logprobs",
        "target": "logprobs",
        "args": [],
        "kwargs": {},
    }
    assert [node["target"] for node in nodes if node["op"] == "call_function"][:2] == ["torch.exp", "operator.mul"]
    assert nodes[-1]["args"] == [
        {"tuple": [{"ref": "neg"}, {"dict": {"custom/x:sum": {"ref": "neg"}, "custom/y:mean": {"ref": "mean"}}}]}
    ]
    data = [datum(2, target_tokens=[1, 2], adv=np.ones(2, dtype=np.float32))]
    training.forward_backward_custom(data, handle).result(20)
    (sent,) = server.calls("forward_backward")
    assert sent.fb.loss_fn == "custom" and sent.fb.loss_fn_config_v2["loss_id"].text == "loss-1"
    assert set(sent.fb.data[0].loss_fn_inputs) == {"target_tokens", "adv"}


def test_arguments_of_nodes_travel(service: Any) -> None:
    from tinker._loss_graph import encode_argument

    assert encode_argument(float("inf")) == {"float": "inf"} and encode_argument(float("-inf")) == {"float": "-inf"}
    assert encode_argument(float("nan")) == {"float": "nan"}
    assert encode_argument((1, [2.5, None, True])) == {"tuple": [1, [2.5, None, True]]}
    assert encode_argument(slice(1, None, 2)) == {"slice": [1, None, 2]}
    assert encode_argument(...) == {"ellipsis": True}
    assert encode_argument(torch.float32) == {"dtype": "torch.float32"}
    assert encode_argument(torch.device("cpu")) == {"device": "cpu"}
    assert encode_argument(torch.strided) == {"layout": "torch.strided"}
    assert encode_argument({"a": 1}) == {"dict": {"a": 1}}
    for bad in (torch.zeros(1), object()):
        with pytest.raises(ValueError):
            encode_argument(bad)


def _bad_first(lp: Any) -> Any:
    return lp.sum(), {}


def _default(logprobs: Any, x: Any = 1) -> Any:
    return logprobs.sum(), {}


def _upper(logprobs: Any, Adv: Any) -> Any:
    return logprobs.sum(), {}


def _star(logprobs: Any, *more: Any) -> Any:
    return logprobs.sum(), {}


def _no_dict(logprobs: Any) -> Any:
    return logprobs.sum()


def _bad_key(logprobs: Any) -> Any:
    return logprobs.sum(), {"x:sum": logprobs.sum()}


def _item(logprobs: Any) -> Any:
    return logprobs.sum() * logprobs.sum().item(), {}


def _branches(logprobs: Any) -> Any:
    return (logprobs.sum() if logprobs.sum() > 0 else -logprobs.sum()), {}


def _captures(logprobs: Any) -> Any:
    return (logprobs * torch.ones(1)).sum() + CAPTURED.sum(), {}


CAPTURED = torch.ones(2)


@pytest.mark.parametrize(
    ("fn", "ranks", "message"),
    [
        (_bad_first, {"lp": 1}, "'logprobs'"),
        (_default, {"logprobs": 1, "x": 0}, "default"),
        (_upper, {"logprobs": 1, "Adv": 1}, "Adv"),
        (_star, {"logprobs": 1, "more": 1}, "positional"),
        (_no_dict, {"logprobs": 1}, "must return"),
        (_bad_key, {"logprobs": 1}, "custom/<name>"),
        (_item, {"logprobs": 1}, "item"),
        (_branches, {"logprobs": 1}, "traced"),
        (_captures, {"logprobs": 1}, "capture"),
        (reinforce, {"logprobs": 1}, "input_ranks"),
        (reinforce, {"logprobs": 0, "adv": 1}, "1 or 2"),
        (reinforce, {"logprobs": 1, "adv": 3}, "0, 1 or 2"),
    ],
)
def test_losses_that_do_not_fit_are_refused(server: Any, service: Any, fn: Any, ranks: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        service.create_custom_loss(fn, ranks)
    assert server.requests == []


def test_inputs_of_a_handle_are_checked(server: Any, training: Any, service: Any, datum: Any) -> None:
    handle = service.create_custom_loss(reinforce, {"logprobs": 1, "adv": 1}).result(20)
    with pytest.raises(ValueError, match="'adv'"):
        training.forward_backward_custom([datum(2, target_tokens=[1, 2])], handle).result(20)

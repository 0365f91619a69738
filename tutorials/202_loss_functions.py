import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="202 Loss functions")

with app.setup:
    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np
    import torch
    from backend import connect

    import tinker


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 202 · Loss functions

    A loss is a **sum over tokens** of a function of the logprob that the model gives to the target token. The server does
    nothing else: no mean, no mask, no clipping that you did not ask for. So every number can be checked by hand, and this
    notebook does.

    With p the trainer's logprob, q the sampler's, A the advantage, r = exp(p − q):

    | `loss_fn` | minimised, per token | options |
    |---|---|---|
    | `cross_entropy` | −w·p | |
    | `importance_sampling` | −r·A | |
    | `ppo` | −min(r·A, clip(r)·A) | `clip_low_threshold` 0.8, `clip_high_threshold` 1.2 |
    | `cispo` | −stop_gradient(clip(r))·A·p | 0.0, 4.0 |
    | `dro` | −(p·A − β/2·(p − q)²) | `beta` 0.05 |
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    client = await service.create_lora_training_client(base_model=server.model, rank=8, seed=0)
    tokens = server.renderer.tokenizer.encode("Losses are sums over tokens.")
    n = len(tokens) - 1
    return client, n, server, service, tokens


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The same number by hand

    Logprobs come back with every forward pass, so one pass gives p. We make up a sampler that was a little different.
    """)
    return


@app.cell
async def _(client, n, tokens):
    def datum(**inputs):
        """One sequence with its loss inputs."""
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], **{k: np.asarray(v, np.float32) for k, v in inputs.items()}},
        )

    rng = np.random.default_rng(0)
    weights = rng.uniform(0, 1, n)
    scored = await client.forward([datum(weights=weights)], "cross_entropy")
    p = scored.loss_fn_outputs[0]["logprobs"].to_numpy().astype(np.float64)
    q = p - rng.normal(0, 0.4, n)
    advantages = rng.normal(0, 1, n)
    r = np.exp(p - q)
    expected = {
        "cross_entropy": -(weights * p).sum(),
        "importance_sampling": -(r * advantages).sum(),
        "ppo": -np.minimum(r * advantages, np.clip(r, 0.8, 1.2) * advantages).sum(),
        "cispo": -(np.clip(r, 0.0, 4.0) * advantages * p).sum(),
        "dro": -(p * advantages - 0.5 * 0.05 * (p - q) ** 2).sum(),
    }
    return advantages, datum, expected, q, weights


@app.cell
async def _(advantages, client, datum, expected, q, weights):
    for _name, _value in expected.items():
        _datum = datum(weights=weights) if _name == "cross_entropy" else datum(logprobs=q, advantages=advantages)
        _result = await client.forward([_datum], _name)
        print(f"{_name:20} server {_result.metrics['loss:sum']:10.5f}   by hand {_value:10.5f}")
        assert abs(_result.metrics["loss:sum"] - _value) < 1e-3 * max(1.0, abs(_value))
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What clipping does

    The push on a token is the slope of its loss in p. PPO's goes to zero once the ratio has moved past the threshold in the
    direction of the advantage; CISPO limits the *weight* instead, so no token ever loses its gradient.
    """)
    return


@app.cell
def _():
    ratio = np.linspace(0.2, 2.0, 200)
    figure, _axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
    for _axis, _a in zip(_axes, (1.0, -1.0), strict=True):
        _axis.plot(ratio, ratio * _a, label="importance_sampling")
        _clipped = ratio * _a > np.clip(ratio, 0.8, 1.2) * _a
        _axis.plot(ratio, np.where(_clipped, 0.0, ratio * _a), label="ppo")
        _axis.plot(ratio, np.clip(ratio, 0.0, 1.2) * _a, "--", label="cispo, high 1.2")
        _axis.set_title(f"advantage {_a:+.0f}")
        _axis.set_xlabel("ratio")
    _axes[0].set_ylabel("push on the logprob")
    _axes[0].legend()
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Options

    `loss_fn_config` is sent as it is. An unknown option is refused by name.
    """)
    return


@app.cell
async def _(advantages, client, datum, expected, q):
    _loose = await client.forward(
        [datum(logprobs=q, advantages=advantages)], "ppo", {"clip_low_threshold": 0.0, "clip_high_threshold": 100.0}
    )
    assert abs(_loose.metrics["loss:sum"] - expected["importance_sampling"]) < 1e-3
    try:
        _ = await client.forward([datum(logprobs=q, advantages=advantages)], "ppo", {"clip_range": 0.2})
    except tinker.TinkerError as _error:
        print(_error)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A loss of your own

    `forward_backward_custom` gives your function the logprobs as torch tensors and sends the gradient back: one more
    forward pass, any loss. Here: cross-entropy on the worst half of the tokens only.
    """)
    return


@app.cell
async def _(client, datum, n, server):
    def worst_half(data, logprobs):
        """Mean loss of the tokens that the model likes least."""
        losses = [-lp.sort().values[: len(lp) // 2].mean() for lp in logprobs]
        loss = torch.stack(losses).sum()
        return loss, {"worst_half": float(loss.detach())}

    history = []
    for _ in range(12):
        _passed = client.forward_backward_custom([datum(weights=np.ones(n))], worst_half)
        _update = client.optim_step(tinker.AdamParams(learning_rate=server.learning_rate / 4))
        history.append((await _passed).metrics["worst_half"])
        await _update
    print([round(value, 3) for value in history])
    assert history[-1] < history[0]
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The same, computed by the server

    `create_custom_loss` records the function and uploads it where the server offers that: no second pass. It sees one datum,
    may use torch operations, and names its metrics `custom/<name>:sum` or `:mean`.
    """)
    return


@app.cell
async def _(client, datum, n, service):
    def squared(logprobs, weights):
        """A loss that looks harder at unlikely tokens."""
        loss = (weights * logprobs.square()).sum()
        return loss, {"custom/squared:sum": loss}

    handle = await service.create_custom_loss(squared, {"logprobs": 1, "weights": 1})
    _result = await client.forward_backward_custom([datum(weights=np.ones(n))], handle)
    print(_result.metrics)
    return


if __name__ == "__main__":
    app.run()

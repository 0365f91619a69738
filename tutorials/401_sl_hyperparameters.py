import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="401 Hyper-parameters of supervised runs")

with app.setup:
    import asyncio

    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np
    from backend import connect

    import tinker
    from tinker_cookbook.hyperparam_utils import get_lora_param_count, get_lr
    from tinker_cookbook.renderers import Message
    from tinker_cookbook.supervised.common import compute_mean_nll
    from tinker_cookbook.supervised.data import conversation_to_datum
    from tinker_cookbook.utils.lr_scheduling import compute_schedule_lr_multiplier


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 401 · Hyper-parameters of supervised runs

    Four numbers matter, in this order: **learning rate**, **batch size**, **number of steps**, **LoRA rank**. One server trains
    several runs on one base model at once, so a sweep is a `gather`.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    _words = [
        "ash",
        "bay",
        "elm",
        "fir",
        "oak",
        "yew",
        "fig",
        "ivy",
        "rue",
        "hop",
        "sun",
        "sky",
        "sea",
        "fog",
        "ice",
        "dew",
    ]
    conversations = [
        [Message(role="user", content=f"Rhyme {i} on {w}."), Message(role="assistant", content=f"{w} {w[::-1]}")]
        for i, w in enumerate(_words)
    ]
    data = [conversation_to_datum(conversation, renderer, 128) for conversation in conversations]
    train, held_out = data[:12], data[12:]

    def nll(output, batch):
        """Mean loss of a trained token."""
        logprobs = [row["logprobs"] for row in output.loss_fn_outputs]
        return compute_mean_nll(logprobs, [datum.loss_fn_inputs["weights"] for datum in batch])

    async def run(rate, rank=8, batch_size=12, steps=16, schedule="linear"):
        """Losses of each step, and the held-out loss at the end."""
        client = await service.create_lora_training_client(base_model=server.model, rank=rank, seed=0)
        losses = []
        for step in range(steps):
            batch = [train[(step * batch_size + i) % len(train)] for i in range(batch_size)]
            passed = client.forward_backward(batch, "cross_entropy")
            scale = compute_schedule_lr_multiplier(schedule, step, steps)
            update = client.optim_step(tinker.AdamParams(learning_rate=rate * scale))
            losses.append(nll(await passed, batch))
            await update
        return losses, nll(await client.forward(held_out, "cross_entropy"), held_out)

    return run, server


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Learning rate

    Too low learns nothing, too high destroys, and between the two lies a plateau of a factor of three or so. Sweep in factors
    of three around the rule of thumb and take the largest rate that is still smooth.
    """)
    return


@app.cell
async def _(run, server):
    rates = [server.learning_rate * 3.0**k for k in (-3, -2, -1, 0, 1, 2)]
    sweep = await asyncio.gather(*(run(rate) for rate in rates))
    finals = [losses[-1] for losses, _ in sweep]
    for _rate, (_losses, _test) in zip(rates, sweep, strict=True):
        print(f"{_rate:9.2g}  train {_losses[-1]:.3f}  held out {_test:.3f}")
    best = rates[int(np.argmin(finals))]
    assert finals[0] > min(finals)
    return best, finals, rates, sweep


@app.cell
def _(finals, rates, sweep):
    figure, _axes = plt.subplots(1, 2, figsize=(9, 3))
    for _rate, (_losses, _) in zip(rates, sweep, strict=True):
        _axes[0].plot(_losses, label=f"{_rate:.1e}")
    _axes[0].set_xlabel("step")
    _axes[0].set_ylabel("train nll")
    _axes[0].legend(fontsize=7)
    _axes[1].semilogx(rates, finals, marker="o", label="train")
    _axes[1].semilogx(rates, [test for _, test in sweep], marker="o", label="held out")
    _axes[1].set_xlabel("learning rate")
    _axes[1].legend()
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    The two curves on the right are not alike: sixteen examples seen sixteen times are remembered, not understood. Choose on
    held-out data.

    ## The rule of thumb

    `get_lr` scales a rate that was fitted on model families with the size of the model. LoRA wants about **ten times** the rate
    of full fine-tuning. For a model it has no rule for, it says so instead of guessing.
    """)
    return


@app.cell
def _(server):
    try:
        print(get_lr(server.model))
    except (NotImplementedError, ValueError) as _error:
        print(_error)
    print({name: f"{get_lr(name):.1e}" for name in ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B")})
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Batch size

    Losses are sums, and `conversation_to_datum` makes each *example* count 1. Adam divides by the size of the gradient, so
    a larger batch takes steps of the same length in a better direction. With the number of **examples** fixed, small batches
    make more steps.
    """)
    return


@app.cell
async def _(best, run):
    _sizes = (2, 4, 12)
    _batches = await asyncio.gather(*(run(best / 2, batch_size=size, steps=96 // size) for size in _sizes))
    for _size, (_losses, _test) in zip(_sizes, _batches, strict=True):
        print(f"batch {_size:3}  {len(_losses):3} steps  train {np.mean(_losses[-2:]):.3f}  held out {_test:.3f}")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Rank

    Rank is capacity. For a few thousand examples 8 to 32 is enough; more rank costs memory and hardly changes the best
    learning rate. `get_lora_param_count` says how many numbers are trained.
    """)
    return


@app.cell
async def _(best, run, server):
    _ranks = (1, 4, 16, 64)
    _capacity = await asyncio.gather(*(run(best, rank=rank) for rank in _ranks))
    for _rank, (_losses, _test) in zip(_ranks, _capacity, strict=True):
        _size = get_lora_param_count(server.model_folder, lora_rank=_rank)
        print(f"rank {_rank:3}  {_size:9,} parameters  train {_losses[-1]:.3f}  held out {_test:.3f}")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Schedule

    `linear` to zero is the default and hard to beat; `constant` when you do not know when you will stop.
    """)
    return


@app.cell
async def _(best, run):
    _schedules = ("linear", "cosine", "constant")
    for _name, (_losses, _test) in zip(
        _schedules, await asyncio.gather(*(run(best, schedule=name) for name in _schedules)), strict=True
    ):
        print(f"{_name:9} train {_losses[-1]:.3f}  held out {_test:.3f}")
    return


if __name__ == "__main__":
    app.run()

import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="103 Async patterns")

with app.setup:
    import asyncio
    import time

    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    import tinker


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 103 · Async patterns

    Every method of a client returns **at once** with a future. The work goes on in the background whether somebody waits
    or not. A training program is fast when it keeps the server's queue filled, and this notebook shows the three habits
    that do it.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    sampler = await service.create_sampling_client(base_model=server.model)
    client = await service.create_lora_training_client(base_model=server.model, rank=8, seed=0)
    tokens = server.renderer.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 4)
    prompt = tinker.ModelInput.from_ints(tokens)
    return client, prompt, sampler, tokens


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Habit 1: gather what is independent

    Samples do not depend on one another. Sent together they are decoded in one batch.
    """)
    return


@app.cell
async def _(prompt, sampler):
    params = tinker.SamplingParams(max_tokens=48)

    async def timed(work):
        """Seconds that a piece of work takes."""
        started = time.perf_counter()
        await work
        return time.perf_counter() - started

    async def one_by_one(count):
        """Each sample waits for the one before it."""
        for _ in range(count):
            await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)

    async def together(count):
        """All samples are under way at once."""
        await asyncio.gather(
            *(sampler.sample(prompt=prompt, num_samples=1, sampling_params=params).coroutine() for _ in range(count))
        )

    await timed(together(2))  # warm up
    counts = [1, 2, 4, 8, 16]
    serial = [await timed(one_by_one(n)) for n in counts]
    parallel = [await timed(together(n)) for n in counts]
    return counts, parallel, params, serial, timed


@app.cell
def _(counts, parallel, serial):
    figure, _axis = plt.subplots(figsize=(6, 3))
    _axis.plot(counts, serial, marker="o", label="one by one")
    _axis.plot(counts, parallel, marker="o", label="together")
    _axis.set_xlabel("samples")
    _axis.set_ylabel("seconds")
    _axis.legend()
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    `num_samples=n` in one call goes further where the prompt is the same: it is read once.

    ## Habit 2: send the next step before reading the last

    Requests of one training client are executed **in the order of the calls**, so a step may be sent while the one before
    it is still being computed. Waiting after each call leaves the server idle for a round trip: milliseconds on one machine
    (where the two numbers below may come out either way), a large share of every step across a network.
    """)
    return


@app.cell
async def _(client, timed, tokens):
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    adam = tinker.AdamParams(learning_rate=1e-4)

    async def waiting(steps):
        """One request at a time."""
        for _ in range(steps):
            await client.forward_backward([datum], "cross_entropy")
            await client.optim_step(adam)

    async def pipelined(steps):
        """The queue of the server is never empty."""
        pending = None
        for _ in range(steps):
            submitted = (client.forward_backward([datum], "cross_entropy"), client.optim_step(adam))
            for future in pending or ():
                await future
            pending = submitted
        for future in pending or ():
            await future

    await timed(pipelined(2))  # warm up
    print(f"waiting {await timed(waiting(20)):.2f} s, pipelined {await timed(pipelined(20)):.2f} s")
    return adam, datum


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Habit 3: overlap sampling and training

    A sampler keeps its weights: a new one can be published while the old one still writes. That is how the asynchronous
    mode of `rl.train` works (`async_config`): sampling runs ahead of training by a bounded number of steps.
    """)
    return


@app.cell
async def _(adam, client, datum, params, prompt):
    old = await client.save_weights_and_get_sampling_client()
    _samples = [old.sample(prompt=prompt, num_samples=1, sampling_params=params) for _ in range(4)]
    _step = (client.forward_backward([datum], "cross_entropy"), client.optim_step(adam))
    new = client.save_weights_and_get_sampling_client()
    for _future in (*_samples, *_step):
        await _future
    fresh = await new
    print("the old sampler wrote while the new weights were made:", old is not fresh)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## In scripts, with timeouts, in tasks

    | you want | write |
    |---|---|
    | to wait in a script | `future.result()`, `future.result(timeout=30)`; a timeout leaves the work running |
    | to wait in async code | `await future`, `await future.result_async(timeout=30)`; a timeout cancels the work |
    | a coroutine for `gather` or `create_task` | `future.coroutine()` |
    | a `concurrent.futures.Future` | `future.future()` |

    Do not use `.result()` inside a coroutine: it blocks the loop, and with it everything else that you gather.
    """)
    return


@app.cell
async def _(prompt, sampler):
    late = sampler.sample(prompt=prompt, num_samples=1, sampling_params=tinker.SamplingParams(max_tokens=1500, stop=[]))
    try:
        _ = await late.result_async(timeout=0.001)
    except TimeoutError:
        print("too late: cancelled")
    return


if __name__ == "__main__":
    app.run()

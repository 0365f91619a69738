import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="102 First supervised run")

with app.setup:
    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    import tinker
    from tinker_cookbook.renderers import Message, TrainOnWhat
    from tinker_cookbook.supervised.common import compute_mean_nll
    from tinker_cookbook.supervised.data import conversation_to_datum


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 102 · First supervised run

    Show a model what to say and let it imitate. Four steps: **render** conversations to tokens, **forward_backward** for
    gradients, **optim_step** to move the weights, **sample** to look.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    return renderer, server, service


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Data

    Four facts about a country that does not exist, so nothing of it can be known beforehand.
    """)
    return


@app.cell
def _():
    facts = {
        "Capital?": "Lumen",
        "Animal?": "A red heron",
        "Dish?": "Pear soup",
        "River?": "The Ost",
    }
    conversations = [
        [Message(role="user", content=question), Message(role="assistant", content=answer)]
        for question, answer in facts.items()
    ]
    return conversations, facts


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## From a conversation to a datum

    The renderer writes the conversation as the model's family wants it and gives every token a weight: 1 where the model
    shall learn to write it, 0 where it only reads. `conversation_to_datum` shifts targets by one: at position *t* the model
    sees tokens up to *t* and is asked for token *t+1*. The server shifts and masks nothing; the weights are the whole story.
    """)
    return


@app.cell
def _(conversations, renderer):
    data = [conversation_to_datum(c, renderer, 256, TrainOnWhat.LAST_ASSISTANT_MESSAGE) for c in conversations]
    _targets = data[0].loss_fn_inputs["target_tokens"].to_numpy()
    _weights = data[0].loss_fn_inputs["weights"].to_numpy()
    for _token, _weight in zip(_targets, _weights, strict=True):
        print(f"{_weight:5.2f}  {renderer.tokenizer.decode([int(_token)])!r}")
    return (data,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A training client

    `create_lora_training_client` makes a LoRA on top of the base model: small matrices that are trained while the base
    stays as it is, so one server can train many runs on one base at once.
    """)
    return


@app.cell
async def _(server, service):
    client = await service.create_lora_training_client(base_model=server.model, rank=16, seed=0)
    before = await client.save_weights_and_get_sampling_client()
    return before, client


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The loop

    Both calls are sent before either is awaited: the server runs them one after the other without waiting for us.
    """)
    return


@app.cell
async def _(client, data, server):
    losses = []
    for _step in range(40):
        _pass = client.forward_backward(data, "cross_entropy")
        _update = client.optim_step(tinker.AdamParams(learning_rate=server.learning_rate))
        _output = await _pass
        await _update
        _logprobs = [output["logprobs"] for output in _output.loss_fn_outputs]
        losses.append(compute_mean_nll(_logprobs, [datum.loss_fn_inputs["weights"] for datum in data]))
    print(f"{losses[0]:.3f} -> {losses[-1]:.3f} nats per token")
    return (losses,)


@app.cell
def _(losses):
    figure, _axis = plt.subplots(figsize=(6, 3))
    _axis.plot(losses)
    _axis.set_xlabel("step")
    _axis.set_ylabel("mean negative log-likelihood")
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What it says now

    Weights of the training client are not visible to samplers until they are **published**: each
    `save_weights_and_get_sampling_client` gives a sampler with the weights as they are at that point, for ever.
    """)
    return


@app.cell
async def _(before, client, facts, losses, renderer):
    after = await client.save_weights_and_get_sampling_client()
    greedy = tinker.SamplingParams(max_tokens=24, temperature=0, stop=renderer.get_stop_sequences())

    async def ask(sampler, question):
        """The model's answer, as text."""
        prompt = renderer.build_generation_prompt([Message(role="user", content=question)])
        answer = await sampler.sample(prompt=prompt, num_samples=1, sampling_params=greedy)
        return renderer.parse_response(answer.sequences[0].tokens)[0]["content"]

    said = {question: (await ask(before, question), await ask(after, question)) for question in facts}
    for _question, (_old, _new) in said.items():
        print(f"{_question:10} before: {_old!r:60} after: {_new!r}")
    assert losses[-1] < losses[0] / 2
    return (ask,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Keeping it

    `save_state` keeps weights and optimizer to go on training; `save_weights_for_sampler` what sampling needs. Both return
    a `tinker://` path that a new session can open.
    """)
    return


@app.cell
async def _(ask, client, service):
    state = await client.save_state("facts")
    weights = await client.save_weights_for_sampler("facts")
    reopened = await service.create_sampling_client(model_path=weights.path)
    print(state.path, await ask(reopened, "Capital?"))
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    `sl_loop` (`python -m tinker_cookbook.recipes.sl_loop`) is this notebook as a recipe with schedules and checkpoints.
    Next: **103**, why nothing here waits.
    """)
    return


if __name__ == "__main__":
    app.run()

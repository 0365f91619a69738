import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="101 Hello, tinker")

with app.setup:
    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    import tinker
    from tinker_cookbook.tokenizer_utils import get_tokenizer


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 101 · Hello, tinker

    A Tinker server holds a model; your program holds the algorithm. Here we start a server, open a session, and let
    the model write. No training yet.

    The first cell starts a server on this machine with a **tiny model with random weights**: everything works, but it
    writes nonsense. `connect("smollm2")` gives the same notebook a model that speaks; a server of yours is used when
    `TINKER_BASE_URL` is set.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    print(server.base_url, server.model)
    return server, service


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A session and a sampler

    `ServiceClient` is one session with the server. From it come clients: a **sampling client** writes, a **training
    client** learns. Every call returns a future at once; `await` it in a notebook, call `.result()` in a script.
    """)
    return


@app.cell
async def _(server, service):
    capabilities = await tinker.RestClient().get_server_capabilities()
    print([entry.model_name for entry in capabilities.supported_models])
    sampler = await service.create_sampling_client(base_model=server.model)
    return (sampler,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Tokens in, tokens out

    The server speaks tokens, never text. The tokenizer is on your side, so nothing is hidden between what you write
    and what the model reads.
    """)
    return


@app.cell
async def _(sampler, server):
    tokenizer = get_tokenizer(server.model)
    prompt = tinker.ModelInput.from_ints(tokenizer.encode("Once upon a time"))
    response = await sampler.sample(
        prompt=prompt, num_samples=3, sampling_params=tinker.SamplingParams(max_tokens=12, seed=1)
    )
    for _sequence in response.sequences:
        print(_sequence.stop_reason, repr(tokenizer.decode(_sequence.tokens)))
    return prompt, response, tokenizer


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Every token comes with its log-probability

    The logprob is that of the distribution the token was drawn from. Reinforcement learning is built on this number,
    so the sampler returns it always. Low bars are surprises.
    """)
    return


@app.cell
def _(response, tokenizer):
    _first = response.sequences[0]
    figure, _axis = plt.subplots(figsize=(8, 2.5))
    _axis.bar(range(len(_first.tokens)), _first.logprobs)
    _axis.set_xticks(range(len(_first.tokens)), [repr(tokenizer.decode([t])) for t in _first.tokens], rotation=60)
    _axis.set_ylabel("log-probability")
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Knobs

    `temperature=0` takes the likeliest token each time; with `seed` a draw can be repeated; `stop` ends at a text or a
    token; `max_tokens` is the limit. `compute_logprobs` scores a text instead of writing one.
    """)
    return


@app.cell
async def _(prompt, sampler, tokenizer):
    greedy = tinker.SamplingParams(max_tokens=8, temperature=0)
    answers = [await sampler.sample(prompt=prompt, num_samples=1, sampling_params=greedy) for _ in range(2)]
    assert answers[0].sequences[0].tokens == answers[1].sequences[0].tokens
    scores = await sampler.compute_logprobs(prompt)
    print(repr(tokenizer.decode(answers[0].sequences[0].tokens)), scores)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What you have now

    | object | what it is |
    |---|---|
    | `ServiceClient` | one session |
    | `SamplingClient` | writes with fixed weights |
    | `ModelInput` | a prompt in tokens |
    | `SamplingParams` | how to draw |
    | `response.sequences[i]` | `tokens`, `logprobs`, `stop_reason` |

    Next: **102**, the first training run.
    """)
    return


if __name__ == "__main__":
    app.run()

import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="203 Completers")

with app.setup:
    import asyncio

    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    import tinker
    from tinker_cookbook.completers import (
        MessageCompleter,
        TinkerMessageCompleter,
        TinkerTokenCompleter,
        TokenCompleter,
        TokensWithLogprobs,
        seed_scope,
    )
    from tinker_cookbook.renderers import Message, get_text_content


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 203 · Completers

    A **completer** is a policy as a function. Environments, evaluations and graders ask for one and do not care what is
    behind it: a sampler, a script, a human, a committee.

    | class | in | out |
    |---|---|---|
    | `TokenCompleter` | `ModelInput`, stop condition | `TokensWithLogprobs` |
    | `MessageCompleter` | messages | a message |
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    sampler = await service.create_sampling_client(base_model=server.model)
    renderer = server.renderer
    question = [Message(role="user", content="Name a colour.")]
    prompt = renderer.build_generation_prompt(question)
    return prompt, question, renderer, sampler


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Tokens

    What reinforcement learning uses: the logprobs are there, and nothing is parsed.
    """)
    return


@app.cell
async def _(prompt, renderer, sampler):
    policy = TinkerTokenCompleter(sampler, max_tokens=10)
    sampled = await policy(prompt, renderer.get_stop_sequences())
    print(sampled.stop_reason, renderer.tokenizer.decode(sampled.tokens), [round(x, 2) for x in sampled.logprobs])
    return (policy,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Messages

    What graders, opponents and simulated users use: it renders, samples and parses. Tool calls that cannot be read stay in
    the message as `unparsed_tool_calls`.
    """)
    return


@app.cell
async def _(question, renderer, sampler):
    chat = TinkerMessageCompleter(sampler, renderer, max_tokens=10, temperature=0.7)
    print(await chat(question))
    return (chat,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Repeatable draws

    Inside `seed_scope(key)` every sample has a seed that follows from the key and the number of the call. Two runs with one
    key draw the same tokens, however the calls are scheduled.
    """)
    return


@app.cell
async def _(policy, prompt, renderer):
    async def draws(key):
        """Three answers under one key."""
        with seed_scope("tutorial", key):
            return [(await policy(prompt, renderer.get_stop_sequences())).tokens for _ in range(3)]

    first, again, other = await draws(1), await draws(1), await draws(2)
    assert first == again and first != other
    print("same key, same tokens; another key, other tokens")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Your own

    A completer is one method. **Best of n** asks another policy several times and keeps the answer with the best score:
    search at the time of sampling, without any training.
    """)
    return


@app.cell
async def _(chat, question):
    class BestOf(MessageCompleter):
        """The best of several answers by a score."""

        def __init__(self, inner, n, score):
            self.inner, self.n, self.score = inner, n, score

        async def __call__(self, messages):
            answers = await asyncio.gather(*(self.inner(messages) for _ in range(self.n)))
            return max(answers, key=lambda answer: self.score(get_text_content(answer)))

    def letters(text):
        """Share of letters."""
        return sum(c.isalpha() for c in text) / max(len(text), 1)

    async def mean_score(n, attempts=6):
        """What best of n reaches on average."""
        answers = await asyncio.gather(*(BestOf(chat, n, letters)(question) for _ in range(attempts)))
        return sum(letters(get_text_content(answer)) for answer in answers) / attempts

    sizes = [1, 2, 4, 8]
    scores = [await mean_score(n) for n in sizes]
    return scores, sizes


@app.cell
def _(scores, sizes):
    figure, _axis = plt.subplots(figsize=(5, 3))
    _axis.plot(sizes, scores, marker="o")
    _axis.set_xlabel("n")
    _axis.set_ylabel("share of letters, best of n")
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A policy without a model

    A script with the same interface makes environments testable in milliseconds (**302** does that).
    """)
    return


@app.cell
async def _(prompt, renderer):
    class Parrot(TokenCompleter):
        """Says one text, always."""

        def __init__(self, text):
            self.text = text

        async def __call__(self, model_input, stop):

            tokens = renderer.tokenizer.encode(self.text) + [stop[0]]
            return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))

    _said = await Parrot("Blue")(prompt, renderer.get_stop_sequences())
    print(renderer.parse_response(_said.tokens))
    return


if __name__ == "__main__":
    app.run()

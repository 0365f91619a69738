import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="404 Sequence extension")

with app.setup:
    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    import tinker
    from tinker_cookbook import renderers
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.renderers import Message, TextPart, ThinkingPart
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.types import Trajectory, Transition


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 404 · Sequence extension

    An episode of ten turns can be trained as **one** sequence, or as ten. If the prompt of each turn begins with everything
    seen so far, turns share a datum and each token is computed once. If not, every turn repeats the history, and cost grows
    with the square of the number of turns.

    `trajectory_to_data` decides by looking at the tokens; you decide by the renderer and the environment.
    """)
    return


@app.cell
async def _():
    server = await connect()
    tokenizer = server.renderer.tokenizer
    return (tokenizer,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The same episode through two renderers

    `qwen3_instruct` writes history as it was sampled. `qwen3` drops the thoughts of earlier turns: shorter prompts, but no
    extension. We play an episode with a scripted model, so that tokens are the same for everyone.
    """)
    return


@app.cell
def _(tokenizer):
    def episode(renderer, turns, thoughts):
        """A trajectory of a scripted model that thinks before it speaks, or does not."""
        messages, transitions = [Message(role="user", content="Count.")], []
        for turn in range(turns):
            prompt = renderer.build_generation_prompt(messages)
            thought = "<think>\nmore\n</think>\n\n" if thoughts else ""
            tokens = tokenizer.encode(f"{thought}{turn}") + renderer.get_stop_sequences()
            action = TokensWithLogprobs(tokens=tokens, maybe_logprobs=[-1.0] * len(tokens))
            transitions.append(Transition(ob=prompt, ac=action, reward=1.0, episode_done=turn == turns - 1))
            parts = [ThinkingPart(type="thinking", thinking="more"), TextPart(type="text", text=str(turn))]
            messages += [
                Message(role="assistant", content=parts if thoughts else str(turn)),
                Message(role="user", content="Next."),
            ]
        return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())

    def trained_tokens(trajectory):
        """Number of data, and positions that the trainer computes."""
        data = trajectory_to_data(trajectory, 1.0)
        return len(data), sum(datum.model_input.length for datum in data)

    keeps = renderers.get_renderer("qwen3_instruct", tokenizer)
    drops = renderers.get_renderer("qwen3", tokenizer)
    print("qwen3_instruct", keeps.has_extension_property, trained_tokens(episode(keeps, 8, thoughts=False)))
    print("qwen3         ", drops.has_extension_property, trained_tokens(episode(drops, 8, thoughts=True)))
    assert trained_tokens(episode(keeps, 8, thoughts=False))[0] == 1
    assert trained_tokens(episode(drops, 8, thoughts=True))[0] == 8
    return drops, episode, keeps, trained_tokens


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What it costs
    """)
    return


@app.cell
def _(drops, episode, keeps, trained_tokens):
    turns = [1, 2, 4, 8, 16, 24]
    figure, _axis = plt.subplots(figsize=(6, 3))
    _axis.plot(
        turns, [trained_tokens(episode(keeps, n, thoughts=False))[1] for n in turns], marker="o", label="extension"
    )
    _axis.plot(
        turns, [trained_tokens(episode(drops, n, thoughts=True))[1] for n in turns], marker="o", label="no extension"
    )
    _axis.set_xlabel("turns")
    _axis.set_ylabel("tokens computed by the trainer")
    _axis.legend()
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Inside one datum

    Observation tokens have advantage 0 and mask 0, sampled ones 1: the loss sees what the model wrote and nothing else.
    """)
    return


@app.cell
def _(episode, keeps, tokenizer):
    _datum = trajectory_to_data(episode(keeps, 3, thoughts=False), 1.0)[0]
    for _token, _mask in zip(
        _datum.loss_fn_inputs["target_tokens"].data, _datum.loss_fn_inputs["mask"].data, strict=True
    ):
        print(f"{tokenizer.decode([int(_token)])!r}:{int(_mask)}", end=" ")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## How extension breaks by accident

    * **Re-encoding.** `encode(decode(tokens))` need not give the same tokens. Environments must build the next prompt from
      the renderer, and agents must pass back what was sampled.
    * **A changing prefix**: a date, a tool list or a system prompt that differs from turn to turn.
    * **History that is edited**: truncated tool output, dropped messages, roles the renderer does not know.

    Check it: the number of data of an episode is the number of times its history was rewritten, plus one.
    """)
    return


@app.cell
def _(episode, keeps, trained_tokens):
    _trajectory = episode(keeps, 6, thoughts=False)
    _edited = [
        Transition(
            ob=tinker.ModelInput.from_ints([*turn.ob.to_ints()[:2], 5 + i, *turn.ob.to_ints()[3:]]),
            ac=turn.ac,
            reward=1.0,
            episode_done=turn.episode_done,
        )
        for i, turn in enumerate(_trajectory.transitions)
    ]
    print(
        "untouched",
        trained_tokens(_trajectory),
        "edited",
        trained_tokens(Trajectory(_edited, tinker.ModelInput.empty())),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    Families with reasoning offer variants that keep it (`qwen3_5_preserve_thinking`): longer prompts, but one datum. For long
    agent episodes that is usually the better bargain.
    """)
    return


if __name__ == "__main__":
    app.run()

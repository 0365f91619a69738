import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="201 Rendering")

with app.setup:
    import html

    import marimo as mo
    from backend import connect

    from tinker_cookbook import renderers
    from tinker_cookbook.renderers import Message, TextPart, ThinkingPart, TrainOnWhat


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 201 · Rendering

    A **renderer** is the border between messages and tokens, in both directions:

    | method | from | to |
    |---|---|---|
    | `build_generation_prompt` | messages | the prompt after which the model speaks |
    | `build_supervised_example` | messages | tokens, and a weight for each |
    | `get_stop_sequences` | | where an answer ends |
    | `parse_response` | sampled tokens | a message, and how it ended |

    Most mysterious failures in post-training live here: a missing newline, a stop token that is never trained.
    """)
    return


@app.cell
async def _():
    server = await connect()
    renderer = server.renderer
    tokenizer = renderer.tokenizer
    conversation = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="2+2?"),
        Message(role="assistant", content="4"),
        Message(role="user", content="3+3?"),
        Message(role="assistant", content="6"),
    ]
    return conversation, renderer, tokenizer


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The prompt
    """)
    return


@app.cell
def _(conversation, renderer, tokenizer):
    prompt = renderer.build_generation_prompt(conversation[:4])
    print(tokenizer.decode(prompt.to_ints()))
    print("stops at", [tokenizer.decode([token]) for token in renderer.get_stop_sequences()])
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What is trained

    `TrainOnWhat` decides which tokens carry loss. Tokens on green ground have weight 1. The stop token belongs to the
    answer: a model that is never trained to stop never stops.
    """)
    return


@app.cell
def _(conversation, renderer, tokenizer):
    def shaded(messages, mode):
        """Tokens of an example; trained ones on green ground."""
        model_input, weights = renderer.build_supervised_example(messages, mode)
        spans = []
        for token, weight in zip(model_input.to_ints(), weights.tolist(), strict=True):
            text = html.escape(tokenizer.decode([token]).replace("\n", "⏎"))
            colour = "#b7e4c7" if weight > 0 else "transparent"
            spans.append(f'<span style="background:{colour};color:black;font-family:monospace">{text}</span>')
        return "".join(spans)

    modes = ("last_assistant_message", "all_assistant_messages", "all_user_and_system_messages", "all_tokens")
    table = "".join(f"<tr><td>{mode}</td><td>{shaded(conversation, TrainOnWhat(mode))}</td></tr>" for mode in modes)
    mo.Html(f"<table style='background:white;color:black'>{table}</table>")
    return modes, shaded


@app.cell
def _(conversation, modes, renderer):
    _counts = {m: int(renderer.build_supervised_example(conversation, TrainOnWhat(m))[1].sum()) for m in modes}
    print(_counts)
    assert _counts["last_assistant_message"] < _counts["all_assistant_messages"] < _counts["all_tokens"]
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    `customized` reads the field `trainable` of each message: for example to keep a bad first attempt in the context without
    learning to write it.
    """)
    return


@app.cell
def _(conversation, shaded):
    marked = [Message(**message, trainable=message["content"] == "4") for message in conversation]
    mo.Html(f"<div style='background:white'>{shaded(marked, TrainOnWhat.CUSTOMIZED)}</div>")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Back to a message

    `parse_response` never raises: it says how the answer ended. `MALFORMED` usually means that the answer was cut off.
    Compare with `is_clean` or `is_stop_sequence`; all values of the enumeration are truthy.
    """)
    return


@app.cell
def _(renderer, tokenizer):
    _ended = tokenizer.encode("6") + renderer.get_stop_sequences()
    for _tokens in (_ended, tokenizer.encode("6 and then")):
        _message, _termination = renderer.parse_response(_tokens)
        print(_message, _termination, "clean:", _termination.is_clean)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Families

    `get_renderer(name, tokenizer)` knows the formats of model families; `model_info.get_recommended_renderer_name` the one
    that fits a model. `chat_template`, which these notebooks use, renders with the template that the tokenizer brings
    along. Using another family's renderer is the most common silent mistake.
    """)
    return


@app.cell
def _(conversation, tokenizer):
    print(", ".join(renderers.builtin_renderer_names()))
    for _name in ("chat_template", "role_colon", "qwen3"):
        _other = renderers.get_renderer(_name, tokenizer)
        print(f"--- {_name}\n{tokenizer.decode(_other.build_generation_prompt(conversation[:2]).to_ints())}")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Reasoning, and the extension property

    Families with reasoning drop the thoughts of earlier turns from the history. Then the prompt of turn two does **not**
    begin with the tokens of turn one, and turns cannot share a sequence in training: `has_extension_property` is false.
    **404** shows what that costs.
    """)
    return


@app.cell
def _(tokenizer):
    thoughtful = renderers.get_renderer("qwen3", tokenizer)
    _parts = [ThinkingPart(type="thinking", thinking="two and two"), TextPart(type="text", text="4")]
    _history = [
        Message(role="user", content="2+2?"),
        Message(role="assistant", content=_parts),
        Message(role="user", content="3+3?"),
    ]
    print(tokenizer.decode(thoughtful.build_generation_prompt(_history).to_ints()))
    print(
        {name: renderers.get_renderer(name, tokenizer).has_extension_property for name in ("qwen3", "qwen3_instruct")}
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A renderer of your own

    Subclass `Renderer`, or change one: `register_renderer` puts it before all built-in names.
    """)
    return


@app.cell
def _(conversation, tokenizer):
    def without_system(tokenizer, image_processor=None):
        """The chat template, for models that know no system role."""
        inner = renderers.get_renderer("chat_template", tokenizer)
        build = inner.build_generation_prompt
        inner.build_generation_prompt = lambda messages, **options: build(
            [message for message in messages if message["role"] != "system"], **options
        )
        return inner

    renderers.register_renderer("without_system", without_system)
    _mine = renderers.get_renderer("without_system", tokenizer)
    print(tokenizer.decode(_mine.build_generation_prompt(conversation[:2]).to_ints()))
    return


if __name__ == "__main__":
    app.run()

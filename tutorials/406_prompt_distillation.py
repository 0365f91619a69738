import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="406 Prompt distillation")

with app.setup:
    import asyncio

    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np
    from backend import connect

    import tinker
    from tinker_cookbook.renderers import Message, TrainOnWhat
    from tinker_cookbook.supervised.common import compute_mean_nll
    from tinker_cookbook.supervised.data import conversation_to_datum


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 406 · Prompt distillation

    A long prompt makes a model behave; it is read again with every request. Prompt distillation moves it into the weights:

    1. the **teacher** (the model *with* the prompt) answers many questions,
    2. the **student** (the same model *without* it) is trained on those answers.

    Afterwards the short request behaves like the long one.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    teacher = await service.create_sampling_client(base_model=server.model)
    instructions = Message(
        role="system",
        content="You answer in the voice of a lighthouse keeper. Never more than five words. Never ask a question back. "
        "Mention the sea, the lamp, or the fog. If you do not know, speak of the weather.",
    )
    questions = [
        f"What do you think of {thing}?"
        for thing in (
            "tea",
            "trains",
            "cities",
            "children",
            "music",
            "winter",
            "bread",
            "maps",
            "dogs",
            "clocks",
            "sleep",
            "gold",
        )
    ]
    return instructions, questions, renderer, server, service, teacher


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The teacher answers

    At a low temperature the teacher is consistent, which is easier to learn. In a real run this step filters: answers that do
    not do what the prompt asks for are thrown away.
    """)
    return


@app.cell
async def _(instructions, questions, renderer, teacher):
    params = tinker.SamplingParams(max_tokens=10, temperature=0.3, stop=renderer.get_stop_sequences(), seed=0)

    async def answer(question):
        """The teacher's answer."""
        prompt = renderer.build_generation_prompt([instructions, Message(role="user", content=question)])
        response = await teacher.sample(prompt=prompt, num_samples=1, sampling_params=params)
        return renderer.parse_response(response.sequences[0].tokens)[0]["content"]

    answers = await asyncio.gather(*(answer(question) for question in questions))
    for _question, _answer in list(zip(questions, answers, strict=True))[:3]:
        print(f"{_question} -> {_answer!r}")
    return (answers,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Two ways to ask for the same answer
    """)
    return


@app.cell
def _(answers, instructions, questions, renderer):
    def datum(question, said, with_prompt):
        """The answer as training data, below the long prompt or without it."""
        head = [instructions] if with_prompt else []
        conversation = [*head, Message(role="user", content=question), Message(role="assistant", content=said)]
        return conversation_to_datum(conversation, renderer, 512, TrainOnWhat.LAST_ASSISTANT_MESSAGE)

    pairs = list(zip(questions, answers, strict=True))
    student_data = [datum(*pair, with_prompt=False) for pair in pairs[:9]]
    held_student = [datum(*pair, with_prompt=False) for pair in pairs[9:]]
    held_teacher = [datum(*pair, with_prompt=True) for pair in pairs[9:]]
    _long, _short = held_teacher[0].model_input.length, held_student[0].model_input.length
    print(f"a request costs {_long} tokens with the prompt, {_short} without")
    return held_student, held_teacher, student_data


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The student learns

    The yardstick is how likely the teacher's own answers are **with** the prompt: the student cannot do better than that, and
    the distance left is what was not distilled.
    """)
    return


@app.cell
async def _(held_student, held_teacher, server, service, student_data):
    client = await service.create_lora_training_client(base_model=server.model, rank=16, seed=0)

    async def likelihood(data):
        """Mean loss of an answer token."""
        output = await client.forward(data, "cross_entropy")
        rows = [row["logprobs"] for row in output.loss_fn_outputs]
        return compute_mean_nll(rows, [d.loss_fn_inputs["weights"] for d in data])

    goal = await likelihood(held_teacher)
    trained, held = [], []
    for _step in range(20):
        if _step % 4 == 0:
            held.append((_step, await likelihood(held_student)))
        _passed = client.forward_backward(student_data, "cross_entropy")
        _update = client.optim_step(tinker.AdamParams(learning_rate=server.learning_rate / 2))
        _rows = [row["logprobs"] for row in (await _passed).loss_fn_outputs]
        trained.append(compute_mean_nll(_rows, [d.loss_fn_inputs["weights"] for d in student_data]))
        await _update
    return goal, held, trained


@app.cell
def _(goal, held, trained):
    figure, _axis = plt.subplots(figsize=(6, 3))
    _axis.plot(trained, label="student, trained questions")
    _axis.plot(*zip(*held, strict=True), marker="o", label="student, new questions")
    _axis.axhline(goal, linestyle="--", color="grey", label="model with the prompt, new questions")
    _axis.set_xlabel("step")
    _axis.set_ylabel("nats per answer token")
    _axis.legend(fontsize=8)
    figure.tight_layout()
    figure
    return


@app.cell
def _(goal, trained):
    print(f"trained {trained[0]:.2f} -> {trained[-1]:.2f}, with the prompt {goal:.2f}")
    assert trained[-1] < trained[0]
    assert np.isfinite(goal)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## In earnest

    * Thousands of questions, from the distribution you will see; the prompt is distilled only where it was asked.
    * On-policy distillation (`distillation.on_policy_distillation`) goes further: the student writes, and the teacher scores
      every token. `sdft` does that with the model as its own teacher.
    * Recipe: `tinker-cookbook recipe prompt_distillation.create_data`, then `tinker-cookbook recipe prompt_distillation`.
    """)
    return


if __name__ == "__main__":
    app.run()

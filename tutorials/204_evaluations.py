import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="204 Evaluations")

with app.setup:
    import json

    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    import tinker
    from tinker_cookbook.completers import TinkerMessageCompleter
    from tinker_cookbook.eval.benchmark_evaluator import BenchmarkEvaluator
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig, QuestionBenchmark, register, run_benchmark
    from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
    from tinker_cookbook.renderers import Message, get_text_content
    from tinker_cookbook.supervised.data import conversation_to_datum
    from tinker_cookbook.supervised.nll_evaluator import NLLEvaluator, SamplerNLLEvaluator


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 204 · Evaluations

    An **evaluator** takes a client and returns numbers. Training loops call the evaluators that you hand them every
    `eval_every` steps and log what they return.

    | class | is given | good for |
    |---|---|---|
    | `TrainingClientEvaluator` | the training client | held-out likelihood: exact, nothing is published |
    | `SamplingClientEvaluator` | a sampler | anything that needs answers |
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    client = await service.create_lora_training_client(base_model=server.model, rank=16, seed=0)

    def sum_example(a, b):
        """One question and its answer."""
        return [Message(role="user", content=f"{a}+{b}"), Message(role="assistant", content=str(a + b))]

    train = [conversation_to_datum(sum_example(a, b), renderer, 128) for a in range(4) for b in range(4)]
    held_out = [conversation_to_datum(sum_example(a, b), renderer, 128) for a, b in ((4, 1), (1, 4), (0, 5))]
    return client, held_out, renderer, server, sum_example, train


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Likelihood

    `nll` is nats per trained token; `bpb` bits per byte of text, which can be compared across tokenizers. Through the
    trainer or through a sampler: the numbers agree, because the engine uses one model for both.
    """)
    return


@app.cell
async def _(client, held_out, renderer):
    through_trainer = await NLLEvaluator(held_out, "test", renderer.tokenizer)(client)
    _sampler = await client.save_weights_and_get_sampling_client()
    through_sampler = await SamplerNLLEvaluator(held_out, "test", renderer.tokenizer)(_sampler)
    print(through_trainer, through_sampler)
    assert abs(through_trainer["test/nll"] - through_sampler["test/nll"]) < 1e-2
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Your own evaluator

    One method. Give metrics a prefix, so that they stand together in the logs.
    """)
    return


@app.cell
def _(renderer, sum_example):
    class AnswersInDigits(SamplingClientEvaluator):
        """Share of answers that are numbers."""

        async def __call__(self, sampling_client):
            policy = TinkerMessageCompleter(sampling_client, renderer, max_tokens=6, temperature=0.0)
            answers = [get_text_content(await policy([sum_example(a, a)[0]])) for a in range(4)]
            return {"digits/share": sum(answer.strip().isdigit() for answer in answers) / len(answers)}

    return (AnswersInDigits,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A benchmark

    `run_benchmark` runs a registered set of questions: in parallel, with a timeout for each, several attempts (`pass@k`), and
    stored so that a stopped evaluation goes on and can be graded again. gsm8k, math500, aime, mmlu_pro and others are
    registered; this one is ours.
    """)
    return


@app.cell
def _(AnswersInDigits, client, held_out, renderer, server):
    questions = server.runs / "sums.jsonl"
    questions.write_text(
        "".join(json.dumps({"q": f"{a}+{b}", "a": str(a + b)}) + "\n" for a in range(4) for b in range(4)),
        encoding="utf-8",
    )
    register(
        QuestionBenchmark(
            name="sums",
            path="",
            config_name=None,
            split="test",
            read=lambda row: (row["q"], row["a"]),
            check=lambda answer, expected: answer.strip() == expected,
        )
    )
    config = BenchmarkConfig(dataset_path=str(questions), max_tokens=6, temperature=0.0)
    evaluators = [
        NLLEvaluator(held_out, "test"),
        AnswersInDigits(),
        BenchmarkEvaluator("sums", renderer, config=config),
    ]

    async def evaluate():
        """All evaluators, as a training loop calls them."""
        sampler = await client.save_weights_and_get_sampling_client()
        metrics = {}
        for evaluator in evaluators:
            metrics |= await evaluator(client if isinstance(evaluator, NLLEvaluator) else sampler)
        return metrics

    return evaluate, questions


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## While training
    """)
    return


@app.cell
async def _(client, evaluate, server, train):
    history = {}
    for _step in range(31):
        if _step % 10 == 0:
            history[_step] = await evaluate()
        _passed = client.forward_backward(train, "cross_entropy")
        await client.optim_step(tinker.AdamParams(learning_rate=server.learning_rate))
        await _passed
    print(json.dumps(history[30], indent=1))
    assert history[30]["test/nll"] < history[0]["test/nll"]  # what it answers depends on its first weights, too
    return (history,)


@app.cell
def _(history):
    figure, _axes = plt.subplots(1, 2, figsize=(8, 3))
    _axes[0].plot(list(history), [m["test/nll"] for m in history.values()])
    _axes[0].set_ylabel("held-out nll")
    _axes[1].plot(list(history), [m["sums/score"] for m in history.values()], label="sums/score")
    _axes[1].plot(list(history), [m["digits/share"] for m in history.values()], "--", label="digits/share")
    _axes[1].legend()
    for _axis in _axes:
        _axis.set_xlabel("step")
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    The questions of the benchmark were the training set, so the score shows memory, and the held-out loss what was *not*
    learnt: with a handful of sums the model cannot know that 4+1 is 5.

    ## pass@k

    Several attempts a question, at a temperature above 0.
    """)
    return


@app.cell
async def _(client, questions, renderer, server):
    _sampler = await client.save_weights_and_get_sampling_client()
    result = await run_benchmark(
        "sums",
        _sampler,
        renderer,
        BenchmarkConfig(
            dataset_path=str(questions),
            max_examples=8,
            max_tokens=6,
            temperature=1.0,
            num_samples=4,
            save_dir=str(server.runs / "sums-eval"),
        ),
    )
    print(result.pass_at_k, "cut off:", result.num_truncated, "errors:", result.num_errors)
    return


if __name__ == "__main__":
    app.run()

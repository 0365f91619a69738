import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="303 Supervised runs with Config")

with app.setup:
    import json

    import chz
    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    from tinker_cookbook import checkpoint_utils
    from tinker_cookbook.renderers import TrainOnWhat
    from tinker_cookbook.stores import TrainingRunStore
    from tinker_cookbook.supervised import train
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 303 · Supervised runs with `Config`

    **102** was the loop. `supervised.train` is the same loop with what a real run needs: schedule, evaluations, checkpoints,
    exact resume, metrics, one folder with everything. It is driven by one immutable object.
    """)
    return


@app.cell
async def _():
    server = await connect()
    return (server,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Data in a file

    One conversation a line, in the field `messages`.
    """)
    return


@app.cell
def _(server):
    path = server.runs / "conversations.jsonl"
    _rows = [
        {"messages": [{"role": "user", "content": f"Say {w} twice."}, {"role": "assistant", "content": f"{w} {w}"}]}
        for w in [
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
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in _rows), encoding="utf-8")
    return (path,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Configuration

    Builders are configurations that are *called* later, so a whole run can be printed, stored and sent elsewhere.
    `test_size` rows are held out; their likelihood is logged as `test/nll`.
    """)
    return


@app.cell
async def _(path, server):
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=server.model,
        renderer_name=server.renderer_name,
        max_length=256,
        batch_size=4,
        train_on_what=TrainOnWhat.LAST_ASSISTANT_MESSAGE,
    )
    config = train.Config(
        log_path=str(server.runs / "sft"),
        model_name=server.model,
        renderer_name=server.renderer_name,
        dataset_builder=FromConversationFileBuilder(common_config=common, file_path=str(path), test_size=4),
        learning_rate=server.learning_rate,
        lr_schedule="linear",
        num_epochs=6,
        lora_rank=16,
        eval_every=3,
        save_every=6,
    )
    await train.main(config)
    return (config,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What a run leaves behind

    | file | what |
    |---|---|
    | `config.json`, `code.diff` | what was run |
    | `metrics.jsonl` | one row a step |
    | `checkpoints.jsonl` | one row a checkpoint, with its `tinker://` paths |
    | `logs.log`, `timing_spans.jsonl` | what happened, and how long it took |
    """)
    return


@app.cell
def _(config, server):
    store = TrainingRunStore.local(config.log_path)
    rows = store.read_metrics()
    print(sorted(p.name for p in (server.runs / "sft").iterdir()))
    print(json.dumps(rows[0], indent=1))
    return rows, store


@app.cell
def _(rows):
    figure, _axis = plt.subplots(figsize=(6, 3))
    _trained = [r for r in rows if "train_mean_nll" in r]
    _axis.plot([r["step"] for r in _trained], [r["train_mean_nll"] for r in _trained], label="train_mean_nll")
    _held = [r for r in rows if "test/nll" in r]
    _axis.plot([r["step"] for r in _held], [r["test/nll"] for r in _held], marker="o", label="test/nll")
    _axis.set_xlabel("step")
    _axis.set_ylabel("nats per token")
    _axis.legend()
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    The two curves part: twelve examples are learnt by heart, and nothing of them helps with words never seen. Held-out data
    are there to show that. The last row is the final evaluation.

    ## Checkpoints and resume

    A run whose `log_path` holds a checkpoint goes on from there, with its optimizer and its place in the data. The run above
    is finished; with more epochs the same folder goes on.
    """)
    return


@app.cell
async def _(config, rows, store):
    _last = checkpoint_utils.get_last_checkpoint(config.log_path)
    print(_last.name, _last.state_path, _last.sampler_path)
    await train.main(chz.replace(config, num_epochs=8))
    longer = store.read_metrics()
    print(len(rows), "->", len(longer), "rows; steps are counted on:", [row["step"] for row in longer[-3:]])
    assert len(longer) > len(rows) and len({row["step"] for row in longer}) == len(longer)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## From the command line

    Recipes are thin: a small `CLIConfig` with the fields people change, mapped to this `Config`. The same run:

    ```
    python -m tinker_cookbook.recipes.chat_sl.train dataset=conversations.jsonl model_name=... learning_rate=1e-4 batch_size=4
    ```

    `--help` lists the fields; a typo is refused with the nearest name.
    """)
    return


if __name__ == "__main__":
    app.run()

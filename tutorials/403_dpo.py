import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="403 Direct preference optimisation")

with app.setup:
    import json

    import marimo as mo
    import matplotlib.pyplot as plt
    import torch
    from backend import connect

    from tinker_cookbook.preference import train_dpo
    from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
    from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
    from tinker_cookbook.stores import TrainingRunStore
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 403 · Direct preference optimisation

    Pairs of answers, one preferred. DPO needs no reward model and no sampling: it raises the likelihood of the chosen answer
    over that of the rejected one, *relative to the policy it began with*:

    $$ L = -\log\sigma\big(\beta\,[(\log\pi - \log\pi_{ref})_{chosen} - (\log\pi - \log\pi_{ref})_{rejected}]\big) $$
    """)
    return


@app.cell
async def _():
    server = await connect()
    return (server,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The loss on paper

    At the start policy and reference are the same: margin 0, loss log 2 = 0.693. A small β allows large moves.
    """)
    return


@app.cell
def _():
    _margins = torch.linspace(-20, 20, 81)
    figure_loss, _axis = plt.subplots(figsize=(6, 3))
    for _beta in (0.05, 0.1, 0.5):
        _zero = torch.zeros(1)
        _losses = [train_dpo.compute_dpo_loss([m], [_zero[0]], [_zero[0]], [_zero[0]], _beta)[0] for m in _margins]
        _axis.plot(_margins, _losses, label=f"beta={_beta}")
    _axis.set_xlabel("log-likelihood gained by the chosen answer")
    _axis.set_ylabel("loss")
    _axis.legend()
    figure_loss.tight_layout()
    figure_loss
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Comparisons

    A row has a conversation, two completions and a label: `A`, `B` or `Tie`. Here: short answers are preferred.
    """)
    return


@app.cell
def _(server):
    def comparison(word):
        """One pair: a word against a sentence."""
        return {
            "comparison": {
                "prompt_conversation": [{"role": "user", "content": f"Do you like {word}?"}],
                "completion_A": [{"role": "assistant", "content": "Yes."}],
                "completion_B": [{"role": "assistant", "content": f"Well, it depends on the {word}."}],
            },
            "label": "A",
        }

    _words = ["tea", "rain", "cake", "snow", "jazz", "chess", "maps", "soup", "frogs", "clay", "wind", "salt"]
    paths = {}
    for _name, _chosen in (("train", _words[:8]), ("test", _words[8:])):
        paths[_name] = server.runs / f"{_name}.jsonl"
        paths[_name].write_text("".join(json.dumps(comparison(w)) + "\n" for w in _chosen), encoding="utf-8")
    return (paths,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The run

    `train_dpo` shares the supervised loop, so schedules, evaluations, checkpoints and resume are the same. The reference is
    stored as the checkpoint `reference` when the run begins. Rates are **lower** than in supervised runs: the loss looks at
    whole sequences.
    """)
    return


@app.cell
async def _(paths, server):
    config = train_dpo.Config(
        log_path=str(server.runs / "dpo"),
        model_name=server.model,
        renderer_name=server.renderer_name,
        dataset_builder=DPODatasetBuilderFromComparisons(
            common_config=ChatDatasetBuilderCommonConfig(
                model_name_for_tokenizer=server.model,
                renderer_name=server.renderer_name,
                max_length=256,
                batch_size=4,
            ),
            comparison_builder=ComparisonBuilderFromJsonl(train_path=str(paths["train"]), test_path=str(paths["test"])),
        ),
        learning_rate=server.learning_rate / 10,
        lr_schedule="constant",
        dpo_beta=0.1,
        num_epochs=8,
        lora_rank=16,
        eval_every=0,
        save_every=0,
    )
    await train_dpo.amain(config)
    return (config,)


@app.cell
def _(config):
    rows = [r for r in TrainingRunStore.local(config.log_path).read_metrics() if "dpo_loss" in r]
    figure, _axes = plt.subplots(1, 3, figsize=(10, 3))
    for _axis, _key in zip(_axes, ("dpo_loss", "accuracy", "margin"), strict=True):
        _axis.plot([r[_key] for r in rows])
        _axis.set_title(_key)
        _axis.set_xlabel("step")
    figure.tight_layout()
    figure
    return (rows,)


@app.cell
def _(rows):
    print(json.dumps({k: [round(rows[0][k], 3), round(rows[-1][k], 3)] for k in ("dpo_loss", "accuracy", "margin")}))
    assert abs(rows[0]["dpo_loss"] - 0.6931) < 1e-2 and rows[-1]["dpo_loss"] < rows[0]["dpo_loss"]
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What to watch

    * `chosen_reward` and `rejected_reward` may **both** fall: only their difference is in the loss. If the chosen answers
      become much less likely (`chosen_reward` far below 0), lower the rate or raise β.
    * `accuracy` at 1 while `margin` grows without end is overfitting; a held-out set shows it (`test/nll`).
    * Labels with ties are skipped. For pairs of the policy's own answers see `preference.shorter` and **407**.
    """)
    return


@app.cell
def _(rows):
    print(json.dumps({k: round(rows[-1][k], 3) for k in ("chosen_reward", "rejected_reward")}))
    return


if __name__ == "__main__":
    app.run()

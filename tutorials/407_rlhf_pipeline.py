import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="407 The RLHF pipeline")

with app.setup:
    import asyncio
    import json

    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    import tinker
    from tinker_cookbook import checkpoint_utils
    from tinker_cookbook.preference.preference_datasets import (
        ChatDatasetBuilderFromComparisons,
        ComparisonBuilderFromJsonl,
    )
    from tinker_cookbook.preference.types import Comparison, PreferenceModelBuilderFromChatRenderer
    from tinker_cookbook.renderers import Message
    from tinker_cookbook.rl import train as rl_train
    from tinker_cookbook.rl.preference_envs import PairwisePreferenceRLDatasetBuilder
    from tinker_cookbook.stores import TrainingRunStore
    from tinker_cookbook.supervised import train as supervised_train
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 407 · The RLHF pipeline

    Three runs, each from the checkpoint of an earlier one:

    1. **Imitation**: the policy learns what answers look like.
    2. **Preference model**: a second run learns to name the better of two answers.
    3. **Reinforcement**: the policy's answers meet in tournaments; the preference model is the referee.

    All with toy data about shouting: quiet answers are preferred.
    """)
    return


@app.cell
async def _():
    server = await connect()
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=server.model, renderer_name=server.renderer_name, max_length=512, batch_size=6
    )
    _topics = ["tea", "rain", "cake", "snow", "jazz", "chess", "maps", "soup", "frogs", "clay", "wind", "salt"]

    def write(name, rows):
        """Rows as JSONL; returns the path."""
        path = server.runs / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    def said(role, text):
        """One message."""
        return {"role": role, "content": text}

    conversations = write(
        "sft.jsonl",
        [
            {"messages": [said("user", f"Do you like {t}?"), said("assistant", answer)]}
            for t in _topics
            for answer in ("yes, a bit.", "YES!!!")
        ],
    )
    comparisons = write(
        "comparisons.jsonl",
        [
            {
                "comparison": {
                    "prompt_conversation": [said("user", f"Do you like {t}?")],
                    "completion_A": [said("assistant", "yes, a bit.")],
                    "completion_B": [said("assistant", "YES!!!")],
                },
                "label": "A",
            }
            for t in _topics
        ],
    )
    return common, comparisons, conversations, said, server


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## 1. Imitation

    Both kinds of answers are in the data, so that the policy has something to choose from later.
    """)
    return


@app.cell
async def _(common, conversations, server):
    sft = supervised_train.Config(
        log_path=str(server.runs / "sft"),
        model_name=server.model,
        renderer_name=server.renderer_name,
        dataset_builder=FromConversationFileBuilder(common_config=common, file_path=conversations),
        learning_rate=server.learning_rate,
        num_epochs=6,
        lora_rank=16,
        save_every=0,
    )
    await supervised_train.main(sft)
    policy_path = checkpoint_utils.get_last_checkpoint(sft.log_path).state_path
    print(policy_path)
    return policy_path, sft


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## 2. Preference model

    A comparison is rendered as one conversation (prompt, both completions, *Preference*), and the model answers A or B: a
    classifier made of a language model. Only the label is trained. Completions are swapped at random, so that it cannot
    learn "always A".
    """)
    return


@app.cell
async def _(common, comparisons, said, server):
    rm = supervised_train.Config(
        log_path=str(server.runs / "rm"),
        model_name=server.model,
        renderer_name=server.renderer_name,
        dataset_builder=ChatDatasetBuilderFromComparisons(
            common_config=common, comparison_builder=ComparisonBuilderFromJsonl(train_path=comparisons)
        ),
        learning_rate=server.learning_rate / 2,
        num_epochs=14,
        lora_rank=16,
        save_every=0,
    )
    await supervised_train.main(rm)
    referee_builder = PreferenceModelBuilderFromChatRenderer(
        renderer_name=server.renderer_name,
        model_name=server.model,
        rm_weights_path=checkpoint_utils.get_last_checkpoint(rm.log_path, "sampler_path").sampler_path,
    )
    referee = await asyncio.to_thread(referee_builder)
    _quiet, _loud = [Message(**said("assistant", t)) for t in ("yes, a bit.", "YES!!!")]
    _pair = Comparison([Message(**said("user", "Do you like ink?"))], [_quiet], [_loud])
    print(
        "quiet first:", await referee(_pair), " loud first:", await referee(_pair.swap()), "  (-1: the first is better)"
    )
    return referee_builder, rm


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    Always ask the referee on pairs it has not seen, in both orders. If it is wrong or has a favourite side, stage three will
    find that out faster than you.

    ## 3. Reinforcement

    Answers to one prompt meet pairwise, both ways; the reward is wins minus losses, and −1 for an answer that does not end.
    The policy starts from stage one.
    """)
    return


@app.cell
async def _(comparisons, policy_path, referee_builder, server):
    rl = rl_train.Config(
        log_path=str(server.runs / "rl"),
        model_name=server.model,
        renderer_name=server.renderer_name,
        load_checkpoint_path=policy_path,
        dataset_builder=PairwisePreferenceRLDatasetBuilder(
            comparison_builder=ComparisonBuilderFromJsonl(train_path=comparisons),
            batch_size=4,
            policy_renderer_name=server.renderer_name,
            policy_model_name=server.model,
            group_size=4,
            preference_model_builder=referee_builder,
        ),
        learning_rate=server.learning_rate / 4,
        max_tokens=16,
        lora_rank=16,
        num_epochs=2,
        eval_every=0,
        save_every=0,
    )
    await rl_train.main(rl)
    return (rl,)


@app.cell
def _(rl, rm, sft):
    figure, _axes = plt.subplots(1, 3, figsize=(11, 3))
    for _axis, _config, _key in zip(
        _axes, (sft, rm, rl), ("train_mean_nll", "train_mean_nll", "env/all/format"), strict=True
    ):
        _rows = TrainingRunStore.local(_config.log_path).read_metrics()
        _axis.plot([r[_key] for r in _rows if _key in r])
        _axis.set_xlabel("step")
        _axis.set_ylabel(_key)
    for _axis, _title in zip(
        _axes, ("1 imitation", "2 preference model", "3 reinforcement: answers that end"), strict=True
    ):
        _axis.set_title(_title)
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Did it work?

    Not by the reward: in a tournament against itself the policy wins half of its matches for ever. Compare with the policy of
    stage one on fixed prompts (`ComparisonEvaluator` gives a win rate), or look.
    """)
    return


@app.cell
async def _(rl, said, server, sft):
    service = tinker.ServiceClient()
    _prompt = server.renderer.build_generation_prompt([Message(**said("user", "Do you like tea?"))])
    _params = tinker.SamplingParams(max_tokens=16, stop=server.renderer.get_stop_sequences(), seed=1)
    answers = {}
    for _name, _config in (("imitation", sft), ("reinforced", rl)):
        _path = checkpoint_utils.get_last_checkpoint(_config.log_path, "sampler_path").sampler_path
        _sampler = await service.create_sampling_client(model_path=_path)
        _found = await _sampler.sample(prompt=_prompt, num_samples=4, sampling_params=_params)
        answers[_name] = [server.renderer.parse_response(s.tokens)[0]["content"] for s in _found.sequences]
        print(f"{_name:10}", answers[_name])
    _losses = [r["train_mean_nll"] for r in TrainingRunStore.local(sft.log_path).read_metrics()]
    assert _losses[-1] < _losses[0]
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    The recipe is `preference.rlhf.rlhf_pipeline`; each stage can be skipped (`run_sft=false`) and resumes on its own.
    """)
    return


if __name__ == "__main__":
    app.run()

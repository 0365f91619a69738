import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="304 Reinforcement learning with Config")

with app.setup:
    import json

    import chz
    import marimo as mo
    import matplotlib.pyplot as plt
    from backend import connect

    from tinker_cookbook import renderers, tokenizer_utils
    from tinker_cookbook.rl import train
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
    from tinker_cookbook.stores import TrainingRunStore


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 304 · Reinforcement learning with `Config`

    The environment of **301**, the loop of the library. You write an `Env`, a dataset and its builder; `rl.train.main` samples,
    grades, trains, evaluates, saves and resumes.
    """)
    return


@app.cell
async def _():
    server = await connect()
    return (server,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Environment, dataset, builder

    The reward is graded: the share of vowels in the answer is the environment's `check_answer` made soft, through a metric of
    its own. A reward that is 0 or 1 works as well, once the model sometimes gets it right.
    """)
    return


@app.cell
def _():
    class Vowels(ProblemEnv):
        """Answer in vowels: right when at least a third of the letters are vowels."""

        def __init__(self, renderer, topic):
            super().__init__(renderer, format_coef=0.0)
            self.topic = topic

        def get_question(self):
            return f"Something about {self.topic}, with many vowels."

        def check_answer(self, sample_str):
            letters = [c for c in sample_str.lower() if c.isalpha()]
            return len(letters) >= 3 and sum(c in "aeiou" for c in letters) / len(letters) > 0.4

        def check_format(self, sample_str):
            return True

        def get_reference_answer(self):
            return "more than 40 % vowels"

    class VowelDataset(RLDataset):
        """The topics in turn."""

        topics = ("trees", "birds", "cities", "food", "rivers", "games")

        def __init__(self, renderer, groups, group_size, batches):
            self.renderer, self.groups, self.group_size, self.batches = renderer, groups, group_size, batches

        def get_batch(self, index):
            chosen = [self.topics[(index * self.groups + i) % len(self.topics)] for i in range(self.groups)]
            return [
                ProblemGroupBuilder(lambda topic=topic: Vowels(self.renderer, topic), self.group_size, "vowels")
                for topic in chosen
            ]

        def __len__(self):
            return self.batches

    @chz.chz
    class VowelBuilder(RLDatasetBuilder):
        """Configuration of the dataset."""

        model_name: str
        renderer_name: str
        groups: int = 6
        group_size: int = 8
        batches: int = 14

        async def __call__(self):
            tokenizer = tokenizer_utils.get_tokenizer(self.model_name)
            renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name)
            return (
                VowelDataset(renderer, self.groups, self.group_size, self.batches),
                VowelDataset(renderer, self.groups, self.group_size, 1),
            )

    return (VowelBuilder,)


@app.cell
async def _(VowelBuilder, server):
    config = train.Config(
        log_path=str(server.runs / "rl"),
        model_name=server.model,
        renderer_name=server.renderer_name,
        dataset_builder=VowelBuilder(model_name=server.model, renderer_name=server.renderer_name),
        learning_rate=server.learning_rate,
        max_tokens=8,
        lora_rank=16,
        loss_fn="importance_sampling",
        eval_every=7,
        save_every=0,
        num_groups_to_log=2,
        sampling_seed=0,
    )
    await train.main(config)
    return (config,)


@app.cell
def _(config):
    rows = TrainingRunStore.local(config.log_path).read_metrics()
    figure, _axes = plt.subplots(1, 2, figsize=(9, 3))
    _axes[0].plot([r["env/all/reward/total"] for r in rows if "env/all/reward/total" in r], label="train")
    _held = [(r["step"], r["test/env/all/reward/total"]) for r in rows if "test/env/all/reward/total" in r]
    _axes[0].plot(*zip(*_held, strict=True), marker="o", label="test")
    _axes[0].set_ylabel("env/all/reward/total")
    _axes[0].legend()
    _axes[1].plot([abs(r["optim/kl_sample_train_v1"]) for r in rows if "optim/kl_sample_train_v1" in r])
    _axes[1].set_ylabel("|kl_sample_train_v1|")
    for _axis in _axes:
        _axis.set_xlabel("step")
    figure.tight_layout()
    figure
    return (rows,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Read metrics in this order

    1. `env/all/reward/total` and its parts (`correct`, `format`): does it learn?
    2. `optim/kl_sample_train_v1`: do sampler and trainer see the same tokens? Must stay near 0 when every batch is fresh.
    3. `env/all/by_group/frac_mixed`: how many groups can teach anything?
    4. `optim/entropy`, `env/all/ac_tokens_per_turn`: is the policy collapsing, or rambling?
    5. `time/...`: where does the time go?
    """)
    return


@app.cell
def _(rows):
    _trained = [r for r in rows if "optim/entropy" in r]
    _keys = (
        "env/all/reward/total",
        "env/all/by_group/frac_mixed",
        "optim/kl_sample_train_v1",
        "optim/entropy",
        "time/total",
    )
    print(json.dumps({key: [round(_trained[0][key], 4), round(_trained[-1][key], 4)] for key in _keys}, indent=1))
    _rewards = [r["env/all/reward/total"] for r in _trained]
    assert sum(_rewards[-4:]) > sum(_rewards[:4])
    assert max(abs(r["optim/kl_sample_train_v1"]) for r in _trained) < 1e-2
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Rollouts as a page

    `iteration_000000/train.html` shows the first `num_groups_to_log` groups: what was asked, said and paid. Read it
    *before* believing a curve.
    """)
    return


@app.cell
def _(server):
    print(sorted(p.name for p in (server.runs / "rl" / "iteration_000000").iterdir()))
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Three ways to alternate

    | mode | setting | use when |
    |---|---|---|
    | sync | default | you want the plainest behaviour |
    | streaming minibatch | `stream_minibatch_config` | episodes differ in length, and you want to stay on policy |
    | async | `async_config` | sampling is the bottleneck, and a bounded staleness is fine |
    """)
    return


@app.cell
async def _(config, server):
    _async = chz.replace(
        config,
        log_path=str(server.runs / "rl-async"),
        async_config=train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=6),
        max_steps=4,
        eval_every=0,
        sampling_seed=None,
    )
    await train.main(_async)
    _rows = TrainingRunStore.local(_async.log_path).read_metrics()
    print([r.get("async/staleness_max") for r in _rows])
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    `Config` refuses combinations that cannot work. KL penalty needs a reference, for example:
    """)
    return


@app.cell
def _(config):
    try:
        chz.replace(config, kl_penalty_coef=0.1)
    except ValueError as _error:
        print(_error)
    return


if __name__ == "__main__":
    app.run()

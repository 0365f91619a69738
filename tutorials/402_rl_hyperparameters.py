import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="402 Hyper-parameters of reinforcement learning")

with app.setup:
    import asyncio

    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np
    from backend import connect

    import tinker
    from tinker_cookbook.completers import TinkerTokenCompleter, seed_scope
    from tinker_cookbook.rl.advantages import estimate_advantages
    from tinker_cookbook.rl.data_processing import assemble_training_data
    from tinker_cookbook.rl.metrics import compute_kl_sample_train
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.rollouts import do_group_rollout
    from tinker_cookbook.rl.train import train_step


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 402 · Hyper-parameters of reinforcement learning

    | knob | where | first value |
    |---|---|---|
    | learning rate | `learning_rate` | a third of the supervised one, constant |
    | attempts at a problem | `group_size` of the dataset | 8 to 16 |
    | problems a batch | `groups_per_batch` | as many as you can pay for |
    | optimizer steps a batch | `num_substeps` | 1 |
    | loss | `loss_fn` | `importance_sampling` while on policy, `ppo` or `cispo` with several substeps |
    | advantages | `advantage_estimator` | `mean_centered` |
    | pull to a reference | `kl_penalty_coef` | 0, then 0.01 to 0.1 if the text decays |

    This notebook measures the first five on a game that a model learns in seconds.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer

    class Letter(ProblemEnv):
        """Right when the answer holds the letter e at least twice."""

        def get_question(self):
            return "A word with two e."

        def check_answer(self, sample_str):
            return sample_str.count("e") >= 2

        def check_format(self, sample_str):
            return True

        def get_reference_answer(self):
            return "two or more e"

    async def play(builder, policy, *key):
        """One group; the key makes its draws repeatable."""
        with seed_scope("402", *key):
            return await do_group_rollout(builder, policy)

    async def run(
        rate=server.learning_rate,
        group_size=8,
        groups=2,
        substeps=1,
        loss="importance_sampling",
        estimator="mean_centered",
        steps=6,
    ):
        """Mean reward of each step, and how far the trainer was from the sampler."""
        client = await service.create_lora_training_client(base_model=server.model, rank=8, seed=0)
        builder = ProblemGroupBuilder(lambda: Letter(renderer, format_coef=0.0), group_size)
        rewards, kl = [], []
        for step in range(steps):
            policy = TinkerTokenCompleter(await client.save_weights_and_get_sampling_client(), max_tokens=5)
            found = await asyncio.gather(*(play(builder, policy, step, group) for group in range(groups)))
            advantages = [estimate_advantages(group, estimator) for group in found]
            data, _ = assemble_training_data(list(found), advantages)
            logprobs = await train_step(data, client, rate, substeps, loss)
            rewards.append(float(np.mean([r for group in found for r in group.get_total_rewards()])))
            kl.append(compute_kl_sample_train(data, logprobs)["optim/kl_sample_train_v2"])
        return rewards, kl

    return run, server


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Learning rate

    The curve is noisy: judge on the area below it, and on several seeds when it matters.
    """)
    return


@app.cell
async def _(run, server):
    rates = [server.learning_rate * f for f in (0.03, 0.3, 1.0, 10.0)]
    by_rate = await asyncio.gather(*(run(rate, steps=8) for rate in rates))  # one server trains them all at once
    figure, _axis = plt.subplots(figsize=(6, 3))
    for _rate, (_rewards, _) in zip(rates, by_rate, strict=True):
        _axis.plot(_rewards, label=f"{_rate:.1e}")
    _axis.set_xlabel("step")
    _axis.set_ylabel("mean reward")
    _axis.legend()
    figure.tight_layout()
    figure
    return (by_rate,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Group size against number of groups

    The same number of samples a step, split differently. A group of two is a bad baseline; one large group sees one problem.
    The share of **mixed** groups is what counts: only they have advantages other than zero.
    """)
    return


@app.cell
async def _():
    async def mixed(group_size, success):
        """Chance that a group has both outcomes, if each attempt succeeds with this chance."""
        return 1 - success**group_size - (1 - success) ** group_size

    figure_mixed, _axis = plt.subplots(figsize=(6, 3))
    _success = np.linspace(0, 1, 101)
    for _size in (2, 4, 8, 16):
        _axis.plot(_success, await mixed(_size, _success), label=f"group_size={_size}")
    _axis.set_xlabel("chance of success")
    _axis.set_ylabel("share of mixed groups")
    _axis.legend()
    figure_mixed.tight_layout()
    figure_mixed
    return


@app.cell
async def _(run):
    _shapes = ((2, 8), (4, 4), (8, 2), (16, 1))
    _runs = await asyncio.gather(*(run(group_size=size, groups=groups) for size, groups in _shapes))
    for (_size, _groups), (_rewards, _) in zip(_shapes, _runs, strict=True):
        print(f"{_groups} groups of {_size:2}: reward of the last three steps {np.mean(_rewards[-3:]):.2f}")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Substeps and the loss

    With `num_substeps=4` the later parts of a batch are trained by a policy that did not sample them:
    `optim/kl_sample_train_v2` measures how far. That is where a clipped loss earns its keep.
    """)
    return


@app.cell
async def _(run, server):
    _choices = ((1, "importance_sampling"), (4, "importance_sampling"), (4, "ppo"), (4, "cispo"))
    _runs = await asyncio.gather(
        *(run(server.learning_rate / 3, substeps=substeps, loss=loss) for substeps, loss in _choices)
    )
    for (_substeps, _loss), (_rewards, _kl) in zip(_choices, _runs, strict=True):
        print(f"substeps {_substeps}, {_loss:20} reward {np.mean(_rewards[-3:]):.2f}  kl v2 {np.mean(_kl):.2e}")
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Advantage estimators

    `std_normalized` (GRPO) makes every mixed group push equally hard, also one where a single attempt of sixteen was lucky.
    `rloo` is `mean_centered` times G/(G−1). `gae` is for rewards that come turn by turn.
    """)
    return


@app.cell
async def _(by_rate, run):
    _estimators = ("mean_centered", "std_normalized", "rloo")
    _runs = await asyncio.gather(*(run(estimator=estimator) for estimator in _estimators))
    for _estimator, (_rewards, _) in zip(_estimators, _runs, strict=True):
        print(f"{_estimator:15} reward of the last three steps {np.mean(_rewards[-3:]):.2f}")
    assert max(np.mean(rewards[-3:]) - np.mean(rewards[:2]) for rewards, _ in by_rate) > 0.1
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    One run each on a toy: the order of these numbers is noise where they are close. For a choice that matters, repeat with
    several seeds and look at the spread.
    """)
    return


if __name__ == "__main__":
    app.run()

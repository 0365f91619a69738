import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="301 Abstractions of reinforcement learning")

with app.setup:
    import marimo as mo
    from backend import connect

    import tinker
    from tinker_cookbook.completers import TinkerTokenCompleter
    from tinker_cookbook.rl.advantages import estimate_advantages
    from tinker_cookbook.rl.data_processing import assemble_training_data, without_mask
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.rollouts import do_group_rollout
    from tinker_cookbook.rl.types import RLDataset


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 301 · The abstractions

    **104** was a loop by hand. The library cuts it into parts that can be exchanged:

    ```
    RLDatasetBuilder ─▶ RLDataset ─▶ EnvGroupBuilder ─▶ Env × G ─▶ Trajectory × G ─▶ TrajectoryGroup ─▶ Datum
      configuration      batches       one problem     episodes      what happened       + rewards        training
    ```

    Subscripts in the code name the axis: `_P` problems, `_G` attempts at one, `_T` turns, `_D` data.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    sampler = await service.create_sampling_client(base_model=server.model)
    return renderer, sampler, server, service


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Env: one episode

    `initial_observation` gives a prompt and a stop condition; `step` takes the sampled tokens and gives a reward and the next
    prompt. An environment is used **once**. `ProblemEnv` is the common special case (a question, an answer, a check) and
    needs four methods. Its reward is `format_coef · (format − 1) + correct`.
    """)
    return


@app.cell
async def _(renderer):
    class Vowel(ProblemEnv):
        """Answer with something that begins with a vowel."""

        def __init__(self, renderer, topic):
            super().__init__(renderer, format_coef=0.1)
            self.topic = topic

        def get_question(self):
            return f"A word about {self.topic} that begins with a vowel."

        def check_answer(self, sample_str):
            return sample_str.strip()[:1].lower() in tuple("aeiou")

        def check_format(self, sample_str):
            return len(sample_str.split()) == 1

        def get_reference_answer(self):
            return "any vowel"

    _env = Vowel(renderer, "trees")
    _prompt, _stop = await _env.initial_observation()
    _result = await _env.step(renderer.tokenizer.encode("apple") + renderer.get_stop_sequences())
    print(_result.reward, _result.metrics, _result.episode_done)
    return (Vowel,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## EnvGroupBuilder: one problem, several attempts

    The attempts are compared with one another. `compute_group_rewards` may add a reward that only the whole group can
    decide, such as the outcome of a tournament; `cleanup` releases what `make_envs` took.
    """)
    return


@app.cell
def _(Vowel, renderer):
    class ThreeTopics(RLDataset):
        """Batches of two problems."""

        topics = ("trees", "birds", "cities", "food")

        def get_batch(self, index):
            chosen = self.topics[index * 2 : index * 2 + 2]
            return [
                ProblemGroupBuilder(lambda topic=topic: Vowel(renderer, topic), num_envs=6, dataset_name="vowel")
                for topic in chosen
            ]

        def __len__(self):
            return len(self.topics) // 2

    builders_P = ThreeTopics().get_batch(0)
    return (builders_P,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Rollouts

    `do_group_rollout` plays all episodes of a group with a policy and grades them. Limits (turns, tokens, time) and what to
    do about failures are values that you hand in, not code: `RolloutLimits`, `FailFast`, `RetryOnFailure`, `MinViableGroup`.
    """)
    return


@app.cell
async def _(builders_P, sampler):
    policy = TinkerTokenCompleter(sampler, max_tokens=6)
    groups_P = [await do_group_rollout(builder, policy) for builder in builders_P]
    for _group in groups_P:
        print([round(reward, 2) for reward in _group.get_total_rewards()])
    _turn = groups_P[0].trajectories_G[0].transitions[0]
    print(_turn.ob.length, "tokens read,", len(_turn.ac.tokens), "written, metrics", _turn.metrics)
    return (groups_P,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Advantages

    From the rewards of a group to one number for each trajectory (or turn). The estimator is an option of the run.
    """)
    return


@app.cell
def _(groups_P):
    for _name in ("mean_centered", "std_normalized", "rloo", "gae"):
        print(f"{_name:15}", [round(float(a[0]), 2) for a in estimate_advantages(groups_P[0], _name)])
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Data

    Trajectories become sequences with four arrays, shifted by one and zero on what was only read. `mask` serves the metrics
    and is taken off before sending.
    """)
    return


@app.cell
def _(groups_P):
    advantages_P = [estimate_advantages(group) for group in groups_P]
    data_D, metadata_D = assemble_training_data(groups_P, advantages_P)
    _inputs = data_D[0].loss_fn_inputs
    print(len(data_D), "data;", metadata_D[:3])
    print({key: value.to_numpy()[-6:].round(2).tolist() for key, value in _inputs.items()})
    return (data_D,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A step

    What is left is two calls. `rl.train.main` (**304**) runs all of this with logging, evaluations, checkpoints, resume and
    three ways to overlap sampling and training.
    """)
    return


@app.cell
async def _(data_D, server, service):
    client = await service.create_lora_training_client(base_model=server.model, rank=8, seed=0)
    _passed = client.forward_backward([without_mask(datum) for datum in data_D], "importance_sampling")
    await client.optim_step(tinker.AdamParams(learning_rate=server.learning_rate))
    print((await _passed).metrics)
    return


if __name__ == "__main__":
    app.run()

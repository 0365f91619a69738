import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="104 First RL run")

with app.setup:
    import asyncio

    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np
    from backend import connect

    import tinker
    from tinker_cookbook.renderers import Message


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 104 · First reinforcement learning

    No example answers this time: only a **reward**. The model tries several times, and what was better than its own average
    becomes likelier. The loop is written out here; **304** runs the library's.

    The task: *answer with as many letters e as you can*. Any model can improve at it, even the random one.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    client = await service.create_lora_training_client(base_model=server.model, rank=16, seed=0)
    prompts = [
        renderer.build_generation_prompt([Message(role="user", content=f"Words with the letter e, please. {topic}.")])
        for topic in ("Trees", "Birds", "Cities", "Food")
    ]

    def reward(text):
        """Share of the letter e in the answer."""
        return text.lower().count("e") / max(len(text), 1)

    return client, prompts, renderer, reward, server


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## One step

    1. **Publish** the weights and sample a *group* of answers to each prompt.
    2. **Reward** each answer.
    3. **Advantage** = reward minus the mean of its group. The group is its own baseline: nothing else is learnt.
    4. **Datum**: prompt and answer, with the sampler's logprobs and the advantage on every answer token, zeros on the prompt.
    5. `forward_backward(..., "importance_sampling")`: minimises −Σ exp(logprob now − logprob then) · advantage.
    6. `optim_step`.
    """)
    return


@app.cell
def _(client, prompts, renderer, reward, server):
    group_size, max_tokens = 8, 12
    params = tinker.SamplingParams(max_tokens=max_tokens, stop=renderer.get_stop_sequences())

    def to_datum(prompt, sequence, advantage):
        """Prompt and answer as one sequence, shifted by one."""
        tokens = prompt.to_ints() + list(sequence.tokens)
        read = prompt.length - 1
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": tokens[1:],
                "logprobs": [0.0] * read + list(sequence.logprobs),
                "advantages": [0.0] * read + [advantage] * len(sequence.tokens),
            },
        )

    async def step():
        """One step of the policy gradient; returns all rewards."""
        sampler = await client.save_weights_and_get_sampling_client()
        groups = await asyncio.gather(
            *(sampler.sample(prompt=p, num_samples=group_size, sampling_params=params).coroutine() for p in prompts)
        )
        data, rewards = [], []
        for prompt, group in zip(prompts, groups, strict=True):
            scores = [reward(renderer.tokenizer.decode(s.tokens, skip_special_tokens=True)) for s in group.sequences]
            for sequence, advantage in zip(group.sequences, np.asarray(scores) - np.mean(scores), strict=True):
                if abs(advantage) > 1e-9:
                    data.append(to_datum(prompt, sequence, float(advantage)))
            rewards += scores
        if data:
            passed = client.forward_backward(data, "importance_sampling")
            await client.optim_step(tinker.AdamParams(learning_rate=server.learning_rate))
            await passed
        return rewards

    return params, step


@app.cell
async def _(step):
    history = [await step() for _ in range(20)]
    means = [float(np.mean(rewards)) for rewards in history]
    print(f"share of e: {means[0]:.3f} -> {means[-1]:.3f}")
    return history, means


@app.cell
def _(history, means):
    figure, _axis = plt.subplots(figsize=(6, 3))
    _axis.plot(means, label="mean reward")
    _axis.fill_between(
        range(len(history)), [min(r) for r in history], [max(r) for r in history], alpha=0.2, label="worst to best"
    )
    _axis.set_xlabel("step")
    _axis.set_ylabel("share of e")
    _axis.legend()
    figure.tight_layout()
    figure
    return


@app.cell
async def _(client, means, params, prompts, renderer):
    final = await client.save_weights_and_get_sampling_client()
    _answer = await final.sample(prompt=prompts[0], num_samples=3, sampling_params=params)
    for _sequence in _answer.sequences:
        print(repr(renderer.tokenizer.decode(_sequence.tokens)))
    assert np.mean(means[-3:]) > np.mean(means[:3])
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What to watch

    * A group whose answers all have one reward teaches nothing: its advantages are 0. Here such data are dropped.
    * The ratio in the loss is 1 on fresh samples (sampler and trainer are the same model). Were it far from 1 at the first
      step, something would be wrong with the tokens: that is what `optim/kl_sample_train_v1` in real runs shows.
    * The model found the cheapest way to the reward. What you reward is what you get.
    """)
    return


if __name__ == "__main__":
    app.run()

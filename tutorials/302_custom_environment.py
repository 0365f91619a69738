import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="302 A custom environment")

with app.setup:
    import random

    import marimo as mo
    from backend import connect

    import tinker
    from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.renderers import Message, get_text_content
    from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
    from tinker_cookbook.rl.rollout_limits import RolloutLimits
    from tinker_cookbook.rl.rollout_presets import RolloutConfig
    from tinker_cookbook.rl.rollout_runner import run_rollout
    from tinker_cookbook.rl.rollouts import do_group_rollout
    from tinker_cookbook.rl.types import EnvGroupBuilder


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 302 · A custom environment

    A conversation with several turns, written with messages instead of tokens: derive from `MessageEnv`, wrap in
    `EnvFromMessageEnv`. The game: *hot or cold*. A number is hidden; after each guess the environment says warmer or colder.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    return renderer, server, service


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The rules

    `step` gets the model's message and returns a reward, whether the episode is over, and the **whole** conversation for the
    next turn. Metrics of the last turn are averaged into `env/all/...`; logs appear in the HTML report.
    """)
    return


@app.class_definition
class HotOrCold(MessageEnv):
    """Reward: 1 for the number, less for ending far away; five turns."""

    def __init__(self, answer, turns=5):
        self.answer, self.turns_left, self.messages, self.last = answer, turns, [], None

    async def initial_observation(self):
        self.messages = [
            Message(role="system", content="Guess my number from 0 to 99. Answer with the number alone."),
            Message(role="user", content="Your guess?"),
        ]
        return self.messages

    async def step(self, message):
        self.turns_left -= 1
        text = get_text_content(message).strip()
        guess = int(text) if text.isdigit() and len(text) < 4 else None
        if guess is None:
            reply = "That is no number."
        elif guess == self.answer:
            reply = "Right."
        else:
            nearer = self.last is None or abs(guess - self.answer) < abs(self.last - self.answer)
            reply, self.last = "Warmer." if nearer else "Colder.", guess
        self.messages = [*self.messages, message, Message(role="user", content=reply)]
        solved = guess == self.answer
        done = solved or self.turns_left == 0
        near = 0.0 if self.last is None else max(0.0, 0.5 - abs(self.last - self.answer) / 100)
        return MessageStepResult(
            reward=1.0 if solved else near if done else 0.0,
            episode_done=done,
            next_messages=self.messages,
            metrics={"solved": float(solved), "readable": float(guess is not None)},
        )


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Test it without a model

    A scripted policy has the interface of a sampler. This one halves the interval that is left; an environment that such a
    player cannot win has a bug.
    """)
    return


@app.cell
async def _(renderer):
    class Script(TokenCompleter):
        """Says the texts of a list, one a turn."""

        def __init__(self, texts):
            self.texts = iter(texts)

        async def __call__(self, model_input, stop):
            tokens = renderer.tokenizer.encode(next(self.texts)) + [stop[0]]
            return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))

    def token_env(answer):
        """The game as the rollout code wants it."""
        return EnvFromMessageEnv(renderer, HotOrCold(answer), failed_parse_reward=0.0, terminate_on_parse_error=False)

    won = await run_rollout(Script(["50", "hello", "25", "30"]), token_env(30))
    lost = await run_rollout(Script(["1", "2", "3", "4", "5"]), token_env(99))
    for _trajectory in (won, lost):
        print([turn.reward for turn in _trajectory.transitions], _trajectory.transitions[-1].metrics)
    assert won.transitions[-1].reward == 1.0 and len(won.transitions) == 4 and lost.transitions[-1].reward == 0.0
    return Script, token_env


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Limits

    An agent that never ends holds up a whole batch. Limits are handed to the rollout; which one fired stands in
    `trajectory.stop_reason` and in the metric `stop/<reason>`.
    """)
    return


@app.cell
async def _(Script, token_env):
    limited = RolloutConfig(limits=RolloutLimits(max_turns=2))
    _short = await run_rollout(Script(["1", "2", "3"]), token_env(99), config=limited)
    print(_short.stop_reason, len(_short.transitions))
    assert len(_short.transitions) == 2
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A group, with a real policy

    `failed_parse_reward` and `terminate_on_parse_error` say what happens to an answer that was cut off or cannot be read.
    Here the game goes on and answers "That is no number."
    """)
    return


@app.cell
async def _(server, service, token_env):
    class HotOrColdGroup(EnvGroupBuilder):
        """Several games with one number."""

        def __init__(self, answer, size):
            self.answer, self.size = answer, size

        async def make_envs(self):
            envs = [token_env(self.answer) for _ in range(self.size)]
            for env in envs:
                env.terminate_on_length = False
            return envs

        def logging_tags(self):
            return ["hot_or_cold"]

    sampler = await service.create_sampling_client(base_model=server.model)
    group = await do_group_rollout(HotOrColdGroup(random.Random(0).randrange(100), 4), TinkerTokenCompleter(sampler, 4))
    print([(len(t.transitions), t.stop_reason) for t in group.trajectories_G], group.get_total_rewards())
    return (group,)


@app.cell
def _(group, renderer):
    _turns = group.trajectories_G[0].transitions
    print(renderer.tokenizer.decode(_turns[-1].ob.to_ints()))
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Before you train on it

    * Play it: `tinker-cookbook play` lets you sit in the model's place for the games of the cookbook.
    * Look at rewards of the untrained model. All equal: nothing can be learnt. Almost never above zero: make it easier first
      or give reward on the way.
    * Check that what you reward is in reach of the tokens you allow.

    **304** trains on environments with one configuration.
    """)
    return


if __name__ == "__main__":
    app.run()

import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="405 Several agents")

with app.setup:
    import asyncio

    import chz
    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np
    from backend import connect

    import tinker
    from tinker_cookbook.renderers import Message, get_text_content
    from tinker_cookbook.rl import train
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
    from tinker_cookbook.stores import TrainingRunStore


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 405 · Several agents

    Two players, one policy. Each seat is an `Env` of its own, so the rollout code needs to know nothing of games; the seats
    of one game share a **table** on which they wait for one another. Both trajectories stand in one group, and what one wins
    the other loses: the group mean is the value of the game.

    The game: players write in turn, two texts each. Who used the letter e more often wins.
    """)
    return


@app.cell
async def _():
    server = await connect()
    renderer = server.renderer
    return renderer, server


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The table

    The environments of a group run at the same time. A condition lets each seat sleep until its turn has come. The game must
    end for *both*, whatever happens: a seat that waits for ever would hold up the batch.
    """)
    return


@app.cell
def _(renderer):
    class Table:
        """Texts of a game, and whose turn it is."""

        def __init__(self, rounds=2):
            self.texts, self.rounds, self.changed = [], rounds, asyncio.Condition()

        @property
        def over(self):
            return len(self.texts) >= 2 * self.rounds

        async def turn_of(self, seat):
            """Until it is the seat's turn, or the game is over."""
            async with self.changed:
                await self.changed.wait_for(lambda: self.over or len(self.texts) % 2 == seat)

        async def write(self, text):
            """Add a text and wake the other seat."""
            async with self.changed:
                self.texts.append(text)
                self.changed.notify_all()

        async def ended(self):
            """Until the game is over."""
            async with self.changed:
                await self.changed.wait_for(lambda: self.over)

        def winner(self):
            """0, 1, or None for a draw."""
            score = [sum(text.count("e") for text in self.texts[seat::2]) for seat in (0, 1)]
            return None if score[0] == score[1] else int(score[1] > score[0])

    class Seat(Env):
        """One player."""

        def __init__(self, table, seat):
            self.table, self.seat = table, seat

        async def _prompt(self):
            await self.table.turn_of(self.seat)
            said = " / ".join(self.table.texts) or "nothing yet"
            return renderer.build_generation_prompt([Message(role="user", content=f"Said: {said[-80:]}. Go on!")])

        async def initial_observation(self):
            return await self._prompt(), renderer.get_stop_sequences()

        async def step(self, action, *, extra=None):
            await self.table.write(get_text_content(renderer.parse_response(action)[0]))
            stop = renderer.get_stop_sequences()
            if len(self.table.texts) < 2 * self.table.rounds - 1:
                return StepResult(0.0, False, await self._prompt(), stop)
            await self.table.ended()
            winner = self.table.winner()
            reward = 0.0 if winner is None else 1.0 if winner == self.seat else -1.0
            count = sum(text.count("e") for text in self.table.texts[self.seat :: 2])
            return StepResult(
                reward, True, tinker.ModelInput.empty(), stop, {"win": float(reward > 0), "letters": count}
            )

    return Seat, Table


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Several games in a group

    A group of one game has rewards (+1, −1): already centred. Several games on one table of topics make the mean steadier.
    """)
    return


@app.cell
def _(Seat, Table):
    class Games(EnvGroupBuilder):
        """``games`` tables with two seats each."""

        def __init__(self, games):
            self.games = games

        async def make_envs(self):
            tables = [Table() for _ in range(self.games)]
            return [Seat(table, seat) for table in tables for seat in (0, 1)]

        def logging_tags(self):
            return ["self_play"]

    class GamesDataset(RLDataset):
        """The same game, again and again."""

        def __init__(self, batches):
            self.batches = batches

        def get_batch(self, index):
            return [Games(4) for _ in range(4)]

        def __len__(self):
            return self.batches

    @chz.chz
    class GamesBuilder(RLDatasetBuilder):
        """Configuration of the dataset."""

        batches: int = 12

        async def __call__(self):
            return GamesDataset(self.batches), None

    return (GamesBuilder,)


@app.cell
async def _(GamesBuilder, server):
    config = train.Config(
        log_path=str(server.runs / "games"),
        model_name=server.model,
        renderer_name=server.renderer_name,
        dataset_builder=GamesBuilder(),
        learning_rate=server.learning_rate,
        max_tokens=6,
        lora_rank=16,
        eval_every=0,
        save_every=0,
        num_groups_to_log=1,
    )
    await train.main(config)
    rows = [r for r in TrainingRunStore.local(config.log_path).read_metrics() if "env/all/reward/total" in r]
    return (rows,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Reading self-play

    The mean reward is 0 whatever happens, because one's gain is the other's loss. **The reward says nothing about progress**:
    look at something outside the game (here, how many e's are written), and play against a fixed opponent.
    """)
    return


@app.cell
def _(rows):
    figure, _axes = plt.subplots(1, 2, figsize=(9, 3))
    _axes[0].plot([r["env/all/reward/total"] for r in rows])
    _axes[0].set_title("reward: always 0")
    _axes[0].set_ylim(-1, 1)
    _axes[1].plot([r["env/all/letters"] for r in rows])
    _axes[1].set_title("letters e in a player's texts")
    for _axis in _axes:
        _axis.set_xlabel("step")
    figure.tight_layout()
    figure
    return


@app.cell
def _(rows):
    assert max(abs(r["env/all/reward/total"]) for r in rows) < 1e-6
    assert np.mean([r["env/all/letters"] for r in rows[-3:]]) > np.mean([r["env/all/letters"] for r in rows[:3]])
    print("letters per player:", [round(r["env/all/letters"], 2) for r in rows])
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Other shapes

    * **Programmed partner**: the other side lives inside the environment (`multiplayer_rl.guess_number`).
    * **Model as partner**: a `MessageCompleter` inside the environment, frozen or another checkpoint
      (`multiplayer_rl.twenty_questions`; `multiplayer_rl.text_arena` for the test games against a base model).
    * **Different roles for one policy**: seats with different system prompts, as here.
    """)
    return


if __name__ == "__main__":
    app.run()

"""What the RL loop of a cookbook asks of the trainer in each of its modes: groups per gradient call, and optimizer steps.

``python loop_observations.py TOKENIZER OUT`` writes those of the library on the path, against a service in memory.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz
import fake_service
import numpy as np
from transformers import AutoTokenizer

import tinker
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult

BATCHES, GROUPS, SIZE = 4, 4, 4
GOOD, BAD, STOP = 20, 21, 22
MODEL = "Qwen/Qwen3-8B"
STREAM = {"stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=GROUPS, num_minibatches=2)}
ASYNC = {
    "async_config": train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=GROUPS, loss_fn="importance_sampling")
}
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "sync, substeps": {"num_substeps": 2},
    "stream": STREAM,
    "stream, substeps": {**STREAM, "num_substeps": 2},
    "async": ASYNC,
    "async, substeps": {**ASYNC, "num_substeps": 2},
    "async stream": {**ASYNC, **STREAM},
    "async stream, substeps": {**ASYNC, **STREAM, "num_substeps": 2},
}


class PickGood(Env):
    """Reward 1 for GOOD; the prompt begins with the number of the group."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def initial_observation(self) -> Any:
        await asyncio.sleep((0.03, 0.01, 0.06, 0.02)[self.number % 4])
        return tinker.ModelInput.from_ints([self.number, 5]), [STOP]

    async def step(self, action: Any, *, extra: Any = None) -> StepResult:
        empty = tinker.ModelInput.empty()
        reward = float(action[0] == GOOD)
        return StepResult(
            reward=reward, episode_done=True, next_observation=empty, next_stop_condition=[STOP], metrics={}
        )


class Group(EnvGroupBuilder):
    def __init__(self, number: int) -> None:
        self.number = number

    async def make_envs(self) -> Sequence[Env]:
        return [PickGood(self.number) for _ in range(SIZE)]


class Groups(RLDataset):
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [Group(100 + index * GROUPS + place) for place in range(GROUPS)]

    def __len__(self) -> int:
        return BATCHES


@chz.chz
class GroupsBuilder(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return Groups(), None


def observe(mode: str, tokenizer: Any) -> list[Any]:
    """The calls of a run: the number of groups of a gradient call, "step" for one of the optimizer."""
    service = fake_service.Service(tokenizer)
    service.allowed = np.asarray([GOOD, BAD, STOP])
    tinker.ServiceClient = service  # type: ignore[misc]
    calls: list[Any] = []

    class Client(fake_service.TrainingClient):
        def forward_backward(self, data: list[Any], *rest: Any, **named: Any) -> Any:
            calls.append(len({fake_service.tokens_of(datum.model_input)[0] for datum in data}))
            return super().forward_backward(data, *rest, **named)

        def optim_step(self, params: Any) -> Any:
            calls.append("step")
            return super().optim_step(params)

    before = fake_service.TrainingClient
    fake_service.TrainingClient = Client
    try:
        config = train.Config(
            log_path=tempfile.mkdtemp(),
            model_name=MODEL,
            recipe_name="loop",
            learning_rate=0.3,
            max_tokens=1,
            dataset_builder=GroupsBuilder(),
            eval_every=0,
            save_every=0,
            **MODES[mode],
        )
        asyncio.run(asyncio.wait_for(train.main(config), 100))
    finally:
        fake_service.TrainingClient = before
    return calls


if __name__ == "__main__":
    folder = Path(MODEL)  # a name that both libraries know, as a folder of the working folder
    folder.parent.mkdir(exist_ok=True)
    if not folder.exists():
        folder.symlink_to(sys.argv[1])
    loaded = AutoTokenizer.from_pretrained(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps({name: observe(name, loaded) for name in MODES}))

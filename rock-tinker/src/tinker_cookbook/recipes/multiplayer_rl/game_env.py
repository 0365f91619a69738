"""Games as token environments."""

from __future__ import annotations

from tinker_cookbook.rl.message_env import EnvFromMessageEnv
from tinker_cookbook.rl.types import Action, ActionExtra, StepResult


class GameEnv(EnvFromMessageEnv):
    """Every answer is a move, also one that was cut off: what it is worth is the game's business."""

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        message, _ = self.renderer.parse_response(action)
        return await self._continued(await self.message_env.step(message))

"""The seam to ROCK: a Harbor job in a sandbox as the rollout sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_cookbook.swe.errors import RolloutFailed, SettingError
from tinker_cookbook.swe.rollout import TrialResult

if TYPE_CHECKING:
    from rock.sdk import ModelServiceClient


class HarborAgentJob:
    """A `rock.sdk.Job` with one trial.

    Args:
        harbor: content of a harbor.yaml.

    Raises:
        SettingError: rl-rock is not installed, or the configuration is refused.
    """

    def __init__(self, harbor: dict[str, Any]) -> None:
        try:
            from rock.sdk import HarborJobConfig, Job
        except ImportError as error:
            raise SettingError(
                f"rl-rock is not installed ({error}); run setup.sh control, or pip install rl-rock"
            ) from error
        from rock.errors import RockError

        try:
            self._job = Job(HarborJobConfig.model_validate(harbor))
        except (ValueError, RockError) as error:
            raise SettingError(f"harbor.yaml is refused: {error}") from error
        self._service: AnsweringModelService | None = None

    @property
    def model_service(self) -> AnsweringModelService:
        """The agent's model calls; there after `submit`."""
        if self._service is None:
            self._service = AnsweringModelService(self._job.model_service)
        return self._service

    async def submit(self) -> None:
        """Starts sandbox, ModelService and Harbor."""
        await self._job.submit()

    async def wait(self, timeout: float) -> Sequence[TrialResult]:
        """The trials, once Harbor has ended."""
        result = await self._job.wait(timeout)
        if result.failure and not result.trials:
            raise RolloutFailed("agent", result.failure)
        return result.trials

    async def export(self, folder: Path) -> None:
        """Copies the logs of agent and verifier out of the sandbox."""
        folder.mkdir(parents=True, exist_ok=True)
        await self._job.export(folder)

    async def close(self) -> None:
        """Ends whatever runs and removes the sandbox."""
        await self._job.close()


class AnsweringModelService:
    """`rock.sdk.ModelServiceClient` with a status at each answer."""

    def __init__(self, client: ModelServiceClient) -> None:
        self._client = client

    async def next_request(self, timeout: float) -> Any:
        """The next model call, the end of the session, or None after `timeout` seconds."""
        return await self._client.next_request(timeout)

    async def respond(self, index: int, body: dict[str, Any], *, status: int = 200) -> None:
        """Answers a call; a status of 400 and above makes it an error."""
        from rock.sdk.model_service import ModelError

        if status < 400:
            await self._client.respond(index, body)
            return
        error = body["error"]
        await self._client.respond(
            index, ModelError(error["message"], status=status, type=error["type"], code=error["code"])
        )

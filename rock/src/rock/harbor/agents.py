"""Agents that need no installation in the task environment: their Python is there already."""

from __future__ import annotations

import json
import logging
import shlex
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rock.harbor.profiles import PROFILES, load_profile

DEFAULT_PYTHON = "/opt/harbor/bin/python"
DEFAULT_BASE_URL = "http://127.0.0.1:28080/v1"
_FOLDER = "/installed-agent"
_TRAJECTORY = "mini-swe-agent.trajectory.json"


class AgentBudget(BaseModel):
    """Options of PreinstalledMiniSweAgent (``agents[].kwargs`` of a job). None leaves the profile's value.

    Args:
        profile: "text" (fenced commands), "single" (one command, for very small models), "tools" (tool calls); None takes what
            the task's environment names in ROCK_AGENT_PROFILE, else "text".
        python: Python in the task environment that has mini-swe-agent.
        base_url: model endpoint; None takes OPENAI_BASE_URL of the agent's env, else the ModelService's default.
        step_limit: model calls, exactly. The smaller of this and the profile's holds.
        max_output_tokens: tokens of one answer; goes out as max_tokens.
        max_input_tokens: longest prompt in tokens. The policy counts and refuses longer ones; the agent ends then.
        max_observation_length: characters of a command's output; the middle of longer ones is left out.
        last_n_observations: older observations shrink to a note; 0 keeps all.
        completion_kwargs: further fields of the request body.
        request_timeout, command_timeout: seconds that a model call and a command may take.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=False)

    profile: Literal["text", "single", "tools"] | None = None
    python: str = DEFAULT_PYTHON
    base_url: str | None = None
    step_limit: int | None = Field(default=None, ge=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    max_input_tokens: int | None = Field(default=None, ge=1)
    max_observation_length: int | None = Field(default=None, ge=1)
    last_n_observations: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    completion_kwargs: dict[str, Any] | None = None
    request_timeout: float | None = Field(default=None, gt=0)
    command_timeout: int | None = Field(default=None, ge=1)


class PreinstalledMiniSweAgent(BaseAgent):
    """mini-swe-agent from a Python that the environment shows read-only; nothing is downloaded and the task's own packages stay
    as they are."""

    def __init__(
        self,
        logs_dir: Path,
        model_name: str | None = None,
        logger: logging.Logger | None = None,
        extra_env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        given = {name: kwargs.pop(name) for name in list(kwargs) if name in AgentBudget.model_fields}
        passed_on = {"mcp_servers", "skills_dir", "model_api_key_name", "model_api_format", "skip_model_parsing"}
        passed_on |= {"load_trajectory", "environment_logs_dir", "override_setup_timeout_sec"}
        unknown = sorted(set(kwargs) - passed_on)
        if unknown:
            raise ValueError(f"agent kwarg {unknown[0]!r} is unknown; known are {', '.join(AgentBudget.model_fields)}")
        try:
            self.budget = AgentBudget.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"agent kwarg {name!r} is {first['input']!r}: {first['msg']}") from error
        super().__init__(
            logs_dir, model_name=model_name or "openai/local", logger=logger, extra_env=extra_env, **kwargs
        )

    @staticmethod
    def name() -> str:
        return "mini-swe-agent-preinstalled"

    def version(self) -> str | None:
        try:
            from importlib.metadata import version

            return version("mini-swe-agent")
        except ImportError:
            return None

    def _parse_model_name(self, model_name: str) -> tuple[str | None, str]:
        """Provider and name. Harbor's own parsing imports litellm, seconds of start-up, for what a slash tells."""
        provider, slash, name = model_name.partition("/")
        return (provider, name) if slash else (None, model_name)

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing is installed; ``run`` brings the one file that it needs."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Runs the agent to its end.

        Raises:
            NonZeroAgentExitCodeError: it could not go on (no Python, no model endpoint). The work so far is graded all the same.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            program = files("rock.harbor") / "agent_files" / "mini_rollout.py"
            (folder / "mini_rollout.py").write_text(program.read_text())
            (folder / "settings.json").write_text(json.dumps(self._settings(instruction)))
            folder.chmod(0o755)
            await environment.upload_dir(folder, _FOLDER)
        logs = self.environment_logs_dir.as_posix()
        command = (
            f"{shlex.quote(self.budget.python)} -I -B {_FOLDER}/mini_rollout.py {_FOLDER}/settings.json "
            f"> {logs}/mini-swe-agent.txt 2>&1 </dev/null || {{ code=$?; tail -c 3000 {logs}/mini-swe-agent.txt; exit $code; }}"
        )
        done = await environment.exec(command)
        if done.return_code != 0:
            raise NonZeroAgentExitCodeError(
                f"mini-swe-agent ended with exit code {done.return_code}: {(done.stdout or '').strip()}"
            )

    def populate_context_post_run(self, context: AgentContext) -> None:
        """Token counts and the exit status, from the agent's trajectory file."""
        try:
            trajectory = json.loads((self.logs_dir / _TRAJECTORY).read_text())
        except (OSError, ValueError):
            return
        usages = [
            (message.get("extra", {}).get("response") or {}).get("usage") or {}
            for message in trajectory.get("messages", [])
        ]
        context.n_input_tokens = sum(int(usage.get("prompt_tokens") or 0) for usage in usages)
        context.n_output_tokens = sum(int(usage.get("completion_tokens") or 0) for usage in usages)
        info = trajectory.get("info", {})
        context.metadata = {
            "exit_status": info.get("exit_status"),
            "model_calls": info.get("model_stats", {}).get("api_calls"),
        }

    def _settings(self, instruction: str) -> dict[str, Any]:
        """What the program in the environment reads. Budgets stand here once and go to the wire unchanged."""
        budget = self.budget
        base_url = budget.base_url or self._base_url or self._extra_env.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        model = {
            "model_name": (self.model_name or "local").removeprefix("openai/"),
            "base_url": base_url,
            "max_tokens": budget.max_output_tokens,
            "temperature": budget.temperature,
            "top_p": budget.top_p,
            "extra_body": budget.completion_kwargs,
            "request_timeout": budget.request_timeout,
            "max_observation_length": budget.max_observation_length,
            "last_n_observations": budget.last_n_observations,
        }
        agent: dict[str, Any] = {"output_path": f"{self.environment_logs_dir}/{_TRAJECTORY}"}
        if budget.step_limit is not None:
            agent["step_limit"] = budget.step_limit
        environment = {} if budget.command_timeout is None else {"timeout": budget.command_timeout}
        return {
            "task": instruction,
            "profile": budget.profile,
            "profiles": {name: load_profile(name) for name in PROFILES},
            "model": model,
            "agent": agent,
            "environment": environment,
        }

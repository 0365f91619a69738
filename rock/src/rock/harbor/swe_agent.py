"""SWE-agent with a budget: Harbor's own SWE-agent at a pinned commit, plus the limits that its options do not cover."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from harbor.agents.installed.swe_agent import SweAgent
from harbor.environments.base import BaseEnvironment

from rock.harbor.swe_bundle import BundleError, check_archive, file_digest

# SWE-agent 1.1.0; the package of that name on the index is another one.
PINNED_VERSION = "3ea751c087f32b16e039a2233dd6eefecef325d5"
CONFIG = "/opt/sweagent-configs/budget.yaml"
_OVERRIDES = "/opt/sweagent-configs/budget-overrides.yaml"
# Whole numbers among the arguments, with their defaults.
_BUDGET = {
    "max_input_tokens": 32768,
    "max_output_tokens": 8192,
    "max_observation_length": 12000,
    "last_n_observations": 8,
    "per_instance_call_limit": 31,
}
_UNPACKED_FROM = "/tmp/sweagent-bundle.tar.gz"
# Nothing of a grader may be there before the agent has ended.
_UNPACK = f"""set -e
if [ -n "$(ls -A /tests 2>/dev/null)" ]; then echo "/tests holds files before the agent has run" >&2; exit 1; fi
tar -xzf {_UNPACKED_FROM} -C / --no-same-owner
rm -f {_UNPACKED_FROM}
ln -sf /opt/sweagent-venv/bin/sweagent /usr/local/bin/sweagent
/opt/sweagent-venv/bin/python -c 'import sweagent'
if [ -f /opt/miniconda3/etc/profile.d/conda.sh ]; then
  echo '. /opt/miniconda3/etc/profile.d/conda.sh; conda activate testbed 2>/dev/null || true' >> /root/.bashrc
fi
"""
# Runs in SWE-agent's own Python in the task's container: its default configuration with the budget laid over it.
_MERGE = """
import pathlib, yaml
def lay(base, over):
    for key, value in over.items():
        base[key] = lay(base.get(key) or {}, value) if isinstance(value, dict) else value
    return base
folder = pathlib.Path("/opt/sweagent-configs")
default = yaml.safe_load((folder / "default.yaml").read_text())
over = yaml.safe_load((folder / "budget-overrides.yaml").read_text())
(folder / "budget.yaml").write_text(yaml.safe_dump(lay(default, over), sort_keys=False))
"""


class BudgetedSweAgent(SweAgent):
    """SWE-agent in an environment of its own inside the task's container; the task's packages stay as they are.

    Args (``agents[].kwargs`` of a job, numbers or texts of numbers):
        max_input_tokens: longest prompt; the agent ends when it would be longer.
        max_output_tokens: tokens of one answer; goes out as max_tokens.
        max_observation_length: characters of one observation.
        last_n_observations: how many observations stay in the history.
        per_instance_call_limit: the agent makes one call more than this.
        temperature, top_p: of every call.
        bundle, bundle_sha256: archive of ``python -m rock.harbor.swe_bundle`` where Harbor runs, and its SHA-256. Without them
            SWE-agent is fetched and installed in the container, which needs a network there.
    """

    def __init__(self, logs_dir: Path, *args: Any, extra_env: dict[str, str] | None = None, **kwargs: Any) -> None:
        self.overrides, options, self.bundle, self.bundle_sha256 = read_kwargs(kwargs)
        super().__init__(logs_dir, *args, extra_env={**(extra_env or {}), "SWEAGENT_CONFIG": CONFIG}, **options)

    @classmethod
    def preflight(cls, kwargs: dict[str, Any] | None = None, env: Mapping[str, str] | None = None) -> None:
        """Checks the arguments before anything is started.

        Raises:
            ValueError: names the argument.
        """
        _, options, _, _ = read_kwargs(kwargs or {})
        super().preflight(options, env)

    @staticmethod
    def name() -> str:
        return "swe-agent-budgeted"

    async def install(self, environment: BaseEnvironment) -> None:
        """Unpacks the bundle where there is one; else fetches and installs SWE-agent.

        Raises:
            BundleError: the bundle is not the pinned one, or could write where it must not.
            RuntimeError: it cannot be unpacked in the container.
        """
        if self.bundle is None:
            await super().install(environment)
            return
        archive = Path(self.bundle)
        if not archive.is_file():
            raise BundleError(f"agent kwarg 'bundle': {archive} is not there (a path where Harbor runs)")
        if (found := file_digest(archive)) != self.bundle_sha256:
            raise BundleError(f"{archive} has SHA-256 {found}, pinned is {self.bundle_sha256}")
        check_archive(archive)
        await environment.upload_file(archive, _UNPACKED_FROM)
        done = await environment.exec(_UNPACK, user="root")
        if done.return_code != 0:
            raise RuntimeError(
                f"SWE-agent's bundle does not run in the container: {(done.stderr or done.stdout or '').strip()}"
            )

    async def setup(self, environment: BaseEnvironment) -> None:
        """Installs SWE-agent and writes its configuration.

        Raises:
            RuntimeError: the configuration cannot be written.
        """
        await super().setup(environment)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "budget-overrides.yaml"
            path.write_text(yaml.safe_dump(self.overrides, sort_keys=False))
            await environment.upload_file(path, _OVERRIDES)
        done = await environment.exec(f"/opt/sweagent-venv/bin/python - <<'PYTHON'\n{_MERGE}\nPYTHON", user="root")
        if done.return_code != 0:
            raise RuntimeError(
                f"SWE-agent's configuration cannot be written: {(done.stderr or done.stdout or '').strip()}"
            )


def read_kwargs(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str | None, str | None]:
    """Takes the arguments of a job apart: what is laid over SWE-agent's configuration, options of Harbor's own agent, the bundle and
    its SHA-256.

    Raises:
        ValueError: names the argument.
    """
    rest = dict(given)
    budget = {name: _whole(name, rest.pop(name, default)) for name, default in _BUDGET.items()}
    bundle, bundle_sha256 = rest.pop("bundle", None), rest.pop("bundle_sha256", None)
    if bundle is not None and not re.fullmatch(r"[0-9a-f]{64}", bundle_sha256 or ""):
        raise ValueError(f"agent kwarg 'bundle_sha256' is {bundle_sha256!r}; give the SHA-256 of {bundle}")
    extra = rest.pop("completion_kwargs", None) or {}
    extra = json.loads(extra) if isinstance(extra, str) else dict(extra)
    options = {
        "version": PINNED_VERSION,
        **rest,
        "max_input_tokens": budget.pop("max_input_tokens"),
        "temperature": float(rest.get("temperature", 1.0)),
        "top_p": float(rest.get("top_p", 1.0)),
        # An unknown model has no price: a cost limit would end the agent at once.
        "per_instance_cost_limit": 0,
        "total_cost_limit": 0,
        # max_output_tokens alone never goes on the wire.
        "completion_kwargs": json.dumps({**extra, "max_tokens": budget["max_output_tokens"]}),
    }
    return budget_overrides(**budget), options, bundle, bundle_sha256


def budget_overrides(
    *, max_observation_length: int, last_n_observations: int, per_instance_call_limit: int, max_output_tokens: int
) -> dict[str, Any]:
    """What is laid over SWE-agent's default configuration."""
    return {
        "agent": {
            "templates": {"max_observation_length": max_observation_length},
            "history_processors": [
                {"type": "last_n_observations", "n": last_n_observations, "polling": 1},
                {"type": "cache_control", "last_n_messages": 2},
            ],
            "model": {
                "per_instance_call_limit": per_instance_call_limit,
                "max_output_tokens": max_output_tokens,
            },
        }
    }


def _whole(name: str, value: int | str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"agent kwarg {name!r} is {value!r}; give a whole number of at least 1")
    return number

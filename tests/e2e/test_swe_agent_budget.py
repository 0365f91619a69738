"""The budget of the GPU profile reaches SWE-agent: command line, configuration and the merge in the container."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ROCK_HARBOR_PYTHON", "")
pytestmark = [
    pytest.mark.harbor,
    pytest.mark.skipif(not PYTHON, reason="needs the Harbor environment (ROCK_HARBOR_PYTHON)"),
]

PROGRAM = """
import json, pathlib, sys, tempfile
from rock.harbor.swe_agent import _MERGE, BudgetedSweAgent
kwargs = json.loads(sys.argv[1])
BudgetedSweAgent.preflight(kwargs, {})  # as Harbor does before it queues a trial
agent = BudgetedSweAgent(pathlib.Path(tempfile.mkdtemp()), model_name="openai/local", **kwargs)
print(json.dumps({"flags": agent.build_cli_flags(), "version": agent.version(), "over": agent.overrides, "merge": _MERGE}))
"""


def run(kwargs: dict[str, object]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "rock" / "src"),
        "HARBOR_TELEMETRY": "off",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return subprocess.run(
        [PYTHON, "-c", PROGRAM, json.dumps(kwargs)], capture_output=True, text=True, timeout=120, env=environment
    )


def test_the_template_s_budget_reaches_flags_and_configuration(tmp_path):
    template = yaml.safe_load((ROOT / "examples/tinker_quick_start/templates/harbor.yaml").read_text())
    done = run(template["agents"][0]["kwargs"])
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.strip().splitlines()[-1])
    assert "--agent.model.max_input_tokens 32768" in made["flags"] and '{"max_tokens": 8192}' in made["flags"]
    assert made["version"] == "3ea751c087f32b16e039a2233dd6eefecef325d5"
    # The program that runs in the container, on a folder of this machine.
    (tmp_path / "default.yaml").write_text(
        "agent: {templates: {system_template: S, max_observation_length: 1}, tools: {x: 1}}"
    )
    (tmp_path / "budget-overrides.yaml").write_text(yaml.safe_dump(made["over"]))
    subprocess.run(
        [PYTHON, "-c", made["merge"].replace("/opt/sweagent-configs", str(tmp_path))], check=True, timeout=60
    )
    agent = yaml.safe_load((tmp_path / "budget.yaml").read_text())["agent"]
    assert agent["templates"] == {"system_template": "S", "max_observation_length": 12000}
    assert agent["tools"] == {"x": 1}
    assert agent["history_processors"][0] == {"type": "last_n_observations", "n": 8, "polling": 1}
    assert agent["model"]["per_instance_call_limit"] == 31  # 32 turns: the agent makes one call more than its limit


def test_the_bundle_passes_harbor_s_own_check_of_arguments_and_a_mistyped_one_does_not():
    assert run({"bundle": "/opt/public/a.tar.gz", "bundle_sha256": "a" * 64}).returncode == 0
    done = run({"max_outptu_tokens": 5})
    assert done.returncode != 0 and "max_outptu_tokens" in done.stderr


def test_a_wrong_number_is_refused_by_name():
    done = run({"max_output_tokens": "many"})
    assert done.returncode != 0 and "agent kwarg 'max_output_tokens' is 'many'" in done.stderr

"""Harbor jobs in outer sandboxes: agents, oracle and idleness on real tasks."""

from __future__ import annotations

import json

import pytest

pytestmark = [
    pytest.mark.harbor,
    pytest.mark.namespaces,
    pytest.mark.slow,
    pytest.mark.parametrize("rock_stack", ["local"], indirect=True),
]

MINI = {
    "import_path": "rock.harbor.agents:PreinstalledMiniSweAgent",
    "model_name": "openai/local",
    "kwargs": {"step_limit": 6, "max_output_tokens": 333, "temperature": 0.5, "max_observation_length": 400},
}
FIXES = {
    "sympy__sympy-19637": [
        "grep -n 'hit = kern in s' sympy/core/sympify.py",
        "sed -i 's/^        hit = kern in s$/            hit = kern in s/' sympy/core/sympify.py && git diff --stat",
    ],
    "pallets__flask-5014": [
        'sed -i \'s/^        if "." in name:$/        if not name: raise ValueError("name is empty")\\n&/\' src/flask/blueprints.py',
    ],
    "mini__rename-000": [],
}


async def test_an_agent_that_makes_the_right_edit_of_sympy_gets_reward_one(run_harbor_job, harbor_tasks):
    task_id = "sympy__sympy-19637"
    done = await run_harbor_job(harbor_tasks(task_id), MINI, FIXES[task_id])
    (trial,) = done.result.trials
    assert (trial.reward, trial.evaluated, trial.exception) == (1.0, True, None), done.result
    assert trial.report[task_id]["resolved"] and not trial.report[task_id]["tests_status"]["PASS_TO_PASS"]["failure"]
    assert (done.end.exit_code, done.end.requests) == (0, 3) and done.result.model_requests == 3
    for body in done.requests:
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("local", 333, 0.5)
    first, second = done.requests[:2]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    names = {path.name for path in done.export.rglob("*") if path.is_file()}
    assert {"mini-swe-agent.trajectory.json", "report.json", "reward.txt", "patch.diff", "trajectory.jsonl"} <= names


async def test_an_agent_that_makes_the_right_edit_of_flask_gets_reward_one(run_harbor_job, harbor_tasks):
    task_id = "pallets__flask-5014"
    done = await run_harbor_job(harbor_tasks(task_id), MINI, FIXES[task_id])
    (trial,) = done.result.trials
    assert (trial.reward, trial.evaluated) == (1.0, True), done.result
    assert trial.report[task_id]["resolved"]


async def test_one_command_solves_a_mini_task_and_is_the_whole_rollout(run_harbor_job, harbor_tasks):
    task = harbor_tasks("mini__rename-000")
    command = (task / "solution" / "solve.sh").read_text().splitlines()[-1]
    done = await run_harbor_job(task, MINI, [command])
    (trial,) = done.result.trials
    assert (trial.reward, len(done.requests)) == (1.0, 1), done.result
    roles = [message["role"] for message in done.requests[0]["messages"]]
    assert roles == ["system", *["user", "assistant"] * 4, "user"]


async def test_a_wrong_command_is_evaluated_with_reward_zero(run_harbor_job, harbor_tasks):
    done = await run_harbor_job(harbor_tasks("mini__rename-000"), MINI, ["true"])
    (trial,) = done.result.trials
    assert (trial.reward, trial.evaluated) == (0.0, True)
    assert trial.report["mini__rename-000"]["tests_status"]["FAIL_TO_PASS"]["failure"]


@pytest.mark.parametrize("task_id", list(FIXES))
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
async def test_the_oracle_gets_one_and_doing_nothing_gets_zero(run_harbor_job, harbor_tasks, task_id, agent, reward):
    done = await run_harbor_job(harbor_tasks(task_id), {"name": agent})
    (trial,) = done.result.trials
    assert (trial.reward, trial.evaluated, trial.exception) == (reward, True, None), done.result
    assert trial.report[task_id]["resolved"] is (reward == 1.0)


async def test_a_verifier_that_cannot_run_is_not_evaluated(run_harbor_job, harbor_tasks, tmp_path):
    import shutil

    broken = tmp_path / "mini__rename-000"
    shutil.copytree(harbor_tasks("mini__rename-000"), broken)
    (broken / "tests" / "checks").unlink()
    done = await run_harbor_job(broken, {"name": "oracle"})
    (trial,) = done.result.trials
    assert (trial.reward, trial.evaluated) == (None, False)
    assert trial.exception["exception_type"] == "RewardFileNotFoundError"


async def test_an_agent_that_cannot_start_is_a_failure_before_the_first_request(run_harbor_job, harbor_tasks):
    agent = {**MINI, "kwargs": {"python": "/nonexistent/python"}}
    done = await run_harbor_job(harbor_tasks("mini__rename-000"), agent)
    assert done.end.requests == 0
    assert done.result.failure == "the agent ended before its first model request"
    assert done.result.trials[0].exception["exception_type"] == "NonZeroAgentExitCodeError"


async def test_the_turn_budget_is_exact(run_harbor_job, harbor_tasks):
    agent = {**MINI, "kwargs": {"step_limit": 4}}
    done = await run_harbor_job(harbor_tasks("pallets__flask-5014"), agent, ["true"] * 20)
    assert len(done.requests) == 4
    trajectory = next(done.export.rglob("mini-swe-agent.trajectory.json"))
    assert json.loads(trajectory.read_text())["info"]["exit_status"] == "LimitsExceeded"


async def test_observations_are_cut_to_their_budget(run_harbor_job, harbor_tasks):
    agent = {**MINI, "kwargs": {"step_limit": 2, "max_observation_length": 1000}}
    done = await run_harbor_job(harbor_tasks("pallets__flask-5014"), agent, ["seq 100000"])
    text = done.requests[1]["messages"][-1]["content"]
    assert "characters left out here" in text and len(text) < 1200

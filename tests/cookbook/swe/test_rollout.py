"""One rollout: what counts as a score, what as a failure, and that the sandbox always goes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tinker_cookbook.swe import Deadline, roll_out

USER = {"role": "user", "content": "go"}


@dataclass
class Trial:
    task_name: str = "t"
    reward: float | None = 1.0
    evaluated: bool = True
    exception: dict[str, Any] | None = None
    report: dict[str, Any] | None = None


class MemoryJob:
    """A job with an agent in memory that records what was called."""

    def __init__(self, service, trial, *, submit_error=None, hang=""):
        self.model_service, self._trial, self._submit_error, self._hang = service, trial, submit_error, hang
        self.calls: list[str] = []

    async def submit(self):
        self.calls.append("submit")
        if self._submit_error:
            raise self._submit_error
        if self._hang == "submit":
            await asyncio.sleep(60)

    async def wait(self, timeout):
        self.calls.append("wait")
        if self._hang == "wait":
            await asyncio.sleep(60)
        return [self._trial] if self._trial else []

    async def export(self, folder):
        self.calls.append("export")

    async def close(self):
        await asyncio.sleep(0.05)
        self.calls.append("close")


@pytest.fixture
def one_call(memory_service):
    async def agent(service):
        await service.chat([USER])

    return lambda: memory_service(agent)


async def test_a_graded_rollout_has_the_verifiers_reward(policy_of, scripted_sampler, one_call, tmp_path):
    job = MemoryJob(one_call(), Trial(reward=1.0))
    rollout = await roll_out(job, "t", policy_of(scripted_sampler(["x"])), Deadline(9, "test"), tmp_path)
    assert rollout.usable and rollout.reward == 1.0
    summary = rollout.summary()
    assert {key: summary[key] for key in ("task_id", "reward", "episode_done", "turns_used")} == {
        "task_id": "t",
        "reward": 1.0,
        "episode_done": True,
        "turns_used": 1,
    }
    assert job.calls == ["submit", "wait", "export", "close"]
    assert summary["exported_to"] == str(tmp_path)


async def test_a_verifier_that_could_not_run_is_not_evaluated_and_never_reward_zero(
    policy_of, scripted_sampler, one_call, tmp_path
):
    trial = Trial(
        reward=0.0, evaluated=False, exception={"exception_type": "VerifierTimeoutError", "exception_message": "m"}
    )
    job = MemoryJob(one_call(), trial)
    rollout = await roll_out(job, "t", policy_of(scripted_sampler(["x"])), Deadline(9, "test"), tmp_path)
    summary = rollout.summary()
    assert (summary["reward"], summary["evaluated"], summary["episode_done"]) == (None, False, False)
    assert "VerifierTimeoutError" in summary["error"]
    with pytest.raises(ValueError, match="no reward"):
        _ = rollout.reward


async def test_an_agent_error_that_was_graded_keeps_its_score_and_its_error(
    policy_of, scripted_sampler, one_call, tmp_path
):
    trial = Trial(reward=0.0, exception={"exception_type": "AgentTimeoutError"})
    rollout = await roll_out(
        MemoryJob(one_call(), trial), "t", policy_of(scripted_sampler(["x"])), Deadline(9, "test"), tmp_path
    )
    assert rollout.usable and rollout.reward == 0.0
    assert rollout.summary()["agent_exception"] == {"exception_type": "AgentTimeoutError"}


async def test_a_sandbox_that_does_not_start_is_a_failed_rollout_and_is_taken_down(
    policy_of, scripted_sampler, one_call, tmp_path
):
    job = MemoryJob(one_call(), None, submit_error=ConnectionError("admin is not there"))
    rollout = await roll_out(job, "t", policy_of(scripted_sampler([])), Deadline(9, "test"), tmp_path)
    assert rollout.error == "submit: ConnectionError: admin is not there"
    assert not rollout.usable
    assert job.calls[-1] == "close"


async def test_a_job_without_a_trial_is_not_evaluated(policy_of, scripted_sampler, one_call, tmp_path):
    rollout = await roll_out(
        MemoryJob(one_call(), None), "t", policy_of(scripted_sampler(["x"])), Deadline(9, "test"), tmp_path
    )
    assert rollout.error is not None and "no trial result" in rollout.error


@pytest.mark.parametrize(
    ("hang", "calls"), [("submit", ["submit", "close"]), ("wait", ["submit", "wait", "export", "close"])]
)
async def test_cancellation_takes_the_sandbox_down_before_it_goes_on(
    policy_of, scripted_sampler, one_call, tmp_path, hang, calls
):
    job = MemoryJob(one_call(), None, hang=hang)
    running = asyncio.create_task(
        roll_out(job, "t", policy_of(scripted_sampler(["x"])), Deadline(50, "test"), tmp_path)
    )
    while job.calls[-1:] != [hang]:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.sleep(0.01)
    running.cancel()  # an impatient second Ctrl-C changes nothing
    with pytest.raises(asyncio.CancelledError):
        await running
    assert job.calls == calls


async def test_the_trajectory_text_shows_each_message_once(policy_of, scripted_sampler, memory_service, tmp_path):
    async def agent(service):
        messages = [{"role": "system", "content": "SYS"}, USER]
        for number in range(2):
            _, body = await service.chat(messages)
            messages += [body["choices"][0]["message"], {"role": "user", "content": f"observation {number}"}]

    job = MemoryJob(memory_service(agent), Trial())
    rollout = await roll_out(job, "t", policy_of(scripted_sampler(["first", "second"])), Deadline(9, "t"), tmp_path)
    text = rollout.trajectory.as_text()
    assert [text.count(piece) for piece in ("SYS", "first", "observation 0", "second")] == [1, 1, 1, 1]
    assert "reward 1" in text.splitlines()[0]
    turns = rollout.trajectory.as_json()["turns"]
    assert len(turns) == 2 and len(turns[0]["completion_tokens"]) == len(turns[0]["logprobs"])

"""What a turn costs between an agent in a sandbox and a puller outside, and bash jobs."""

from __future__ import annotations

import asyncio
import json
import tempfile

import pytest

from rock.errors import ConfigError, JobError
from rock.model_service.messages import ModelRequest, SessionEnd
from rock.sdk import BashJobConfig, HarborJobConfig, Job

pytestmark = [pytest.mark.namespaces]

AGENT = """
import http.client, json, sys, time
seconds = []
for turn in range(60):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 20000}]})
    started = time.perf_counter()
    link = http.client.HTTPConnection("127.0.0.1", 28080, timeout=60)
    link.request("POST", "/v1/chat/completions", body=body, headers={"content-type": "application/json"})
    reply = link.getresponse()
    reply.read()
    assert reply.status == 200, reply.status
    seconds.append(time.perf_counter() - started)
seconds.sort()
json.dump({"p50": seconds[30], "p99": seconds[-1]}, open("/tmp/turns.json", "w"))
"""


def bash(stack, script, **fields):
    environment = {
        "base_url": stack.url,
        "image": "local",
        "memory": "1g",
        "cpus": 1,
        "auto_clear_seconds": 600,
        "proxy": {"enabled": False},
        **fields.pop("environment", {}),
    }
    return BashJobConfig(experiment_id="tests", script=script, environment=environment, **{"timeout": 120, **fields})


@pytest.mark.harbor
@pytest.mark.parametrize("rock_stack", ["local"], indirect=True)
async def test_a_turn_over_the_admin_costs_well_under_a_second(harbor_stack):
    script = f"cat > /tmp/agent.py <<'END'\n{AGENT}\nEND\nsleep 1; python3 /tmp/agent.py"
    job = Job(bash(harbor_stack, script, environment={"proxy": {"enabled": True}}, logs=["/tmp/turns.json"]))
    async with job:

        async def serve():
            while True:
                found = await job.model_service.next_request(30)
                if isinstance(found, SessionEnd):
                    return found
                if isinstance(found, ModelRequest):
                    await job.model_service.respond(found.index, {"choices": [{"message": {"content": "ok"}}]})

        serving = asyncio.create_task(serve())
        result = await job.wait()
        end = await asyncio.wait_for(serving, 20)
        assert (result.exit_code, result.failure, end.exit_code, end.requests) == (0, None, 0, 60), result.output
        turns = json.loads((result.logs_dir / "turns.json").read_text())
    print({name: f"{seconds * 1000:.0f} ms" for name, seconds in turns.items()})
    assert turns["p50"] < 0.3


async def test_a_bash_job_brings_exit_code_output_and_logs(rock_stack, tmp_path):
    config = bash(rock_stack, "echo hello; mkdir -p /out; echo data > /out/file; exit 3", logs=["/out"])
    async with Job(config) as job:
        result = await job.wait()
        assert (result.exit_code, result.output) == (3, "hello\n")
        assert result.failure == "the script ended with exit code 3"
        exported = await job.export(tmp_path / "export")
    assert (exported / "out" / "file").read_text() == "data\n"


async def test_a_job_that_lasts_too_long_is_killed_and_its_logs_can_still_be_had(rock_stack, tmp_path):
    async with Job(bash(rock_stack, "echo begun; sleep 600")) as job:
        with pytest.raises(JobError, match="wait's timeout") as late:
            await job.wait(timeout=1)
        assert late.value.phase == "wait"
        exported = await job.export(tmp_path / "export")
        left = await job.sandbox.execute("pgrep -x sleep || echo none")
        assert left.stdout.strip() == "none"
    assert "begun" in (exported / f"{job.config.job_name}.log").read_text()


async def test_a_model_service_that_cannot_start_names_the_phase_and_its_log(rock_stack):
    config = bash(rock_stack, "true", environment={"proxy": {"enabled": True}, "python": "/nonexistent/python"})
    job = Job(config)
    with pytest.raises(JobError) as failed:
        await job.submit()
    assert failed.value.phase == "model-service"
    assert "nonexistent" in str(failed.value)


async def test_an_upload_that_does_not_exist_is_refused_before_the_sandbox_starts(rock_stack):
    job = Job(bash(rock_stack, "true", environment={"uploads": [("/nonexistent/folder", "/x")]}))
    with pytest.raises(JobError, match="/nonexistent/folder"):
        await job.submit()
    assert job.sandbox.sandbox_id == ""


async def test_an_admin_that_is_not_there_is_a_failed_start_and_leaves_nothing(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    config = BashJobConfig(
        experiment_id="t", script="true", timeout=100, environment={"base_url": "http://127.0.0.1:9"}
    )
    job = Job(config)
    with pytest.raises(JobError) as failed:
        await job.submit()
    assert failed.value.phase == "start"
    with pytest.raises(JobError, match="is closed and its logs are gone"):
        await job.export(tmp_path / "export")
    assert not list(scratch.iterdir())


def test_a_harbor_yaml_is_read_and_wrong_fields_are_named(tmp_path):
    path = tmp_path / "harbor.yaml"
    path.write_text(
        "experiment_id: e\ntimeout: 50\ndatasets: [{path: /x, task_names: [a]}]\nenvironment: {memory: 2g}\n"
    )
    config = HarborJobConfig.from_yaml(path, environment={"image": "local"}, job_name="j1")
    assert (config.environment.memory, config.environment.image, config.job_name) == ("2g", "local", "j1")
    path.write_text("experiment_id: e\ndatasets: [{path: /x, task_nmes: [a]}]\n")
    with pytest.raises(ConfigError, match=r"datasets.0.task_nmes"):
        HarborJobConfig.from_yaml(path)
    path.write_text("experiment_id: e\n")
    with pytest.raises(ConfigError, match="at least one dataset or task"):
        HarborJobConfig.from_yaml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        HarborJobConfig.from_yaml(tmp_path / "none.yaml")


def test_a_sandbox_that_would_be_cleared_before_the_job_ends_is_refused():
    config = HarborJobConfig(
        experiment_id="e", timeout=900, datasets=[{"path": "/x"}], environment={"auto_clear_seconds": 300}
    )
    with pytest.raises(ConfigError, match="auto_clear_seconds"):
        Job(config)

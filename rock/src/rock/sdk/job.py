"""Job: a sandbox with a ModelService and one long command in it, from start to collected results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rock.errors import ConfigError, JobError, RockError
from rock.sdk.job_config import BashJobConfig, HarborJobConfig, JobConfig
from rock.sdk.job_result import HarborTrialResult, JobResult, read_trials
from rock.sdk.model_service import ModelServiceClient
from rock.sdk.model_service_channel import SandboxPortChannel
from rock.sdk.nested_docker import NESTED_DOCKER_SECONDS, python_mounts, start_nested_docker
from rock.sdk.sandbox import Sandbox

__all__ = ["BashJobConfig", "HarborJobConfig", "HarborTrialResult", "Job", "JobResult"]

logger = logging.getLogger("rock.sdk.job")

DATA_DIR = "/data/logs"
USER_DIR = f"{DATA_DIR}/user-defined"
MODEL_SERVICE_SECONDS = 30.0
UPLOAD_SECONDS = 600.0
COLLECT_SECONDS = 300.0
_POLL_SECONDS = 25.0


class Job:
    """One job. ``submit``, then ``wait`` (with a puller that serves ``model_service`` meanwhile), ``export``, ``close``.

    One budget, ``config.timeout``, bounds everything from the start of the sandbox on; each phase gets what is left of it or its
    own shorter limit. A failure names its phase: start, docker, upload, model-service, submit, wait or collect.
    """

    def __init__(self, config: HarborJobConfig | BashJobConfig, sandbox: Sandbox | None = None) -> None:
        self.config = config
        self.sandbox = sandbox or Sandbox(_sandbox_config(config))
        self._nested_docker = isinstance(config, HarborJobConfig) and config.environment.uses_docker
        self._mounts: list[dict[str, Any]] = []
        self._deadline = 0.0
        self._service: ModelServiceClient | None = None
        self._job_id: str | None = None
        self._service_job_id: str | None = None
        self._exit_code: int | None = None
        self._scratch: Path | None = None
        self._collected: Path | None = None
        self._closed = False

    @property
    def model_service(self) -> ModelServiceClient:
        """The agent's model calls.

        Raises:
            JobError: the job was not submitted, or has no ModelService.
        """
        if self._service is None:
            raise JobError(
                "this job has no ModelService; submit it first, with environment.proxy.enabled", "model-service"
            )
        return self._service

    @property
    def remaining(self) -> float:
        """Seconds that are left of the budget."""
        return max(self._deadline - time.monotonic(), 0.0)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def submit(self) -> None:
        """Starts the sandbox, uploads, starts the ModelService and the job's command, and lets the service watch it.

        Raises:
            JobError: with the phase that failed; the sandbox is stopped then.
        """
        if self._deadline:
            raise JobError("the job was submitted before; make a new Job", "submit")
        self._deadline = time.monotonic() + self.config.budget
        uploads = [(Path(source), target) for source, target in self.config.environment.uploads]
        for source, _ in uploads:
            if not source.exists():
                raise JobError(f"environment.uploads names {source}, which does not exist", "upload")
        try:
            async with self._phase("start", self.config.environment.startup_timeout + 10):
                if not self.sandbox.sandbox_id:
                    await self.sandbox.start()
            if self._nested_docker:
                async with self._phase("docker", NESTED_DOCKER_SECONDS):
                    await self._prepare_docker()
            if self.config.environment.proxy.enabled:
                async with self._phase("model-service", MODEL_SERVICE_SECONDS):
                    await self._launch_model_service()
            async with self._phase("upload", UPLOAD_SECONDS):
                await asyncio.gather(*(self._upload(source, target) for source, target in uploads))
            async with self._phase("submit", 60.0):
                pid = await self._launch_command()
            if self._service is not None:
                async with self._phase("model-service", MODEL_SERVICE_SECONDS):
                    await self._until_healthy()
                    await self._service.watch(pid, f"{USER_DIR}/{self.config.job_name}.exit-code")
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def wait(self, timeout: float | None = None) -> JobResult:
        """Waits for the end of the job's command and collects its results.

        Args:
            timeout: seconds; None or more than the budget's rest: the rest.

        Raises:
            JobError: the command did not end in time (it is killed), or the results cannot be had.
        """
        if self._job_id is None:
            raise JobError("the job was not submitted", "wait")
        limit = self.remaining if timeout is None else min(timeout, self.remaining)
        which = "wait's timeout" if timeout is not None and timeout <= limit else "the job's timeout"
        end = time.monotonic() + limit
        output = ""
        offset = 0
        while True:
            left = end - time.monotonic()
            status = await self.sandbox.poll_job(self._job_id, wait=max(min(left, _POLL_SECONDS), 0.0), offset=offset)
            grown, offset = status["next_offset"] > offset, status["next_offset"]
            output = (output + status["output"])[-20_000:]
            if not status["running"] and not grown:
                break
            if left <= 0 and status["running"]:
                await self.cancel()
                raise JobError(
                    f"job {self.config.job_name} did not end within {limit:g} s ({which}); it was killed", "wait"
                )
        self._exit_code = status["exit_code"]
        return await self._collect(output)

    async def cancel(self) -> None:
        """Kills the job's command and ends the session. The sandbox stays, so that ``export`` can bring what there is."""
        if self._job_id is not None:
            with contextlib.suppress(RockError):
                await self.sandbox.kill_job(self._job_id)
        if self._service is not None:
            with contextlib.suppress(RockError):
                await self._service.end("the job was cancelled")

    async def export(self, host_dir: str | Path) -> Path:
        """Copies the logs of agent, verifier and ModelService to a folder of this machine, before the sandbox goes.

        Raises:
            JobError: the job is closed, or its sandbox is gone and nothing was collected before.
        """
        target = Path(host_dir)
        folder = await self._download()
        await asyncio.to_thread(shutil.copytree, folder, target, dirs_exist_ok=True)
        return target

    async def close(self) -> None:
        """Ends whatever runs, and removes the sandbox. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._service is not None:
            await self._service.aclose()
        await self.sandbox.close()
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    async def __aenter__(self) -> Job:
        await self.submit()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.shield(self.close())

    # --- phases -------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _phase(self, name: str, limit: float) -> AsyncIterator[None]:
        """Bounds a phase by its own limit and by the job's budget, and names it in every failure."""
        seconds = min(limit, self.remaining)
        which = "the job's timeout" if self.remaining < limit else f"the phase's limit of {limit:g} s"
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise JobError(f"phase {name} of job {self.config.job_name} ran past {which}", name) from error
        except JobError:
            raise
        except (RockError, OSError) as error:
            raise JobError(f"phase {name} of job {self.config.job_name} failed: {error}", name) from error

    async def _prepare_docker(self) -> None:
        """The sandbox's own daemon, and what task containers must see of the sandbox."""
        await start_nested_docker(self.sandbox)
        assert isinstance(self.config, HarborJobConfig)
        if self.config.needs_agent_python:
            self._mounts = await python_mounts(self.sandbox, self.config.environment.python)

    async def _launch_model_service(self) -> None:
        environment = self.config.environment
        folder = f"{DATA_DIR}/model-service"
        token = secrets.token_hex(16)
        token_file = f"{folder}/puller-token"
        await self.sandbox.write_file(token_file, token, mode=0o600)
        host = environment.proxy.host or ("0.0.0.0" if self._nested_docker else "127.0.0.1")
        words = [environment.python, "-P", "-B", "-m", "rock.model_service", "start", "--foreground", "--host", host]
        words += ["--port", str(environment.proxy.port), "--data-dir", folder, "--token-file", token_file]
        words += ["--request-timeout", f"{self.remaining:.0f}"]
        for model in environment.proxy.models:
            words += ["--model", model]
        started = await self.sandbox.start_job(words, env=self._env(), output_file=f"{folder}/model_service.log")
        self._service_job_id = started["job_id"]
        self._service = ModelServiceClient(SandboxPortChannel(self.sandbox, environment.proxy.port, token))

    async def _until_healthy(self) -> None:
        """Returns when the ModelService answers; raises JobError with its log when it has died."""
        assert self._service_job_id is not None and self._service is not None
        pause = 0.02
        while not await self._service.is_up():
            status = await self.sandbox.poll_job(self._service_job_id, wait=0, offset=0)
            if not status["running"]:
                raise JobError(f"the ModelService ended at once: {status['output'][-1500:]}", "model-service")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.3)

    async def _upload(self, source: Path, target: str) -> None:
        if source.is_dir():
            await self.sandbox.fs.upload_dir(source, target)
        else:
            await self.sandbox.upload_by_path(source, target)

    async def _launch_command(self) -> int:
        config = self.config
        if isinstance(config, HarborJobConfig):
            path = f"{USER_DIR}/{config.job_name}.json"
            content = json.dumps(config.harbor_config(await self._base_url(), self._mounts), indent=2)
            await self.sandbox.write_file(path, content, mode=0o600)
            command = shlex.join([config.environment.python, "-P", "-B", "-m", "rock.harbor.job_runner", path])
            cwd = None
        else:
            path = f"{USER_DIR}/{config.job_name}.sh"
            await self.sandbox.write_file(path, config.script, mode=0o700)
            command, cwd = f"bash {shlex.quote(path)}", config.cwd
        code_file = shlex.quote(f"{USER_DIR}/{config.job_name}.exit-code")
        line = f"{command}; code=$?; echo $code > {code_file}.part; mv {code_file}.part {code_file}; exit $code"
        started = await self.sandbox.start_job(
            ["/bin/sh", "-c", line],
            env=self._env(),
            cwd=cwd,
            timeout=self.remaining,
            output_file=f"{USER_DIR}/{config.job_name}.log",
        )
        self._job_id = started["job_id"]
        return int(started["pid"])

    async def _base_url(self) -> str | None:
        """Where agents find the ModelService: on loopback, or for Docker containers at the sandbox's own address."""
        environment = self.config.environment
        if not environment.proxy.enabled:
            return None
        address = "127.0.0.1"
        if self._nested_docker:
            found = await self.sandbox.execute("hostname -I", timeout=20)
            address = (found.stdout.split() or [""])[0]
            if not address:
                raise JobError(
                    "the sandbox has no network address (hostname -I), so containers cannot reach it", "submit"
                )
        return f"http://{address}:{environment.proxy.port}/v1"

    def _env(self) -> dict[str, str]:
        return {
            "PYTHONPATH": self.config.environment.python_path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "ignore",
            "HARBOR_TELEMETRY": "off",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "HOME": "/root",
        }

    # --- results ------------------------------------------------------------------------------------------------------

    async def _collect(self, output: str) -> JobResult:
        async with asyncio.timeout(COLLECT_SECONDS):
            requests = None
            if self._service is not None:
                with contextlib.suppress(RockError):
                    requests = int((await self._service.health())["requests"])
            folder = await self._download()
        trials: list[HarborTrialResult] = []
        failure = None
        if isinstance(self.config, HarborJobConfig):
            reporting = set(json.loads((folder / "reporting-tasks.json").read_text()))
            trials = read_trials(folder / "jobs" / self.config.job_name, reporting)
            if not trials:
                failure = f"Harbor ended with exit code {self._exit_code} and left no trial: {output[-1500:]}"
            elif requests == 0 and any(agent.model_name for agent in self.config.agents):
                failure = "the agent ended before its first model request"
        elif self._exit_code != 0:
            failure = f"the script ended with exit code {self._exit_code}"
        return JobResult(self._exit_code, trials, folder, requests, failure, output)

    async def _download(self) -> Path:
        """Brings the job's files to a scratch folder of this machine, once after the end and anew before."""
        if self._closed:
            raise JobError(f"job {self.config.job_name} is closed and its logs are gone", "collect")
        if self._collected is not None:
            return self._collected
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="rock-job-"))
        folder = self._scratch / "logs"
        try:
            await self.sandbox.execute(["/bin/sh", "-c", _GATHER, "sh", *self._sources()], timeout=60, check=True)
            await self.sandbox.fs.download_dir(f"{USER_DIR}/export", folder)
        except RockError as error:
            raise JobError(f"the logs of job {self.config.job_name} cannot be had: {error}", "collect") from error
        if self._exit_code is not None:
            self._collected = folder
        return folder

    def _sources(self) -> list[str]:
        config = self.config
        sources = [f"{USER_DIR}/{config.job_name}.log", f"{DATA_DIR}/model-service/trajectory.jsonl"]
        sources += [f"{DATA_DIR}/model-service/model_service.log"]
        if isinstance(config, HarborJobConfig):
            return [f"{USER_DIR}/export", f"{config.jobs_dir}/{config.job_name}", *sources]
        return [f"{USER_DIR}/export", "", *sources, *config.logs]


# Arguments: target folder, Harbor's job folder or nothing, further files. Also notes whose verifiers write a report.json.
_GATHER = """
target=$1 job=$2; shift 2
rm -rf "$target"; mkdir -p "$target/jobs"
if [ -n "$job" ] && [ -d "$job" ]; then cp -a "$job" "$target/jobs/"; fi
for one in "$@"; do if [ -e "$one" ]; then cp -a "$one" "$target/"; fi; done
if [ ! -f "$target/reporting-tasks.json" ]; then
  names=$(for tests in "$job"/*/reporting; do [ -e "$tests" ] && cat "$tests"; done 2>/dev/null | sort -u | sed 's/.*/"&"/' | paste -sd, -)
  echo "[$names]" > "$target/reporting-tasks.json"
fi
"""


def _sandbox_config(config: JobConfig) -> Any:
    sandbox = config.environment.sandbox_config()
    if sandbox.experiment_id is None:
        sandbox = sandbox.model_copy(update={"experiment_id": config.experiment_id})
    if config.budget > sandbox.auto_clear_seconds:
        raise ConfigError(
            f"environment.auto_clear_seconds {sandbox.auto_clear_seconds:g} is below the job's timeout "
            f"{config.budget:g}; raise it, or the sandbox may go before the job ends"
        )
    return sandbox

"""``rock job``: run a bash or Harbor job in a sandbox."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from rock.sdk.config import SandboxConfig
from rock.sdk.job import BashJobConfig, HarborJobConfig, Job, JobResult
from rock.sdk.job_config import JobEnvironment


@click.group()
def job() -> None:
    """Bash and Harbor jobs in sandboxes."""


@job.command()
@click.option("--type", "kind", type=click.Choice(["bash", "harbor"]), default="bash", show_default=True)
@click.option("--job-config", "--job_config", type=click.Path(exists=True, path_type=Path), help="YAML of the job.")
@click.option(
    "--script", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Bash job: file of the script."
)
@click.option("--script-content", help="Bash job: text of the script.")
@click.option("--timeout", type=float, help="Seconds for the whole job.")
@click.option("--image", help="Image of the sandbox.")
@click.option("--memory", help="For example 4g.")
@click.option("--cpus", type=float)
@click.option("--base-url", help="Address of the admin.")
@click.option("--cluster")
@click.option("--local-path", type=click.Path(exists=True, path_type=Path), help="File or folder to upload.")
@click.option("--target-path", help="Where it goes in the sandbox.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the job's logs.")
def run(
    kind: str,
    job_config: Path | None,
    script: Path | None,
    script_content: str | None,
    timeout: float | None,
    local_path: Path | None,
    target_path: str | None,
    output: Path | None,
    **environment: Any,
) -> None:
    """Run a job to its end; its exit code is this command's."""
    overrides: dict[str, Any] = {
        "environment": {name: value for name, value in environment.items() if value is not None}
    }
    if timeout is not None:
        overrides["timeout"] = timeout
        overrides["environment"].setdefault("auto_clear_seconds", max(timeout, SandboxConfig().auto_clear_seconds))
    if (local_path is None) != (target_path is None):
        raise click.UsageError("--local-path and --target-path belong together")
    if local_path is not None:
        overrides["environment"]["uploads"] = [(str(local_path), target_path)]
    text = script.read_text() if script else script_content
    if kind == "harbor":
        if job_config is None:
            raise click.UsageError("a Harbor job needs --job-config")
        config: HarborJobConfig | BashJobConfig = HarborJobConfig.from_yaml(job_config, **overrides)
    elif job_config is not None:
        config = BashJobConfig.from_yaml(job_config, **({**overrides, "script": text} if text else overrides))
    else:
        if text is None:
            raise click.UsageError("a bash job needs --script, --script-content or --job-config")
        fields = {"auto_clear_seconds": 7200, "proxy": {"enabled": False}, **overrides.pop("environment")}
        config = BashJobConfig(experiment_id="cli", script=text, environment=JobEnvironment(**fields), **overrides)
    result = asyncio.run(_run(config, output))
    click.echo(result.output, nl=False)
    for trial in result.trials:
        click.echo(json.dumps({"trial": trial.trial_name, "reward": trial.reward, "evaluated": trial.evaluated}))
    if result.failure:
        click.echo(result.failure, err=True)
    raise SystemExit(result.exit_code or (1 if result.failure else 0))


async def _run(config: HarborJobConfig | BashJobConfig, output: Path | None) -> JobResult:
    async with Job(config) as running:
        result = await running.wait()
        if output is not None:
            await running.export(output)
        return result

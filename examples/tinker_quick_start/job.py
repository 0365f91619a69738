"""One job of run.sh: its run directory, the local ROCK services where they are needed, the recipe, and the clean end.

The recipe's output goes to the terminal and to `client.log`. On Ctrl-C or SIGTERM the recipe is told once and closes its
sandboxes and its backend; only then do the ROCK services that this job started go. `exit-status.json` comes last.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tinker_cookbook.child import Child

MODULES = {"rollout": "eval_swe_bench", "ppo": "ppo", "ppo-kl": "ppo_kl", "grpo": "grpo"}
# Seconds from the first signal until the recipe is killed: a rollout takes its sandbox down within this.
PATIENCE = 150.0
START_SECONDS = 60.0


class Interrupted(Exception):
    """A signal came; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Job:
    """A run directory and the children of one job."""

    def __init__(self, task: Path, mode: str, arguments: list[str]) -> None:
        self._task = task
        self._mode = mode
        self._arguments = arguments
        self._services: list[Child] = []
        self._client: Child | None = None
        self.run_dir = new_folder(task / "runs", mode)
        self._log = (self.run_dir / "client.log").open("ab", buffering=0)
        self._signals: list[int] = []

    def run(self) -> int:
        """The whole job. Returns its exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self.say(f"Run directory: {self.run_dir}")
        try:
            code = self._check()
            if code == 0:
                self._start_services()
                code = self._run_client()
        except Interrupted as interrupted:
            code = 128 + interrupted.number
        except JobError as error:
            self.say(f"run.sh: {error}")
            code = 2
        finally:
            for child in reversed(self._services):
                child.stop(20.0)
        status = self.run_dir / "exit-status.json"
        part = status.with_suffix(".part")
        part.write_text(json.dumps({"exit_code": code}) + "\n", encoding="utf-8")
        part.rename(status)
        self.say(f"exit code {code}; log: {self.run_dir / 'client.log'}")
        return code

    def say(self, line: str) -> None:
        """One line to the terminal and to client.log."""
        self._write(line.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        self._log.write(data)
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except OSError:  # the terminal went away; the log stays
            pass

    def _on_signal(self, number: int, frame: Any) -> None:
        first = not self._signals
        self._signals.append(number)
        if not first:
            return
        if self._client is None:
            raise Interrupted(number)
        self._client.signal(signal.SIGTERM)

    def _command(self) -> list[str]:
        """The recipe of this job, as a program."""
        command = [sys.executable, "-m", f"tinker_cookbook.recipes.{MODULES[self._mode]}"]
        command += ["--config", str(self._task / "config"), "--jobs-dir", str(self._task / "jobs")]
        return [*command, "--run-dir", str(self.run_dir), *self._arguments]

    def _check(self) -> int:
        """Lets the recipe look at options and configuration, so that a mistake is told before a service is started."""
        done = subprocess.run([*self._command(), "--check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            self._write(done.stdout)
        return done.returncode

    def _run_client(self) -> int:
        client = Child(self._command(), output=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        self._client = client
        if self._signals:  # it came while the client was being started
            client.signal(signal.SIGTERM)
        reader = threading.Thread(target=self._copy_output, args=(client,), daemon=True)
        reader.start()
        told: float | None = None
        while client.wait(0.2) is None:
            told = told or (time.monotonic() if self._signals else None)
            if told and time.monotonic() - told > PATIENCE:
                break
        code = client.stop(1.0)
        reader.join(5.0)
        if self._signals:
            return 128 + self._signals[0]
        return code if code >= 0 else 128 - code

    def _copy_output(self, client: Child) -> None:
        for line in client.stdout:
            self._write(line)

    def _start_services(self) -> None:
        """Starts worker and admin of a local profile unless an Admin answers already.

        Raises:
            JobError: a service is missing, or does not start.
        """
        admin_yaml = self._task / "config" / "admin.yaml"
        if not admin_yaml.is_file():
            return  # configured for an existing cluster
        base_url = str(read(self._task / "config" / "harbor.yaml")["environment"]["base_url"])
        admin = read(admin_yaml)
        if answers(base_url):
            return
        if (admin.get("runtime") or {}).get("type") != "local":
            raise JobError(
                f"no ROCK Admin answers at {base_url}; start serve.sh worker and serve.sh admin in two terminals"
            )
        outputs = []
        for role in ("worker", "admin"):
            output = self.run_dir / f"rock-{role}.out"
            outputs.append(output)
            script = str(Path(__file__).with_name("serve.sh"))
            self._services.append(Child(["bash", script, role], output=output))
        end = time.monotonic() + START_SECONDS
        while not answers(base_url):
            for child, output in zip(self._services, outputs, strict=True):
                if child.exit_code() is not None:
                    raise JobError(f"a local ROCK service ended: {last_line(output)}")
            if time.monotonic() > end:
                raise JobError(
                    f"the ROCK Admin at {base_url} did not answer within {START_SECONDS:g} s; see {outputs[1]}"
                )
            time.sleep(0.2)
        self.say(f"local ROCK services started for this job: {base_url}")


class JobError(Exception):
    """The job cannot start; the message names the fix."""


def new_folder(parent: Path, mode: str) -> Path:
    """`<parent>/<mode>-<time>`, with a number behind it when two jobs start in one second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number = 0
    while True:
        folder = parent / (f"{mode}-{stamp}" + (f"-{number}" if number else ""))
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def read(path: Path) -> dict[str, Any]:
    """A YAML mapping. Raises JobError when it is none."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        data["environment" if path.name == "harbor.yaml" else "admin"]  # the section that is read here
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise JobError(f"{path} cannot be used ({error}); write it anew with configure.py") from error
    return data


def answers(base_url: str) -> bool:
    """Whether an Admin answers there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(base_url.rstrip("/") + "/", timeout=3):
            return True
    except OSError:
        return False


def last_line(path: Path) -> str:
    """The last line of a log, for a message."""
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "without a word"


def main() -> int:
    """`job.py MODE [options of the recipe]`, with TASK in the environment."""
    mode, arguments = sys.argv[1], sys.argv[2:]
    if "--help" in arguments or "-h" in arguments:
        return subprocess.call([sys.executable, "-m", f"tinker_cookbook.recipes.{MODULES[mode]}", "--help"])
    return Job(Path(os.environ["TASK"]), mode, arguments).run()


if __name__ == "__main__":
    sys.exit(main())

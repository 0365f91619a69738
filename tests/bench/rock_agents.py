"""Agents in parallel on one admin: what a model call costs beyond the model.

    python tests/bench/rock_agents.py [--agents 32] [--turns 40] [--kilobytes 20] [--model-seconds 2] [--runtime docker --docker-url URL]

Each agent is a program in a sandbox of its own that asks the ModelService there; a pull runner per sandbox answers at once. A
turn's overhead is the time from the agent's request to its answer, less `--model-seconds`. Needs ROCK_HARBOR_PYTHON, whose Python runs the ModelService.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rock.harbor.outer import outer_binds
from rock.model_service.messages import ModelRequest, SessionEnd
from rock.sdk import BashJobConfig, Job

AGENT = """
import http.client, json, sys, time
turns, kilobytes = int(sys.argv[1]), int(sys.argv[2])
seconds = []
for turn in range(turns):
    # A new prompt each turn, as an agent's history grows.
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{turn}" + "x" * (kilobytes << 10)}]})
    started = time.perf_counter()
    link = http.client.HTTPConnection("127.0.0.1", 28080, timeout=300)
    link.request("POST", "/v1/chat/completions", body=body, headers={"content-type": "application/json"})
    reply = link.getresponse()
    answer = json.loads(reply.read())
    assert reply.status == 200 and answer["choices"][0]["message"]["content"] == f"answer {turn}", answer
    seconds.append(time.perf_counter() - started)
json.dump(seconds, open("/tmp/turns.json", "w"))
"""


class Start:
    """Lets all agents begin together; `ready_at` is when the last one was ready."""

    def __init__(self, agents: int) -> None:
        self._barrier = asyncio.Barrier(agents)
        self.ready_at = 0.0

    async def wait(self) -> None:
        await self._barrier.wait()
        self.ready_at = self.ready_at or time.perf_counter()

    async def abort(self) -> None:
        await self._barrier.abort()


async def agent(url: str, options: argparse.Namespace, begin: Start) -> list[float]:
    """One job; returns the seconds of its turns."""
    try:
        return await _agent(url, options, begin)
    except BaseException:
        await begin.abort()  # the others shall not wait for one that failed
        raise


async def _agent(url: str, options: argparse.Namespace, begin: Start) -> list[float]:
    script = f"cat > /tmp/agent.py <<'END'\n{AGENT}\nEND\nuntil [ -e /tmp/go ]; do sleep 0.05; done\n"
    script += f"exec python3 /tmp/agent.py {options.turns} {options.kilobytes}"
    environment = {"base_url": url, "image": "local", "memory": "512m", "cpus": 1, "auto_clear_seconds": 900}
    config = BashJobConfig(
        experiment_id="bench",
        script=script,
        timeout=600,
        environment={**environment, "startup_timeout": 120, "proxy": {"enabled": True}},
        logs=["/tmp/turns.json"],
    )
    async with Job(config) as job:
        await begin.wait()
        await job.sandbox.write_file("/tmp/go", "")
        serving = asyncio.create_task(serve(job, options.model_seconds))
        result = await job.wait()
        await asyncio.wait_for(serving, 30)
        assert result.exit_code == 0 and result.model_requests == options.turns, result.output
        seconds = json.loads((result.logs_dir / "turns.json").read_text())
        return [float(value) - options.model_seconds for value in seconds]


async def serve(job: Job, model_seconds: float) -> None:
    """The pull runner: every answer is what its request asked for, after the time that a model would take."""
    while True:
        found = await job.model_service.next_request(60)
        if isinstance(found, SessionEnd):
            return
        if isinstance(found, ModelRequest):
            await asyncio.sleep(model_seconds)
            turn = found.body["messages"][0]["content"].rstrip("x")
            await job.model_service.respond(found.index, {"choices": [{"message": {"content": f"answer {turn}"}}]})


async def measure(stack: Any, options: argparse.Namespace) -> None:
    begin = Start(options.agents)
    began = time.perf_counter()
    jobs = [asyncio.create_task(agent(stack.url, options, begin)) for _ in range(options.agents)]
    memory = dict.fromkeys(stack.processes, 0)
    while not all(job.done() for job in jobs):
        await asyncio.sleep(0.2)
        memory = {name: max(memory[name], resident(process.pid)) for name, process in stack.processes.items()}
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    end = time.perf_counter()
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    turns = sorted(1000 * value for outcome in outcomes if isinstance(outcome, list) for value in outcome)
    print(f"{platform.platform()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, runtime {stack.runtime}")
    print(
        f"{options.agents} agents, {options.turns} turns each, {options.kilobytes} KiB a prompt, "
        f"model {options.model_seconds:g} s a turn, load average {os.getloadavg()[0]:.1f}"
    )
    if turns:
        rank = {name: turns[min(len(turns) - 1, int(len(turns) * share))] for name, share in RANKS.items()}
        print("turn overhead in ms: " + ", ".join(f"{name} {value:.1f}" for name, value in rank.items()))
    print(f"all ready after {begin.ready_at - began:.1f} s, all done after {end - began:.1f} s, {len(turns)} turns")
    print("resident at most: " + ", ".join(f"{name} {size >> 20} MiB" for name, size in memory.items()))
    print(f"errors: {len(errors)}" + "".join(f"\n  {error!r}" for error in errors[:5]))
    if errors:
        sys.exit(1)


RANKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}


def resident(pid: int) -> int:
    """Bytes of memory that a process and its children hold."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if pid in (int(process.name), int(fields["PPid"])) and "VmRSS" in fields:
            total += int(fields["VmRSS"].split()[0]) << 10
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--kilobytes", type=int, default=20, help="of each prompt")
    parser.add_argument(
        "--model-seconds", type=float, default=0.0, help="that each answer takes, not counted as overhead"
    )
    parser.add_argument("--runtime", choices=["local", "docker"], default="local")
    parser.add_argument("--docker-url")
    parser.add_argument("--image", default="rock-test:base")
    options = parser.parse_args()
    file = Path(__file__).parents[1] / "rock" / "conftest.py"
    spec = importlib.util.spec_from_file_location("rock_agents_stack", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    folder = Path(tempfile.mkdtemp(prefix="rock-agents-", dir="/var/tmp"))
    stack = module.RockStack(folder, runtime=options.runtime)
    section: dict[str, Any] = {"type": options.runtime, "binds": outer_binds(os.environ["ROCK_HARBOR_PYTHON"])}
    if options.runtime == "docker":
        section |= {"image_aliases": {"local": options.image}, "docker_url": options.docker_url}
    stack.write_config(runtime=section)
    try:
        stack.start("worker")
        stack.start("admin")
        asyncio.run(measure(stack, options))
    finally:
        stack.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

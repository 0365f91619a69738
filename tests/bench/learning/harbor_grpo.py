"""GRPO on mini Harbor tasks, through agent, local sandboxes and the ModelService: does the verifier's reward rise?

    python tests/bench/learning/harbor_grpo.py --task TASK --out FOLDER [--seed 0]

TASK is a work folder of the quick start (``setup.sh control`` or ``demo.sh`` made it). Its configuration is written anew in
a folder of the run; ``run.sh grpo`` does the rest, as for a user. Leaves ``harbor_grpo-seed<seed>.json`` for ``plot.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from experiments import HARBOR_GRPO, HARBOR_KIND, HARBOR_OPTIONS, HARBOR_TASKS
from run import MODEL

QUICK_START = Path(__file__).parents[3] / "examples" / "tinker_quick_start"


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def prepare(task: Path, folder: Path) -> Path:
    """A work folder of this run: environments of ``task``, its own configuration, and the mini tasks. Returns the tasks."""
    for name in ("control-venv", "harbor-venv"):
        (folder / name).symlink_to((task / name).absolute())
    python = str(folder / "control-venv" / "bin" / "python")
    mini, layers = folder / "mini", folder / "assets" / "task-layers"
    options = ["--kinds", HARBOR_KIND, "--train-per-kind", str(HARBOR_TASKS), "--heldout-per-kind", "0"]
    subprocess.run([python, "-m", "rock.harbor.tasks", "mini", "--output", str(mini), *options], check=True)
    subprocess.run(
        [python, "-m", "rock.harbor.tasks", "prebuild", str(mini / "train"), "--store", str(layers)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    tasks = sorted((mini / "train").iterdir())
    (folder / "assets" / "harbor-tasks").mkdir(parents=True)
    (folder / "assets" / "harbor-tasks" / tasks[0].name).symlink_to(tasks[0])
    admin, worker, backend = free_ports(3)
    command = [python, str(QUICK_START / "configure.py"), "--profile", "local", "--task-root", str(folder)]
    command += ["--task-id", tasks[0].name, "--model", str(MODEL.absolute())]
    command += ["--admin-port", str(admin), "--worker-port", str(worker), "--backend-port", str(backend)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return mini / "train"


def train(folder: Path, tasks: Path, seed: int) -> list[dict[str, Any]]:
    """Runs the job and returns the records of its steps."""
    command = ["bash", str(QUICK_START / "run.sh"), "grpo", "--tasks", str(tasks), "--seed", str(seed)]
    for key, value in HARBOR_OPTIONS.items():
        command += [f"--{key}", str(value)]
    environment = {key: value for key, value in os.environ.items() if key not in ("PY", "ROCK", "TINKER_API_KEY")}
    with (folder / "output.log").open("wb") as log:
        done = subprocess.run(
            command, env={**environment, "TASK": str(folder)}, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode != 0:
        raise SystemExit(f"run.sh ended with {done.returncode}: {(folder / 'output.log').read_text()[-2000:]}")
    (result,) = folder.glob("runs/*/results/*/result.json")
    return list(json.loads(result.read_text())["steps"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = (arguments.out / f"harbor_grpo-seed{arguments.seed}").absolute()
    folder.mkdir(parents=True)
    tasks = prepare(arguments.task, folder)
    start = time.monotonic()
    steps = train(folder, tasks, arguments.seed)
    rewards = [[row["step"], sum(row["group_returns"]) / len(row["group_returns"])] for row in steps]
    record = {
        "name": "harbor_grpo",
        "seed": arguments.seed,
        "module": "grpo",
        "settings": {"kind": HARBOR_KIND, "tasks": HARBOR_TASKS, **HARBOR_OPTIONS},
        "seconds": round(time.monotonic() - start, 1),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "load": [round(value, 1) for value in os.getloadavg()],
        "curves": {HARBOR_GRPO.curves[0].key: rewards},
        "tasks": [row["task_id"] for row in steps],
    }
    (arguments.out / f"harbor_grpo-seed{arguments.seed}.json").write_text(json.dumps(record, indent=1) + "\n")
    print("harbor_grpo", f"{record['seconds']} s", [round(value, 2) for _, value in rewards], flush=True)


if __name__ == "__main__":
    main()

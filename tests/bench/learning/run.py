"""Runs small experiments with SmolLM2 and draws their curves.

    python tests/bench/learning/run.py --out FOLDER [--seed 0] [--base-url URL] [--lock FILE] [NAME ...]

Without ``--base-url`` a backend is started (model folder: ``TINKER_TEST_MODEL``, or where a local backend keeps it).
Every run leaves ``<name>-seed<seed>.json`` in the folder: settings, seconds and curves; ``plot.py`` draws them. The same
command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from experiments import EXPERIMENTS, Experiment, Setting

MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
MODEL = Path(os.environ.get("TINKER_TEST_MODEL", Path.home() / ".cache/tinker-backend/models/SmolLM2-135M-Instruct"))
_START_SECONDS = 180


@contextlib.contextmanager
def backend(folder: Path) -> Iterator[str]:
    """URL of a backend over the embedded engine, on a free port; it ends with the block."""
    engine = {"pretrain": str(MODEL.absolute()), "model_name": MODEL_NAME, "sequence_length": 1024}
    (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
    (folder / "runtime.yaml").write_text(yaml.safe_dump({"backend": {"port": 0}, "runtime": {"engine": "engine.yaml"}}))
    output = folder / "serve.out"
    command = [sys.executable, "-m", "tinker_backend", "serve", "--config", str(folder / "runtime.yaml")]
    with output.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while b"ready on http" not in (text := output.read_bytes()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the backend did not start:\n{text.decode()}")
            time.sleep(0.1)
        yield next(word for word in text.decode().split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def alone(lock: str | None) -> Iterator[None]:
    """Holds a lock file, so that measurements of several programs do not overlap."""
    if lock is None:
        yield
        return
    with open(lock, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def stopwatch(path: Path) -> Iterator[None]:
    """Appends the seconds of the block to a file, also where it is interrupted."""
    start = time.monotonic()
    try:
        yield
    finally:
        with path.open("a") as stream:
            stream.write(f"{time.monotonic() - start:.1f}\n")


def command_of(module: str, settings: dict[str, Setting], marks: dict[str, str]) -> list[str]:
    """Command line of a recipe; marks such as ``{folder}`` are filled in."""
    words = []
    for key, value in settings.items():
        text = str(value)
        for mark, filled in marks.items():
            text = text.replace("{" + mark + "}", filled)
        words.append(f"{key}={text}")
    return [sys.executable, "-m", f"tinker_cookbook.recipes.{module}", *words]


def run(name: str, experiment: Experiment, out: Path, url: str, seed: int) -> dict[str, Any]:
    """Runs one experiment, or goes on with an interrupted one from its last checkpoint, and returns its record."""
    folder = out / f"{name}-seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    marks = {"folder": str(folder), "model": MODEL_NAME, "data": str(Path(__file__).parent)}
    if experiment.needs is not None:
        checkpoints = out / f"{experiment.needs}-seed{seed}" / "run" / "checkpoints.jsonl"
        final = json.loads(checkpoints.read_text().splitlines()[-1])
        marks |= {"teacher": final["sampler_path"], "state": final["state_path"]}
    environment = {
        **os.environ,
        "TINKER_BASE_URL": url,
        "TINKER_API_KEY": "tml-local",
        "TINKER_MODELS_DIR": str(MODEL.parent),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    settings: dict[str, Setting] = {"model_name": MODEL_NAME, **experiment.settings}
    settings.update(dict.fromkeys(experiment.seed_settings, seed))
    stages = [experiment.before] if experiment.before is not None and not (folder / "run").exists() else []
    stages = [(module, {"model_name": MODEL_NAME, **values}) for module, values in stages]
    more = {"log_path": "{folder}/run", "behavior_if_log_dir_exists": "resume"}
    stages.append((experiment.module, {**settings, **more}))
    with (folder / "output.log").open("ab") as log, stopwatch(folder / "seconds.txt"):
        for module, values in stages:
            command = command_of(module, values, marks)
            done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                raise RuntimeError(f"{name}: exit {done.returncode}: {(folder / 'output.log').read_text()[-2000:]}")
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    curves = {
        curve.key: [[row["step"], row[curve.key]] for row in rows if curve.key in row] for curve in experiment.curves
    }
    return {
        "name": name,
        "seed": seed,
        "module": experiment.module,
        "settings": settings,
        "seconds": round(sum(map(float, (folder / "seconds.txt").read_text().split())), 1),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "load": [round(value, 1) for value in os.getloadavg()],
        "curves": curves,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base-url", help="a running backend that serves the model")
    parser.add_argument("--lock", help="file to be locked while a run is under way")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(EXPERIMENTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the backend ends, too
    out: Path = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with contextlib.nullcontext(arguments.base_url) if arguments.base_url else backend(out) as url:
        for name in arguments.names or EXPERIMENTS:
            if (out / f"{name}-seed{arguments.seed}.json").exists():
                print(name, "is there already", flush=True)
                continue
            with alone(arguments.lock):
                try:
                    record = run(name, EXPERIMENTS[name], out, url, arguments.seed)
                except (RuntimeError, OSError) as error:
                    print(error, flush=True)
                    failed += 1
                    continue
            (out / f"{name}-seed{arguments.seed}.json").write_text(json.dumps(record, indent=1) + "\n")
            ends = {key: (rows[0][1], rows[-1][1]) for key, rows in record["curves"].items() if rows}
            print(name, f"{record['seconds']} s", json.dumps(ends), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Adds what the GPU runtime lacks to an environment that inherits the image's packages, and proves that those stayed.

Called by `setup.sh runtime`. A requirement that is met stays as it is; of those that are not, and of all that is missing behind
them, each is installed by itself, without its dependencies, so that no package of the image is replaced by the way. Compares version and place of every protected package (torch, vLLM, CUDA, Transformer
Engine …) as the image's Python and the new environment see them, and writes `setup-public-runtime.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PROTECTED = re.compile(
    r"^(torch|torchvision|torchaudio|triton|vllm|flash[-_.]attn|xformers|transformer[-_.]engine.*|nvidia-.*|cuda-.*|apex)$",
    re.IGNORECASE,
)
# Runs in both interpreters: name -> [version, folder] of every installed package, the first on sys.path winning.
INVENTORY = """
import importlib.metadata, json, os
found = {}
for dist in importlib.metadata.distributions():
    name = dist.metadata["Name"]
    if name:
        found.setdefault(name.lower().replace("_", "-"), [dist.version, os.path.realpath(str(dist.locate_file("")))])
print(json.dumps(found))
"""
# Runs in the new environment: requirements that are not met, and packages that nobody has behind those that are.
UNMET = """
import importlib.metadata, json, re, sys
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
protected, unmet, seen = re.compile(sys.argv[2], re.IGNORECASE), [], set()
todo = [(line, True) for line in json.loads(sys.argv[1])]
while todo:
    line, listed = todo.pop(0)
    wanted = Requirement(line)
    name = re.sub("[-_.]+", "-", wanted.name).lower()
    if protected.match(name) or (name, listed) in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
        continue
    seen.add((name, listed))
    try:
        found = importlib.metadata.distribution(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        unmet.append(f"{wanted.name}{wanted.specifier}")
        continue
    if listed and not wanted.specifier.contains(found.version, prereleases=True):
        unmet.append(f"{wanted.name}{wanted.specifier}")
        continue
    todo += [(needed, False) for needed in found.requires or ()]
print(json.dumps(unmet))
"""
# Runs in the new environment: what a cluster's runtime imports before it knows its configuration.
IMPORTS = """
import json, msgpack, pydantic, ray, safetensors, transformers, yaml, zmq
from tinker_backend.runtime.ray import ray_cluster
from tinker_backend.runtime.ray.versions import installed
print(json.dumps(installed()))
"""
ROUNDS = 12
GPU_CHECK = """
import json, torch
if not torch.cuda.is_available():
    raise SystemExit("torch sees no GPU: CUDA_VISIBLE_DEVICES or the driver hides it")
a = torch.randn(1024, 1024, device="cuda:0", dtype=torch.bfloat16)
gap = ((a @ a).float() - a.float() @ a.float()).abs().max().item()
free, total = torch.cuda.mem_get_info(0)
print(json.dumps({"device": torch.cuda.get_device_name(0), "largest_gap": gap, "free_bytes": free, "total_bytes": total}))
"""


def main() -> int:
    """Runs the installation and its proof. Returns 0 when the environment is usable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", required=True)
    parser.add_argument("--image-python", required=True)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--requirements", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, help="folder of the tinker-backend package")
    parser.add_argument("--gpu-check", action="store_true")
    parser.add_argument(
        "--index-options", nargs=argparse.REMAINDER, default=[], help="options of uv for its index; the last"
    )
    options = parser.parse_args()
    python = options.venv / "bin" / "python"
    before = inventory(options.image_python)
    install = [options.uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", *options.index_options]
    added = add_missing(options.requirements, str(python), install)
    run([*install, "--reinstall", str(options.source)])
    after = inventory(str(python))
    moved = differences(before, after)
    report: dict[str, Any] = {
        "image_python": options.image_python,
        "installed": added,
        "protected": {name: after[name] for name in sorted(after) if PROTECTED.match(name)},
        "moved": moved,
        "unchanged": not moved,
        "runtime": json.loads(run([str(python), "-c", IMPORTS]).strip().splitlines()[-1]),
    }
    if options.gpu_check:
        report["gpu_check"] = json.loads(run([str(python), "-c", GPU_CHECK]))
    target = options.venv / "setup-public-runtime.json"
    target.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for name, (was, now) in moved.items():
        print(
            f"{name} was {was} and is now {now}; remove {options.venv} and install {name} into neither", file=sys.stderr
        )
    return 1 if moved else 0


def inventory(python: str) -> dict[str, list[str]]:
    """Version and folder of each package that an interpreter sees."""
    return json.loads(run([python, "-c", INVENTORY]))


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, tuple[Any, Any]]:
    """Protected packages whose version or folder is not what the image has, with both."""
    names = {name for name in (*before, *after) if PROTECTED.match(name)}
    return {name: (before.get(name), after.get(name)) for name in sorted(names) if before.get(name) != after.get(name)}


def add_missing(requirements: Path, python: str, install: list[str]) -> list[str]:
    """Installs what is missing, then what is missing behind that, and so on; the requirements that were installed."""
    added: list[str] = []
    for _ in range(ROUNDS):
        missing = [line for line in unmet(requirements, python) if line not in added]
        if not missing:
            return added
        run([*install, *missing])
        added += missing
    sys.exit(f"after {ROUNDS} rounds {missing[0]} is still missing in {python}; install it there")


def unmet(requirements: Path, python: str) -> list[str]:
    """The requirements that an environment does not meet, and what is missing behind the others. Never a protected one."""
    lines = [line.split("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines()]
    listed = json.dumps([line for line in lines if line])
    found: list[str] = json.loads(run([python, "-c", UNMET, listed, PROTECTED.pattern]))
    return found


def run(command: list[str]) -> str:
    """Runs a command; its failure ends the program with the last line it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        sys.exit(f"{Path(command[0]).name} failed: {said[-1] if said else done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

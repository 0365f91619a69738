"""Adds what the GPU runtime lacks to an environment that inherits the image's packages, and proves that those stayed.

Called by `setup.sh runtime`. Compares version and place of every protected package (torch, vLLM, CUDA, Transformer
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
    options = parser.parse_args()
    python = options.venv / "bin" / "python"
    before = inventory(options.image_python)
    missing = unmet(options.requirements, str(python))
    install = [options.uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
    if missing:
        run([*install, *missing])
    run([*install, "--reinstall", str(options.source)])
    after = inventory(str(python))
    moved = differences(before, after)
    report: dict[str, Any] = {
        "image_python": options.image_python,
        "installed": missing,
        "protected": {name: after[name] for name in sorted(after) if PROTECTED.match(name)},
        "moved": moved,
        "unchanged": not moved,
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


def unmet(requirements: Path, python: str) -> list[str]:
    """The requirements that an environment does not meet. Protected packages are never among them."""
    lines = [line.split("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines()]
    probe = """
import importlib.metadata, json, sys
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
unmet = []
for line in json.loads(sys.argv[1]):
    wanted = Requirement(line)
    try:
        met = wanted.specifier.contains(importlib.metadata.version(wanted.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        met = False
    if not met:
        unmet.append(line)
print(json.dumps(unmet))
"""
    found: list[str] = json.loads(run([python, "-c", probe, json.dumps([line for line in lines if line])]))
    return [line for line in found if not PROTECTED.match(re.split(r"[<>=!~ ;\[]", line)[0])]


def run(command: list[str]) -> str:
    """Runs a command; its failure ends the program with the last line it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        sys.exit(f"{Path(command[0]).name} failed: {said[-1] if said else done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

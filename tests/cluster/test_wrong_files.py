"""Wrong engine files: ``doctor`` and ``serve`` answer each with a sentence that names key, value and fix, and start nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tinker_backend import gpus
from tinker_backend.cli import main
from tinker_backend.supervisor import Supervisor

TEMPLATE = Path(__file__).parents[2] / "examples" / "tinker_backend_runtime" / "engine.yaml"
SIZES = {
    "4B": {"num_hidden_layers": 36, "hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 9728,
           "tie_word_embeddings": True},
    "32B": {"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 64, "intermediate_size": 25600,
            "tie_word_embeddings": False},
}  # fmt: skip
TRAIN, INFER = "actor_train.strategy_args.strategy_config", "actor_infer.strategy_args.strategy_config"
APART = {"actor_train.device_mapping": "0-3", "reference.device_mapping": "0-3"}
TWO_NODES = {
    "num_nodes": 2,
    "num_gpus_per_node": 8,
    "actor_infer.device_mapping": "8-15",
    "cluster": {"address": "auto", "exchange_folder": "/shared/tinker"},
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever machine this is, nvidia-smi is not found and CUDA hides nothing."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    which = shutil.which
    monkeypatch.setattr(
        gpus.shutil, "which", lambda name: which(str(tmp_path / name) if name == "nvidia-smi" else name)
    )


def install_smi(folder: Path, lines: list[str]) -> None:
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    path.chmod(0o755)


def cards(count: int, mib: int = 81559, capability: str = "9.0", name: str = "NVIDIA H100 80GB HBM3") -> list[str]:
    return [f"{index}, GPU-{index:08d}, {name}, {mib}, {capability}" for index in range(count)]


class Files:
    """A model folder and the two files of the quick start, with changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, sizes in SIZES.items():
            (folder / name).mkdir()
            config = sizes | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": 8,
                              "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144,
                              "hidden_act": "silu", "rms_norm_eps": 1e-6}  # fmt: skip
            (folder / name / "config.json").write_text(json.dumps(config))

    def write(self, changes: dict[str, Any] | str, server: str = "") -> None:
        """``changes``: dotted keys and values (``...`` removes the key), or the whole text of engine.yaml."""
        text = changes
        if not isinstance(changes, str):
            content: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text()) | {"pretrain": str(self.folder / "4B")}
            for path, value in changes.items():
                *parents, last = path.split(".")
                section = content
                for parent in parents:
                    section = section[parent]
                if value is ...:
                    del section[last]
                else:
                    section[last] = value
            text = yaml.safe_dump(content)
        (self.folder / "engine.yaml").write_text(str(text))
        (self.folder / "runtime.yaml").write_text(server or "backend: {port: 0}\n")

    def run(self, command: str, *options: str) -> Result:
        return CliRunner().invoke(main, [command, "--config", str(self.folder / "runtime.yaml"), *options])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(self: Supervisor) -> None:
        raise AssertionError("a process would be started")

    monkeypatch.setattr(Supervisor, "launch", launch)


WRONG: list[tuple[dict[str, Any] | str, list[str]]] = [
    # keys
    ({"actor_trian": {}}, ["actor_trian", "did you mean 'actor_train'"]),
    ({"actor_infer.num_gpu_per_worker": 1}, ["actor_infer.num_gpu_per_worker", "did you mean 'num_gpus_per_worker'"]),
    ({f"{INFER}.gpu_memory_utilisation": 0.8}, ["gpu_memory_utilisation", "did you mean 'gpu_memory_utilization'"]),
    ({f"{TRAIN}.fsdp_sizes": 4}, ["fsdp_sizes", "did you mean 'fsdp_size'"]),
    ({"cluster": {"adress": "auto"}}, ["cluster.adress", "did you mean 'address'"]),
    ({"actor_train.model_args": {"attn_implementation": "sdpa"}}, ["attn_implementation", "known keys"]),
    ({"pretrain": ...}, ["pretrain", "missing"]),
    ("pretrain: a/b\nsequence_length: 128\nsequence_length: 256\n", ["line 3", "'sequence_length' stands twice", "line 2"]),
    ("pretrain: a/b\nactor_train:\n  device_mapping: [0]\n  device_mapping: [1]\n", ["line 4", "'device_mapping'", "remove one"]),
    ("pretrain: [a\nactor_train: {}\n", ["not valid YAML", "line 2"]),
    ("pretrain: a/b\n\tdevice: cpu\n", ["not valid YAML", "line 2"]),
    ("- pretrain\n", ["must hold a mapping"]),
    # types
    ({"actor_train": 5}, ["actor_train", "mapping", "5"]),
    ({"actor_train": None}, ["actor_train", "mapping", "None"]),
    ({"sequence_length": "long"}, ["sequence_length", "'long'", "integer"]),
    ({"sequence_length": {"tokens": 5}}, ["sequence_length", "integer"]),
    ({"num_nodes": 0}, ["num_nodes", "0", "greater than or equal to 1"]),
    ({"num_gpus_per_node": -8}, ["num_gpus_per_node", "-8"]),
    ({"actor_infer.num_gpus_per_worker": -1}, ["actor_infer.num_gpus_per_worker", "-1"]),
    ({f"{TRAIN}.max_tokens_per_batch": -16384}, ["max_tokens_per_batch", "-16384", "positive whole number"]),
    ({f"{INFER}.max_loras": 2.5}, ["max_loras", "2.5", "positive whole number"]),
    ({f"{INFER}.enforce_eager": "yes"}, ["enforce_eager", "'yes'", "true or false"]),
    ({f"{INFER}.gpu_memory_utilization": 85}, ["gpu_memory_utilization", "85", "0.85"]),
    ({f"{INFER}.load_format": True}, ["load_format", "True", "auto"]),
    ({f"{INFER}.load_format": "dummy"}, ["load_format", "dummy", "use auto"]),
    ({"device": "gpu"}, ["device", "'gpu'", "'cuda'"]),
    # values
    ({"actor_train.model_args.dtype": "float8"}, ["actor_train.model_args.dtype", "'float8'", "bfloat16"]),
    ({f"{INFER}.dtype": "half"}, [f"{INFER}.dtype", "'half'", "float32"]),
    ({f"{TRAIN}.reduce_dtype": "fp8"}, ["reduce_dtype", "'fp8'", "float32"]),
    ({"actor_train.model_args.max_lora_rank": 1024}, ["max_lora_rank 1024", "512"]),
    ({"actor_train.model_args.max_lora_rank": 0}, ["max_lora_rank", "0"]),
    ({f"{INFER}.max_model_len": 4096}, ["max_model_len: 4096", "sequence_length 65536"]),
    ({f"{INFER}.max_loras": 8, f"{INFER}.max_cpu_loras": 4}, ["max_cpu_loras: 4", "max_loras 8", "raise it"]),
    ({f"{INFER}.max_num_seqs": 512, f"{INFER}.max_num_batched_tokens": 256}, ["max_num_batched_tokens: 256", "512"]),
    ({"actor_train.strategy_args.strategy_name": "megatron"}, ["strategy_name", "'megatron'", "fsdp2_train"]),
    ({"actor_train.strategy_args.strategy_name": "vllm"}, ["strategy_name", "'vllm'", "fsdp2_train"]),
    ({f"{TRAIN}.offload_policy": "disk"}, ["offload_policy", "disk", "use cpu"]),
    ({"aliases": ["a", "a"]}, ["aliases", "'a'", "twice"]),
    ({"model_name": "a", "aliases": ["a"]}, ["model_name", "'a'", "twice"]),
    ({"models": [{"pretrain": "other/model"}]}, ["models", "one base model"]),
    # devices
    ({"actor_infer.device_mapping": "4-x"}, ["actor_infer.device_mapping", "'4-x'", "0-3,5"]),
    ({"actor_infer.device_mapping": "7-4"}, ["device_mapping", "'7-4'", "backwards"]),
    ({"actor_infer.device_mapping": [4, 4]}, ["actor_infer.device_mapping", "[4, 4]", "distinct"]),
    ({"actor_infer.device_mapping": [-1]}, ["actor_infer.device_mapping", "[-1]", "from 0"]),
    ({"actor_infer.device_mapping": []}, ["actor_infer.device_mapping", "needs the numbers"]),
    ({"actor_infer.device_mapping": "4-6", "actor_infer.num_gpus_per_worker": 2}, ["3 devices", "num_gpus_per_worker 2"]),
    ({"num_gpus_per_node": 4}, ["device 7", "num_gpus_per_node 4", "0-3"]),
    ({"num_gpus_per_node": 0}, ["num_gpus_per_node: 0", "8 devices", "device: cpu"]),
    ({f"{INFER}.enable_sleep_mode": False}, ["enable_sleep_mode", "[4, 5, 6, 7]", "leave the key out"]),
    ({f"{INFER}.weight_transfer": "broadcast"}, ["weight_transfer", "share the devices", "use files"]),
    ({"reference.device_mapping": "0-3"}, ["reference", "actor_train", "copy them"]),
    ({f"{TRAIN}.fsdp_size": 3}, ["fsdp_size: 3", "8 devices", "divisor"]),
    ({f"{INFER}.tensor_parallel_size": 2}, ["num_gpus_per_worker: 1", "= 2 devices", "make the two equal"]),
    ({f"{INFER}.data_parallel_size": 3}, ["data_parallel_size: 3", "4 replicas", "leave it out"]),
    ({"actor_train.num_gpus_per_worker": 2}, ["actor_train.num_gpus_per_worker: 2", "must be 1"]),
    (
        {**APART, "actor_infer.device_mapping": "0-2", "actor_infer.num_gpus_per_worker": 3},
        ["num_gpus_per_worker: 3", "32 heads", "1, 2, 4, 8"],
    ),
    (
        {"actor_train.strategy_args.strategy_name": "torch", "reference": None, "actor_train.device_mapping": None},
        ["actor_train.device_mapping: missing", "[0]"],
    ),
    (
        {"actor_train.strategy_args.strategy_name": "torch", "reference": None, "actor_train.device_mapping": "0-3"},
        ["actor_train.device_mapping: [0, 1, 2, 3]", "one device", "fsdp2_train"],
    ),
    ("pretrain: a/b\nactor_train: {device_mapping: [2]}\n", ["device_mapping: [2]", "CUDA_VISIBLE_DEVICES"]),
    # nodes and ports
    ({"num_nodes": 2}, ["num_gpus_per_node: missing"]),
    ({"num_nodes": 3, "num_gpus_per_node": 8, "actor_infer.device_mapping": "8-15"}, ["num_nodes: 3", "node 2", "16-23"]),
    (
        TWO_NODES | {"cluster": {}},
        ["cluster.address: missing", "2 nodes", "cluster.exchange_folder: missing"],
    ),
    (
        TWO_NODES | {"actor_train.device_mapping": "0-11", "reference": None, "actor_infer.device_mapping": "12-15"},
        ["actor_train.device_mapping: 8 on node 0, 4 on node 1", "12 ranks", "fsdp_size"],
    ),
    (
        TWO_NODES | {"actor_infer.device_mapping": "6-9", "actor_infer.num_gpus_per_worker": 4},
        ["[6, 7, 8, 9]", "span nodes", "order the mapping"],
    ),
    ({"cluster": {"base_port": 80}}, ["cluster.base_port", "80", "1024"]),
    ({"cluster": {"temporary_folder": "/scratch/users/somebody/a-rather-long-name/ray"}}, ["temporary_folder", "40"]),
    ({"cluster": {"call_timeout_seconds": 0}}, ["call_timeout_seconds", "0"]),
    # models
    ({"pretrain": "/nowhere/model"}, ["pretrain '/nowhere/model'", "no such folder"]),
    ({"pretrain": "model"}, ["pretrain 'model'", "hub id"]),
    ({"pretrain": "/proc"}, ["/proc", "no config.json"]),
    ({"pretrain": "Qwen/Qwen3-235B-A22B"}, ["Qwen/Qwen3-235B-A22B", "128 experts", "dense"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[" ".join(words)[:60] for _, words in WRONG])
def test_a_wrong_file_is_told_in_a_sentence_before_anything_starts(
    files: Files, nothing_starts: None, changes: dict[str, Any] | str, words: list[str]
) -> None:
    files.write(changes)
    for command in ("doctor", "serve"):
        done = files.run(command)
        assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.output
        assert "Traceback" not in done.output
        told = [line for line in done.output.splitlines() if line.startswith(("FAIL", "Error", "  "))]
        missing = [word for word in words if word not in " ".join(told)]
        assert not missing, f"{command} says nothing of {missing}:\n{done.output}"


def test_a_port_that_is_used_twice_is_told(files: Files, nothing_starts: None) -> None:
    files.write({**APART, "cluster": {"base_port": 19100}}, "backend: {port: 19210}\n")
    for command in ("doctor", "serve"):
        done = files.run(command)
        assert done.exit_code == 1
        assert "cluster.base_port: 19100 gives ports 19200-19249" in done.output and "backend.port 19210" in done.output
    files.write({**APART, "cluster": {"base_port": 21000}}, "backend: {port: 19210}\n")
    assert "backend.port" not in files.run("doctor").output


def test_placement_ports_and_memory_are_told_without_gpus(files: Files) -> None:
    files.write({**APART, "cluster": {"base_port": 21000}, "actor_train.model_args.max_lora_rank": 32})
    said = files.run("doctor").output
    assert "actor_train 0: node 0, GPU 0 (device 0), port 21000" in said
    assert "actor_infer 3: node 0, GPU 7 (device 7), port 21250" in said
    assert "GPUs: not probed" in said and "actor_infer.device_mapping asks for 8 a node" in said
    assert "for GPUs of 80 GiB (assumed" in said and "cache" in said


def test_a_model_that_is_too_large_is_told_with_what_would_do(files: Files) -> None:
    files.write({"pretrain": str(files.folder / "32B"), f"{TRAIN}.activation_checkpointing": False})
    said = files.run("doctor").output
    (rank, replica) = [line for line in said.splitlines() if line.startswith("FAIL  actor_")]
    assert "actor_train.device_mapping: on 8 GPU(s) a rank needs" in rank and "activation_checkpointing to true" in rank
    assert "actor_infer.num_gpus_per_worker: 1" in replica and "set it to 2" in replica
    assert "FAIL  actor_" not in files.run("doctor", "--gpu-gib", "500").output
    wide = {"actor_infer.num_gpus_per_worker": 4, "sequence_length": 16384, f"{INFER}.max_model_len": 16384}
    files.write({"pretrain": str(files.folder / "32B"), f"{INFER}.gpu_memory_utilization": 0.95, **wide})
    said = files.run("doctor").output
    assert "gpu_memory_utilization: 0.95 leaves 4.0 GiB of a shared GPU" in said
    files.write({"pretrain": str(files.folder / "4B")})
    assert "FAIL  actor_" not in files.run("doctor").output


def test_the_gpus_of_the_machine_are_compared_with_the_file(
    files: Files, nothing_starts: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files.write({})
    install_smi(tmp_path, cards(8))
    said = files.run("doctor").output
    assert "ok    GPUs: 8 on this machine (NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0)" in said
    assert "for GPUs of 80 GiB (of this machine)" in said
    install_smi(tmp_path, cards(4))
    for command in ("doctor", "serve"):
        done = files.run(command)
        assert done.exit_code == 1 and "asks for 8 GPU(s) a node, but this machine has 4" in done.output
    install_smi(tmp_path, cards(8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-00000003")
    assert "this machine has 2 with CUDA_VISIBLE_DEVICES=0,GPU-00000003" in files.run("doctor").output
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    install_smi(tmp_path, cards(8, 15360, "7.5", "Tesla T4"))
    done = files.run("serve")
    assert done.exit_code == 1 and "actor_train.model_args.dtype: auto means bfloat16" in done.output
    assert "Tesla T4" in done.output and "fewer than one sequence of 65536" in done.output
    install_smi(tmp_path, cards(8, 11264, "6.1", "GeForce GTX 1080 Ti"))
    assert "vllm has no kernels for compute capability 6.1" in files.run("doctor").output
    install_smi(tmp_path, ["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."])
    assert "GPUs: not probed" in files.run("doctor").output


def test_the_estimate_is_that_of_the_documentation(files: Files) -> None:
    apart = {
        "actor_train.device_mapping": "0-7",
        "actor_infer.device_mapping": "8-9",
        "actor_infer.num_gpus_per_worker": 2,
    }
    short = {"sequence_length": 8192, f"{INFER}.max_model_len": 8192, "actor_train.model_args.max_lora_rank": 32}
    files.write(apart | short)
    said = files.run("doctor").output
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    rows = page.split("### 4B")[1].split("### ")[0].splitlines()
    for start in ("| 8 | LoRA 32 |", "| 8 | all weights |"):
        total = next(row for row in rows if row.startswith(start)).split("|")[8].strip()
        assert f"{total} GiB" in said, (total, said)
    tokens = next(row for row in rows if row.startswith("| 2 |")).split("|")[4].strip().replace(",", "")
    assert f"{tokens} tokens a replica" in said, said


def test_doctor_asks_the_runtimes_python_once(files: Files, tmp_path: Path) -> None:
    python, log = tmp_path / "python", tmp_path / "asked"
    python.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    files.write({}, f"backend: {{port: 0}}\nruntime: {{python: {python}}}\n")
    files.run("doctor")
    assert len(log.read_text().splitlines()) == 1
    files.write({}, "backend: {port: 0}\nruntime: {python: /nowhere/python}\n")
    said = files.run("doctor").output
    assert said.count("/nowhere/python") == 1 and "does not exist" in said


CONFIGURE = Path(__file__).parents[2] / "examples" / "tinker_quick_start" / "configure.py"


@pytest.mark.parametrize(
    ("count", "train", "infer", "more"),
    [
        (1, "0", "0", []),
        (8, "0-7", "4-7", []),
        (16, "0-7", "8-15", ["--shared-folder", "/shared/tinker"]),
        (64, "0-47", "48-63", ["--shared-folder", "/shared/tinker"]),
    ],
)
def test_what_configure_writes_for_so_many_gpus_is_well(
    files: Files, tmp_path: Path, count: int, train: str, infer: str, more: list[str]
) -> None:
    task = tmp_path / "task"
    (task / "assets" / "harbor-tasks" / "own__task-1").mkdir(parents=True)
    (task / "assets" / "harbor-tasks" / "own__task-1" / "task.toml").touch()
    (task / "runtime-venv" / "bin").mkdir(parents=True)
    python = task / "runtime-venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = [sys.executable, str(CONFIGURE), "--task-root", str(task), "--task-id", "own__task-1"]
    command += ["--model", str(tmp_path / "4B"), "--outer-image", "tinker-harbor:local", "--node-ip", "10.0.0.5"]
    command += ["--train-gpus", train, "--infer-gpus", infer, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = CliRunner().invoke(main, ["doctor", "--config", str(task / "config" / "runtime.yaml")]).output
    wrong = [line for line in said.splitlines() if line.startswith("FAIL")]
    # Ray and vLLM may be missing here, and another server may have the port.
    assert all("is not installed" in line or "is not supported" in line or "cannot listen" in line for line in wrong), (
        said
    )
    nodes = max(1, count // 8)
    assert f"{nodes} node(s), {min(count, 8)} GPU(s) each" in said
    assert (
        f"actor_infer {len(range(*bounds(infer))) - 1}: node {nodes - 1}, GPU {(count - 1) % 8} (device {count - 1})"
        in said
    )
    if more:
        refused = subprocess.run(
            [*command[: -len(more)], "--task-root", str(tmp_path / "other")], capture_output=True, text=True, timeout=60
        )
        assert refused.returncode == 2


def bounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first) + 1

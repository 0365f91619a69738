"""Every rule of a cluster configuration is checked before a device is touched, and names key and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tinker_backend.config import EngineConfig
from tinker_backend.engine_rules import has_trainer, shared_devices, vllm_lora_rank
from tinker_backend.errors import ConfigError
from tinker_backend.runtime.ray.dry_run import dry_run
from tinker_backend.runtime.ray.placement import place, placement_problems
from tinker_backend.runtime.ray.versions import installed, problems
from tinker_backend.scaling.plan import memory_findings

CHECKOUT = Path(__file__).parents[2]


def eight_gpus(**changes: Any) -> dict[str, Any]:
    """The template of the quick start with a model filled in; ``a__b`` names a nested key."""
    template = CHECKOUT / "examples" / "tinker_backend_runtime" / "engine.yaml"
    content: dict[str, Any] = yaml.safe_load(template.read_text(encoding="utf-8")) | {"pretrain": "some/model"}
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = content
        for parent in parents:
            section = section[parent]
        section[last] = value
    return content


def config_of(**changes: Any) -> EngineConfig:
    return EngineConfig.model_validate(eight_gpus(**changes))


TRAIN, INFER = "actor_train__strategy_args__strategy_config", "actor_infer__strategy_args__strategy_config"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actor_train__strategy_args__strategy_name": "vllm"}, ["actor_train.strategy_args", "fsdp2_train"]),
        ({f"{TRAIN}": {"fsdp_sizes": 4}}, ["fsdp_sizes", "did you mean 'fsdp_size'"]),
        ({f"{TRAIN}": {"fsdp_size": 3}}, ["fsdp_size: 3", "8 devices", "divisor"]),
        ({f"{TRAIN}": {"fsdp_size": 0}}, ["fsdp_size", "positive"]),
        ({f"{TRAIN}": {"offload_policy": "disk"}}, ["offload_policy", "use cpu"]),
        ({"actor_train__num_gpus_per_worker": 2}, ["actor_train.num_gpus_per_worker", "must be 1"]),
        ({"actor_train__device_mapping": None, "reference": None}, ["actor_train.device_mapping", "0-7"]),
        ({f"{INFER}": {"tensor_parallel_size": 2}}, ["num_gpus_per_worker: 1", "= 2 devices"]),
        ({f"{INFER}": {"data_parallel_size": 3}}, ["data_parallel_size: 3", "4 replicas"]),
        ({f"{INFER}": {"max_model_len": 4096}}, ["max_model_len: 4096", "sequence_length 65536"]),
        ({f"{INFER}": {"gpu_memory_utilization": 85}}, ["gpu_memory_utilization", "0.85"]),
        ({f"{INFER}": {"enforce_eager": "yes"}}, ["enforce_eager", "true or false"]),
        ({f"{INFER}": {"enable_sleep_mode": False}}, ["enable_sleep_mode", "[4, 5, 6, 7]"]),
        ({"actor_train__model_args": {"max_lora_rank": 1024}}, ["max_lora_rank 1024", "512"]),
        ({"reference__device_mapping": "0-3"}, ["reference", "actor_train"]),
        ({"num_gpus_per_node": 4}, ["device 7", "num_gpus_per_node 4", "0-3"]),
        ({"num_nodes": 2}, ["num_gpus_per_node: missing"]),
        (
            {"num_nodes": 2, "num_gpus_per_node": 4, "actor_infer__num_gpus_per_worker": 2, INFER: {},
             "actor_infer__device_mapping": [3, 4]},
            ["[3, 4]", "span nodes"],
        ),
        ({"models": [{"pretrain": "other"}]}, ["models", "one base model"]),
        ({"cluster": {"adress": "auto"}}, ["adress", "Extra inputs"]),
    ],
)  # fmt: skip
def test_a_broken_rule_names_key_and_fix(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        config_of(**changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_template_of_the_quick_start_is_colocated_on_half_of_its_gpus() -> None:
    config = config_of()
    assert shared_devices(config) == [4, 5, 6, 7]
    placement = place(config)
    assert [seat.local_devices for seat in placement.train] == [(n,) for n in range(8)]
    assert [seat.devices for seat in placement.infer] == [(4,), (5,), (6,), (7,)]
    assert placement.bundles() == [{"CPU": 12.0, "GPU": 8.0}]
    assert "sampler sleeps" in placement.lines()[-1]


def test_seats_spread_over_nodes_with_their_local_numbers_and_ports() -> None:
    config = config_of(
        num_nodes=2,
        num_gpus_per_node=8,
        actor_train__device_mapping="0-7",
        actor_infer__device_mapping="8-15",
        actor_infer__num_gpus_per_worker=4,
        cluster={"base_port": 29000},
    )
    placement = place(config)
    assert [(s.node, s.local_devices, s.port) for s in placement.infer] == [
        (1, (0, 1, 2, 3), 29100),
        (1, (4, 5, 6, 7), 29150),
    ]
    assert placement.train[0].port == 29000 and placement.shared == ()
    assert placement.bundles() == [{"CPU": 8.0, "GPU": 8.0}, {"CPU": 2.0, "GPU": 8.0}]


def test_two_nodes_need_a_ray_and_a_folder_of_their_own() -> None:
    two = {
        "num_nodes": 2,
        "num_gpus_per_node": 8,
        "actor_train__device_mapping": "0-7",
        "actor_infer__device_mapping": "8-15",
        "reference": None,
    }
    wrong = placement_problems(config_of(**two))
    assert [text.split(":")[0] for text in wrong] == ["cluster.address", "cluster.exchange_folder"]
    there = {"address": "auto", "exchange_folder": "/shared/tinker"}
    assert placement_problems(config_of(**two, cluster=there)) == []
    many = two | {"num_nodes": 16, "actor_infer__device_mapping": "8-127", "cluster": there | {"base_port": 60000}}
    (ports,) = placement_problems(config_of(**many))
    assert "cluster.base_port" in ports
    assert placement_problems(config_of()) == []
    assert (False, wrong[0]) in dry_run(config_of(**two))


def test_without_actor_train_vllm_serves_rollouts_alone() -> None:
    content = eight_gpus()
    del content["actor_train"]
    content["reference"] = None
    config = EngineConfig.model_validate(content)
    assert not has_trainer(config)
    placement = place(config)
    assert placement.train == () and len(placement.infer) == 4 and placement.shared == ()


def test_slots_of_a_cpu_are_processes() -> None:
    config = config_of(device="cpu", sequence_length=128, reference=None, actor_train__device_mapping=[0, 1])
    assert place(config).bundles() == [{"CPU": 6.0}]


@pytest.mark.parametrize(("rank", "served"), [(1, 1), (2, 8), (33, 64), (128, 128), (300, 320)])
def test_adapters_fit_into_the_next_rank_that_vllm_knows(rank: int, served: int) -> None:
    assert vllm_lora_rank(rank) == served


def test_missing_and_wrong_versions_are_named() -> None:
    found = {"torch": "2.6.0", "ray": None, "vllm": "0.19.1"}
    text = problems(config_of(), found)
    assert [line.split()[0] for line in text] == ["torch", "ray", "vllm"]
    assert "install vllm>=0.23" in text[2]
    assert set(installed()) == {"torch", "ray", "vllm"}


def test_an_embedded_engine_needs_no_dry_run(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("pretrain: some/model\n")
    assert dry_run(EngineConfig.load(path)) == [(True, "embedded engine: trainer and sampler in one process, no Ray")]


def test_memory_is_estimated_from_the_models_folder(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"num_hidden_layers": 36, "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8,'
        ' "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": true}'
    )
    title, train, beside, infer = memory_findings(config_of(pretrain=str(model)), 80, "assumed")
    assert "GPUs of 80 GiB (assumed)" in title[1] and "GiB when all weights are trained" in train[1]
    assert "the trainer keeps" in beside[1] and "weights 7.5 GiB" in infer[1]
    (short,) = memory_findings(config_of(), 80, "assumed")
    assert "no estimate" in short[1]
    # The sizes of what the quick start names are known before it is downloaded.
    _, train, _, infer = memory_findings(config_of(pretrain="Qwen/Qwen3-4B-Instruct-2507"), 80, "assumed")
    assert "GiB with one adapter of rank 128" in train[1] and "weights 7.5 GiB" in infer[1]
    assert "no estimate" in memory_findings(config_of(pretrain="Qwen/Qwen3-4Bit"), 80, "assumed")[0][1]
    good, tight = memory_findings(config_of(pretrain=str(model)), 14, "assumed")[-1]
    assert not good and "fewer than one sequence" in tight


def test_files_of_configure_are_validated_by_doctor_without_gpus(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tinker_backend.cli import main

    (tmp_path / "engine.yaml").write_text(yaml.safe_dump(eight_gpus()))
    (tmp_path / "runtime.yaml").write_text(
        "backend: {port: 0}\ncheckpoints: {folder: c}\nlogs: {folder: l}\nruntime: {engine: engine.yaml}\n"
    )
    done = CliRunner().invoke(main, ["doctor", "--config", str(tmp_path / "runtime.yaml")])
    assert "actor_train 7: node 0, GPU 7 (device 7), joins actor_train 0" in done.output
    assert "devices 4, 5, 6, 7 are shared" in done.output
    missing = [name for name, version in installed().items() if version is None]
    for name in missing:
        assert f"FAIL  {name} is not installed" in done.output
    (tmp_path / "engine.yaml").write_text(yaml.safe_dump(eight_gpus(actor_train__num_gpus_per_worker=2)))
    done = CliRunner().invoke(main, ["doctor", "--config", str(tmp_path / "runtime.yaml")])
    assert done.exit_code == 1 and "num_gpus_per_worker" in done.output
    with pytest.raises(ConfigError):
        EngineConfig.load(tmp_path / "engine.yaml")

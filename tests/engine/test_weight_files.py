"""Folders of weights: exact resume, PEFT and Hugging Face forms, damage found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tinker_backend.runtime.base_model import load_base_model
from tinker_backend.runtime.roles import Datum, LoraSpec, LossRequest, LossResult, OptimParams, RunSpec, RuntimeFault
from tinker_backend.runtime.torch_trainer import TorchTrainer
from tinker_backend.runtime.weight_files import weights_info

NewTrainer = Callable[..., TorchTrainer]
STEP = OptimParams(learning_rate=1e-2, weight_decay=0.01)


def trained(trainer: TorchTrainer, batches: list[list[Datum]], rank: int = 4) -> None:
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=rank, seed=3)))
    for batch in batches:
        backward(trainer, "run", batch)
        trainer.optim_step("run", STEP)


def backward(trainer: TorchTrainer, run_id: str, batch: list[Datum]) -> LossResult:
    (got,) = trainer.forward_backward([LossRequest(run_id, 1, batch, "cross_entropy")])
    assert isinstance(got, LossResult), got
    return got


@pytest.mark.parametrize("rank", [4, 0])
def test_save_load_step_equals_step_with_gradients_half_collected(
    rank: int, new_trainer: NewTrainer, data: Any, tmp_path: Path
) -> None:
    first, half, other_half = data.batch(3), data.batch(3), data.batch(3)
    trainer = new_trainer()
    trained(trainer, [first], rank)
    backward(trainer, "run", half)
    saved = trainer.save("run", str(tmp_path / "state"), "training")
    assert saved.size_bytes == sum(f.stat().st_size for f in (tmp_path / "state").iterdir())
    elsewhere = new_trainer()
    elsewhere.load(RunSpec("again", "tiny", LoraSpec(rank=rank)), str(tmp_path / "state"), optimizer=True)
    for t, run_id in ((trainer, "run"), (elsewhere, "again")):
        backward(t, run_id, other_half)
        metrics = t.optim_step(run_id, STEP)
        assert metrics["step"] == 2
    assert torch.equal(trainer.runs["run"].values, elsewhere.runs["again"].values)


def test_weights_alone_start_with_a_fresh_optimizer(new_trainer: NewTrainer, data: Any, tmp_path: Path) -> None:
    trainer = new_trainer()
    trained(trainer, [data.batch(3), data.batch(3)])
    backward(trainer, "run", data.batch(2))
    trainer.save("run", str(tmp_path / "state"), "training")
    trainer.load(RunSpec("fresh", "tiny", LoraSpec(rank=4)), str(tmp_path / "state"), optimizer=False)
    fresh = trainer.runs["fresh"]
    assert torch.equal(fresh.values, trainer.runs["run"].values)
    assert fresh.step == 0 and fresh.exp_avg is None and fresh.gradients is None
    batch = data.batch(3)
    trainer.runs["run"].gradients = None
    for run_id in ("run", "fresh"):
        backward(trainer, run_id, batch)
        trainer.optim_step(run_id, STEP)
    assert not torch.equal(fresh.values, trainer.runs["run"].values)


def test_loading_overwrites_a_run_that_exists(new_trainer: NewTrainer, data: Any, tmp_path: Path) -> None:
    trainer = new_trainer()
    trained(trainer, [data.batch(3)])
    trainer.save("run", str(tmp_path / "state"), "training")
    kept = trainer.runs["run"].values.clone()
    backward(trainer, "run", data.batch(3))
    trainer.optim_step("run", STEP)
    assert not torch.equal(trainer.runs["run"].values, kept)
    trainer.load(RunSpec("run", "tiny", LoraSpec(rank=4)), str(tmp_path / "state"), optimizer=True)
    assert torch.equal(trainer.runs["run"].values, kept) and trainer.runs["run"].gradients is None


@pytest.mark.parametrize("family", ["qwen3", "phi3", "gpt2"])
def test_the_external_folder_is_a_peft_adapter(
    family: str, tiny_base: Any, new_trainer: NewTrainer, data: Any, disturbed: Any, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = tiny_base(family, False)
    trainer = new_trainer(model=base)
    disturbed(trainer, "run", LoraSpec(rank=4, seed=2))
    trainer.save("run", str(tmp_path / "out"), "external")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    plain = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, str(tmp_path / "out"))
    datum = data.datum(20, weighted=False)
    ids = torch.tensor(datum.tokens.astype(np.int64))[None]
    target = torch.tensor(datum.inputs["target_tokens"])[:, None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0].log_softmax(-1).gather(1, target)[:, 0].numpy()
    np.testing.assert_allclose(backward(trainer, "run", [datum]).outputs[0]["logprobs"], expected, atol=1e-5)


def test_an_adapter_that_peft_wrote_can_be_loaded(
    new_trainer: NewTrainer, base: Any, data: Any, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(plain, config)
    model.save_pretrained(tmp_path / "theirs")
    trainer = new_trainer()
    trainer.load(RunSpec("run", "tiny", LoraSpec(rank=4)), str(tmp_path / "theirs"), optimizer=False)
    datum = data.datum(20, weighted=False)
    ids = torch.tensor(datum.tokens.astype(np.int64))[None]
    target = torch.tensor(datum.inputs["target_tokens"])[:, None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0].log_softmax(-1).gather(1, target)[:, 0].numpy()
    np.testing.assert_allclose(backward(trainer, "run", [datum]).outputs[0]["logprobs"], expected, atol=1e-5)


def test_a_fully_trained_model_is_saved_as_a_model_folder(new_trainer: NewTrainer, data: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = new_trainer()
    trained(trainer, [data.batch(3)], rank=0)
    trainer.save("run", str(tmp_path / "model"), "external")
    datum = data.datum(20, weighted=False)
    got = backward(trainer, "run", [datum]).outputs[0]["logprobs"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    ids = torch.tensor(datum.tokens.astype(np.int64))[None]
    target = torch.tensor(datum.inputs["target_tokens"])[:, None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0].log_softmax(-1).gather(1, target)[:, 0].numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").decode([70, 71])
    again = load_base_model(tmp_path / "model", "again", [], torch.float32, torch.device("cpu"), 256, 64)
    run = trainer.runs["run"]
    assert torch.equal(again.weights["embed"], run.layout.tensors(run.values)["embed"])


def test_a_saved_folder_tells_what_it_holds(new_trainer: NewTrainer, tmp_path: Path) -> None:
    trainer = new_trainer()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4, train_mlp=False)))
    expected = {
        "base_model": "tiny",
        "is_lora": True,
        "lora_rank": 4,
        "train_unembed": True,
        "train_mlp": False,
        "train_attn": True,
    }
    for kind, optimizer in (("training", True), ("sampler", False)):
        trainer.save("run", str(tmp_path / kind), kind)  # type: ignore[arg-type]
        assert weights_info(str(tmp_path / kind)) == expected | {"optimizer": optimizer}
    trainer.save("run", str(tmp_path / "external"), "external")
    assert weights_info(str(tmp_path / "external"))["lora_rank"] == 4
    with pytest.raises(RuntimeFault, match="holds no saved weights"):
        weights_info(str(tmp_path))


def test_sampler_folders_hold_no_optimizer(new_trainer: NewTrainer, data: Any, tmp_path: Path) -> None:
    trainer = new_trainer()
    trained(trainer, [data.batch(2)])
    trainer.save("run", str(tmp_path / "s"), "sampler")
    assert not (tmp_path / "s" / "optimizer.safetensors").exists()
    with pytest.raises(RuntimeFault, match="weights alone"):
        trainer.load(RunSpec("x", "tiny", LoraSpec(rank=4)), str(tmp_path / "s"), optimizer=True)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.safetensors"])
def test_a_damaged_file_is_found_by_its_digest(name: str, new_trainer: NewTrainer, data: Any, tmp_path: Path) -> None:
    trainer = new_trainer()
    trained(trainer, [data.batch(2)])
    trainer.save("run", str(tmp_path / "s"), "training")
    path = tmp_path / "s" / name
    content = bytearray(path.read_bytes())
    content[-5] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(RuntimeFault, match=f"{name} is missing or damaged"):
        trainer.load(RunSpec("x", "tiny", LoraSpec(rank=4)), str(tmp_path / "s"), optimizer=True)
    assert "x" not in trainer.runs


def test_another_rank_is_refused(new_trainer: NewTrainer, tmp_path: Path) -> None:
    trainer = new_trainer()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4)))
    trainer.save("run", str(tmp_path / "s"), "training")
    with pytest.raises(RuntimeFault, match="saved with rank 4, the run has rank 8"):
        trainer.load(RunSpec("x", "tiny", LoraSpec(rank=8)), str(tmp_path / "s"), optimizer=False)


def test_saving_again_replaces_the_folder_and_leaves_no_rest(
    new_trainer: NewTrainer, data: Any, tmp_path: Path
) -> None:
    trainer = new_trainer()
    trained(trainer, [data.batch(2)])
    for _ in range(2):
        trainer.save("run", str(tmp_path / "s"), "training")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert json.loads((tmp_path / "s" / "tinker.json").read_text())["step"] == 1


def test_a_folder_that_cannot_be_written_is_a_fault_with_the_path(new_trainer: NewTrainer, tmp_path: Path) -> None:
    trainer = new_trainer()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4)))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RuntimeFault, match="cannot be written"):
        trainer.save("run", str(tmp_path / "file" / "s"), "training")


def test_a_full_disk_is_a_fault_with_the_path(
    new_trainer: NewTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    from tinker_backend.runtime import weight_files

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weight_files, "save_file", full)
    trainer = new_trainer()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4)))
    with pytest.raises(RuntimeFault, match=rf"cannot be written to {tmp_path}/s: .*No space left"):
        trainer.save("run", str(tmp_path / "s"), "training")
    assert not list(tmp_path.iterdir())

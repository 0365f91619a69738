"""An adapter that adds nothing, for the slot that vLLM's CPU products take where a request has no adapter.

Before 0.33 the index -1 of "none" picks the last slot, so that base logits carried whatever adapter was there.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tinker_backend.runtime.architecture import read_architecture
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.decoder import Decoder
from tinker_backend.runtime.lora import AdapterLayout
from tinker_backend.runtime.roles import LoraSpec, RunSpec
from tinker_backend.runtime.training_run import TrainingRun
from tinker_backend.runtime.weight_files import save_run


def write_blank_adapter(model: Path, folder: Path) -> None:
    """Writes the folder of an adapter of zeros for a model folder."""
    architecture, cpu = read_architecture(model), torch.device("cpu")
    decoder = Decoder(architecture, cpu, 8)
    base = BaseModel(model.name, (), model, architecture, {}, decoder, torch.float32, cpu, 8, 1)
    spec = RunSpec("blank", model.name, LoraSpec(rank=1))
    layout = AdapterLayout(architecture, spec.lora)
    save_run(TrainingRun(spec, base, layout, torch.zeros(layout.size)), str(folder), "sampler")

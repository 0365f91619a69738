"""The plain programs that the engine is measured against: a torch + peft training loop and transformers ``generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F


class Bare:
    """One model in this process, as a person would write it by hand."""

    def __init__(self, folder: Path, dtype: str, rank: int) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        narrow = getattr(torch, dtype)
        self.plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=narrow).eval()
        modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=narrow)
        self.tuned: Any = get_peft_model(base, LoraConfig(r=rank, lora_alpha=32, target_modules=modules)).train()
        parameters = [p for p in self.tuned.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)

    def step(self, tokens_BN: np.ndarray) -> float:
        """One training step on equally long rows; the last token of each row is a target only."""
        ids = torch.from_numpy(tokens_BN)
        logits = self.tuned(input_ids=ids[:, :-1], use_cache=False).logits.float()
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="sum")
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def generate(self, prompt: np.ndarray, samples: int, tokens: int) -> None:
        """Samples of the base model, all of full length."""
        ids = torch.from_numpy(prompt)[None].expand(samples, len(prompt))
        with torch.no_grad():
            self.plain.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )

"""Tiny models with random weights, one for each supported family, with a byte-level BPE tokenizer and a ChatML template.

They exercise the same code as real models in milliseconds; tests and benchmarks make them on the spot.

    python -m tinker_backend.models.tiny --family qwen3 --out FOLDER
"""

from __future__ import annotations

import argparse
import functools
import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "phi3", "gpt2")


def make_tiny_model(
    folder: Path,
    family: str = "qwen3",
    *,
    vocab_size: int = 512,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 512,
    tied: bool = True,
    seed: int = 0,
    init_scale: float = 0.08,
    dtype: str = "float32",
) -> Path:
    """Writes a random model of ``family`` into ``folder`` and returns it; nothing happens when it is there already.

    ``init_scale`` is the standard deviation of the weights, large enough that the logits are not all alike.
    Biases and norm weights are random too, so that an implementation that forgets one shows.
    """
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        **_fields(family, vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, context),
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        torch_dtype=dtype,
    )
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            centre = 1.0 if parameter.dim() == 1 and name.endswith("weight") and family != "gemma" else 0.0
            parameter.copy_(centre + init_scale * noise)
    folder.mkdir(parents=True, exist_ok=True)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    write_tokenizer(folder, vocab_size, context)
    return folder


def _fields(
    family: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
    kv_heads: int,
    context: int,
) -> dict[str, Any]:
    if family not in FAMILIES:
        raise ValueError(f"family {family!r} is unknown; choose one of {', '.join(FAMILIES)}")
    if family == "gpt2":
        return {
            "vocab_size": vocab_size,
            "n_embd": hidden_size,
            "n_inner": intermediate_size,
            "n_layer": layers,
            "n_head": heads,
            "n_positions": context,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        }
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
    }
    if family in ("qwen3", "gemma", "mistral"):
        fields["head_dim"] = hidden_size // heads
    if family == "mistral":
        fields["sliding_window"] = None
    if family == "phi3":
        fields["sliding_window"] = None
        fields["original_max_position_embeddings"] = context
    return fields


def write_tokenizer(folder: Path, vocab_size: int, context: int) -> None:
    """A byte-level BPE tokenizer of at most ``vocab_size`` tokens, trained on the documentation of Python itself."""
    (folder / "tokenizer.json").write_text(_tokenizer_json(vocab_size), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[0],
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


@functools.cache
def _tokenizer_json(vocab_size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    text: str = tokenizer.to_str()
    return text


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description="Makes a tiny model with random weights.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3")
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--intermediate-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    out, family = options.pop("out"), options.pop("family")
    print(make_tiny_model(out, family, **options))


if __name__ == "__main__":
    main()

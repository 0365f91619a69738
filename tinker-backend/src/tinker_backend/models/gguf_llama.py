"""Reads a Llama model out of a GGUF file: configuration, weights and tokenizer in Hugging Face form.

GGUF keeps the rows of the query and key projections in the interleaved rotary order; Hugging Face splits each head
into two halves. ``_halves`` undoes that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


class GgufLlama:
    """A GGUF file of architecture ``llama`` with a byte-level BPE tokenizer.

    Raises ValueError for another architecture or tokenizer.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(str(path))
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise ValueError(
                f"{path}: architecture {architecture!r} is not supported; give a GGUF file of a Llama model"
            )
        tokenizer = self._field("tokenizer.ggml.model")
        if tokenizer != "gpt2":
            raise ValueError(f"{path}: tokenizer {tokenizer!r} is not byte-level BPE (gpt2)")

    def _field(self, name: str, default: Any = None) -> Any:
        field = self._reader.fields.get(name)
        return default if field is None else field.contents()

    def config(self) -> dict[str, Any]:
        """The fields of ``config.json``, readable by transformers 4 and 5."""
        heads = int(self._field("llama.attention.head_count"))
        hidden = int(self._field("llama.embedding_length"))
        theta = float(self._field("llama.rope.freq_base", 10000.0))
        names = {tensor.name for tensor in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": int(self._field("llama.vocab_size")),
            "hidden_size": hidden,
            "intermediate_size": int(self._field("llama.feed_forward_length")),
            "num_hidden_layers": int(self._field("llama.block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self._field("llama.attention.head_count_kv", heads)),
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            "max_position_embeddings": int(self._field("llama.context_length")),
            "rms_norm_eps": round(float(self._field("llama.attention.layer_norm_rms_epsilon")), 9),
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": "output.weight" not in names,
            "bos_token_id": self._field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self._field("tokenizer.ggml.padding_token_id"),
            "initializer_range": 0.02,
        }

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Dequantised float32 weights under Hugging Face names."""
        from gguf.quants import dequantize

        config = self.config()
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        top = {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight",
        }
        result: dict[str, npt.NDArray[np.float32]] = {}
        for tensor in self._reader.tensors:
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if tensor.name in top:
                result[top[tensor.name]] = values
                continue
            _, layer, part, suffix = tensor.name.split(".")
            if part in heads:
                values = _halves(values, heads[part])
            result[f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"] = values
        return result

    def tokenizer(self) -> dict[str, Any]:
        """The fields of ``tokenizer.json``."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        kinds: list[int] = self._field("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ", 1)) for merge in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(
            [
                AddedToken(token, special=True, normalized=False)
                for token, kind in zip(tokens, kinds, strict=True)
                if kind == _CONTROL_TOKEN
            ]
        )
        return json.loads(tokenizer.to_str())

    def tokenizer_config(self) -> dict[str, Any]:
        """The fields of ``tokenizer_config.json``, with the chat template."""
        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[self._field("tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[self._field("tokenizer.ggml.eos_token_id")],
            "unk_token": tokens[self._field("tokenizer.ggml.unknown_token_id")],
            "pad_token": tokens[self._field("tokenizer.ggml.padding_token_id")],
            "model_max_length": int(self._field("llama.context_length")),
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            "chat_template": self._field("tokenizer.chat_template"),
        }


def _halves(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Interleaved rotary rows (pairs side by side) to Hugging Face rows (first halves, then second halves)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)

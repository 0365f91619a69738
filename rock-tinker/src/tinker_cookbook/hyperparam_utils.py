"""Learning rate rule of thumb and parameter counts."""

from __future__ import annotations

from tinker_cookbook import model_catalog
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.model_catalog import AdapterSize, Shape
from tinker_cookbook.tokenizer_utils import find_local_folder


class UncalibratedModelError(ConfigurationError, NotImplementedError):
    """A known model for whose family no learning rate was ever fitted."""


_BASE_LR = 5e-5
_LORA_FACTOR = 10.0


def get_lora_lr_over_full_finetune_lr(model_name: str, lora_alpha: int = 32) -> float:
    """How much larger the learning rate of LoRA is than that of full fine-tuning: 10 for every model."""
    return _LORA_FACTOR


def get_lr(model_name: str, is_lora: bool = True) -> float:
    """Learning rate by rule of thumb: ``5e-5 * (10 if LoRA) * (2000 / hidden size) ** p``.

    p was fitted per family: 0.781 (Llama), 0.0775 (Qwen).

    Raises:
        UncalibratedModelError: a known model whose family was never calibrated (a NotImplementedError too).
        ConfigurationError: an unknown model.
    """
    exponent = _lr_exponent(model_name)
    factor = get_lora_lr_over_full_finetune_lr(model_name) if is_lora else 1.0
    return float(_BASE_LR * factor * (2000 / get_hidden_size(model_name)) ** exponent)


def _lr_exponent(model_name: str) -> float:
    found = model_catalog.find(model_name)
    if found is not None and found[0].lr_exponent is not None:
        return found[0].lr_exponent
    lowered = model_name.lower()
    for word, exponent in (("llama", 0.781), ("qwen", 0.0775)):
        if word in lowered:
            return exponent
    if found is not None:
        raise UncalibratedModelError(f"model_name={model_name!r}: no calibrated learning rate; give learning_rate=...")
    raise ConfigurationError(f"model_name={model_name!r}: no learning rate rule for this model; give learning_rate=...")


def get_full_finetune_lr_multiplier(model_name: str) -> float:
    """1 / sqrt(parameters): scale of a learning rate across model sizes in full fine-tuning."""
    return float(1.0 / get_full_finetune_param_count(model_name) ** 0.5)


def get_lora_lr_multiplier(model_name: str) -> float:
    """The same for LoRA."""
    return get_full_finetune_lr_multiplier(model_name) * get_lora_lr_over_full_finetune_lr(model_name)


def get_hidden_size(model_name: str) -> int:
    """Hidden size from the table, else from the model's config (a local folder is enough)."""
    found = model_catalog.find(model_name)
    shape = found[0].sizes[found[1]] if found else None
    if shape is not None:
        return shape.hidden
    return _shape_from_config(model_name).hidden


def get_shape(model_name: str) -> Shape:
    """Sizes of a dense model from the table or from its config."""
    found = model_catalog.find(model_name)
    shape = found[0].sizes[found[1]] if found else None
    return shape if isinstance(shape, Shape) else _shape_from_config(model_name)


def _shape_from_config(model_name: str) -> Shape:
    from transformers import AutoConfig

    name = find_local_folder(model_name) or model_name.split(":")[0]
    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"model_name={model_name!r}: no shape in the table and no config found ({str(error).splitlines()[0]})"
        ) from error
    text = config.get_text_config()
    if getattr(text, "num_experts", None) or getattr(text, "n_routed_experts", None):
        # Adapters of all experts share the side of the hidden size.
        intermediate = int(getattr(text, "moe_intermediate_size", 0)) * int(getattr(text, "num_experts", 1) or 1)
    else:
        intermediate = int(text.intermediate_size)
    return Shape(
        hidden=int(text.hidden_size),
        layers=int(text.num_hidden_layers),
        heads=int(text.num_attention_heads),
        kv_heads=int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads),
        intermediate=intermediate,
        vocab=int(text.vocab_size),
        tied=bool(getattr(text, "tie_word_embeddings", False)),
    )


def get_lora_param_count(
    model_name: str,
    lora_rank: int = 32,
    train_mlp: bool = True,
    train_attn: bool = True,
    train_unembed: bool = True,
) -> int:
    """Trainable parameters of a LoRA: ``rank * (in + out)`` for every adapted matrix; the experts of a layer share the side
    of the hidden size.

    Raises:
        ConfigurationError: nothing is trained, or the model is unknown.
    """
    if not (train_mlp or train_attn or train_unembed):
        raise ConfigurationError("train_mlp, train_attn and train_unembed are all False; a LoRA trains at least one")
    size = _adapter_size(model_name)
    return lora_rank * (train_attn * size.attention + train_mlp * size.mlp + train_unembed * size.unembed)


def _adapter_size(model_name: str) -> AdapterSize:
    found = model_catalog.find(model_name)
    size = found[0].sizes[found[1]] if found else None
    if isinstance(size, AdapterSize):
        return size
    shape = get_shape(model_name)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + query) + 2 * (shape.hidden + key)
    mlp = 3 * (shape.hidden + shape.intermediate)
    return AdapterSize(shape.hidden, attention * shape.layers, mlp * shape.layers, shape.hidden + shape.vocab)


def get_full_finetune_param_count(model_name: str) -> int:
    """Parameters of the embedding, attention, MLP and output matrices (norms are left out)."""
    shape = get_shape(model_name)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    per_layer = shape.hidden * (2 * query + 2 * key) + 3 * shape.hidden * shape.intermediate
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return per_layer * shape.layers + embeddings

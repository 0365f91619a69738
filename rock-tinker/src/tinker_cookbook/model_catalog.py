"""Known models as one table: family, size, renderers, shape. ``model_info`` and ``hyperparam_utils`` read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense transformer; ``tied``: the output layer is the embedding."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False


@dataclass(frozen=True)
class ModelFamily:
    """Models that share renderers. ``sizes`` maps the size in a name to its shape (None: read the model's config).

    ``name`` is the pattern of a model name with ``{size}``; ``renderers`` begins with the recommended one.
    ``lr_exponent``: power of (2000 / hidden size) in the learning rate rule; None where it was never calibrated.
    """

    name: str
    organization: str
    version: str
    sizes: dict[str, Shape | None]
    renderers: tuple[str, ...]
    is_chat: bool = True
    is_vl: bool = False
    lr_exponent: float | None = None


_QWEN_EXPONENT, _LLAMA_EXPONENT = 0.0775, 0.781
_THINK = ("qwen3", "qwen3_disable_thinking")
_Q35 = ("qwen3_5", "qwen3_5_disable_thinking")
_BASE = ("role_colon",)

_QWEN3: dict[str, Shape | None] = {
    "0.6B": Shape(1024, 28, 16, 8, 128, 3072, 151936, True),
    "1.7B": Shape(2048, 28, 16, 8, 128, 6144, 151936, True),
    "4B": Shape(2560, 36, 32, 8, 128, 9728, 151936, True),
    "8B": Shape(4096, 36, 32, 8, 128, 12288, 151936),
    "14B": Shape(5120, 40, 40, 8, 128, 17408, 151936),
    "32B": Shape(5120, 64, 64, 8, 128, 25600, 151936),
}
_LLAMA: dict[str, Shape | None] = {
    "1B": Shape(2048, 16, 32, 8, 64, 8192, 128256, True),
    "3B": Shape(3072, 28, 24, 8, 128, 8192, 128256, True),
    "8B": Shape(4096, 32, 32, 8, 128, 14336, 128256),
    "70B": Shape(8192, 80, 64, 8, 128, 28672, 128256),
}
_SMOLLM2: dict[str, Shape | None] = {
    "135M": Shape(576, 30, 9, 3, 64, 1536, 49152, True),
    "360M": Shape(960, 32, 15, 5, 64, 2560, 49152, True),
    "1.7B": Shape(2048, 24, 32, 32, 64, 8192, 49152, True),
}
_SPARSE_QWEN3: dict[str, Shape | None] = {"30B-A3B": None, "235B-A22B": None}


def _pick(table: dict[str, Shape | None], *sizes: str) -> dict[str, Shape | None]:
    return {size: table[size] for size in sizes}


def _sizes(*names: str) -> dict[str, Shape | None]:
    return dict.fromkeys(names)


CATALOG: tuple[ModelFamily, ...] = (
    ModelFamily(
        "meta-llama/Llama-3.2-{size}",
        "meta-llama",
        "3.2",
        _pick(_LLAMA, "1B", "3B"),
        _BASE,
        False,
        lr_exponent=_LLAMA_EXPONENT,
    ),
    ModelFamily(
        "meta-llama/Llama-3.2-{size}-Instruct",
        "meta-llama",
        "3.2",
        _pick(_LLAMA, "1B", "3B"),
        ("llama3",),
        lr_exponent=_LLAMA_EXPONENT,
    ),
    ModelFamily(
        "meta-llama/Llama-3.1-{size}",
        "meta-llama",
        "3.1",
        _pick(_LLAMA, "8B", "70B"),
        _BASE,
        False,
        lr_exponent=_LLAMA_EXPONENT,
    ),
    ModelFamily(
        "meta-llama/Llama-3.1-{size}-Instruct",
        "meta-llama",
        "3.1",
        _pick(_LLAMA, "8B", "70B"),
        ("llama3",),
        lr_exponent=_LLAMA_EXPONENT,
    ),
    ModelFamily(
        "meta-llama/Llama-3.3-{size}-Instruct",
        "meta-llama",
        "3.3",
        _pick(_LLAMA, "70B"),
        ("llama3",),
        lr_exponent=_LLAMA_EXPONENT,
    ),
    ModelFamily("Qwen/Qwen3-{size}", "Qwen", "3", {**_QWEN3, **_SPARSE_QWEN3}, _THINK, lr_exponent=_QWEN_EXPONENT),
    ModelFamily(
        "Qwen/Qwen3-{size}-Base", "Qwen", "3", {**_QWEN3, **_SPARSE_QWEN3}, _BASE, False, lr_exponent=_QWEN_EXPONENT
    ),
    ModelFamily(
        "Qwen/Qwen3-{size}-Instruct-2507",
        "Qwen",
        "3",
        {**_pick(_QWEN3, "4B"), **_SPARSE_QWEN3},
        ("qwen3_instruct",),
        lr_exponent=_QWEN_EXPONENT,
    ),
    ModelFamily(
        "Qwen/Qwen3-{size}-Thinking-2507",
        "Qwen",
        "3",
        {**_pick(_QWEN3, "4B"), **_SPARSE_QWEN3},
        ("qwen3",),
        lr_exponent=_QWEN_EXPONENT,
    ),
    ModelFamily(
        "Qwen/Qwen3-VL-{size}-Instruct",
        "Qwen",
        "3",
        _sizes("4B", "8B", "32B", "30B-A3B", "235B-A22B"),
        ("qwen3_vl_instruct",),
        is_vl=True,
        lr_exponent=_QWEN_EXPONENT,
    ),
    ModelFamily(
        "Qwen/Qwen3.5-{size}-Base",
        "Qwen",
        "3.5",
        _sizes("0.8B", "2B", "4B", "9B", "35B-A3B"),
        _BASE,
        False,
        is_vl=True,
        lr_exponent=_QWEN_EXPONENT,
    ),
    ModelFamily(
        "Qwen/Qwen3.5-{size}",
        "Qwen",
        "3.5",
        _sizes("0.8B", "2B", "4B", "9B", "27B", "35B-A3B", "122B-A10B", "397B-A17B"),
        _Q35,
        is_vl=True,
        lr_exponent=_QWEN_EXPONENT,
    ),
    ModelFamily(
        "Qwen/Qwen3.6-{size}", "Qwen", "3.6", _sizes("27B", "35B-A3B"), _Q35, is_vl=True, lr_exponent=_QWEN_EXPONENT
    ),
    ModelFamily(
        "deepseek-ai/DeepSeek-V{size}", "deepseek-ai", "3.1", _sizes("3.1"), ("deepseekv3", "deepseekv3_thinking")
    ),
    ModelFamily("deepseek-ai/DeepSeek-V{size}-Base", "deepseek-ai", "3.1", _sizes("3.1"), _BASE, False),
    ModelFamily(
        "openai/gpt-oss-{size}",
        "openai",
        "oss",
        _sizes("20b", "120b"),
        ("gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning"),
    ),
    ModelFamily("moonshotai/Kimi-K2-{size}", "moonshotai", "K2", _sizes("Thinking", "Instruct-0905"), ("kimi_k2",)),
    ModelFamily(
        "moonshotai/Kimi-K{size}",
        "moonshotai",
        "K2.5",
        _sizes("2.5"),
        ("kimi_k25", "kimi_k25_disable_thinking"),
        is_vl=True,
    ),
    ModelFamily(
        "moonshotai/Kimi-K{size}",
        "moonshotai",
        "K2.6",
        _sizes("2.6"),
        ("kimi_k26", "kimi_k26_disable_thinking"),
        is_vl=True,
    ),
    ModelFamily(
        "nvidia/NVIDIA-Nemotron-3-Nano-{size}-BF16",
        "nvidia",
        "3",
        _sizes("30B-A3B"),
        ("nemotron3", "nemotron3_disable_thinking"),
    ),
    ModelFamily(
        "HuggingFaceTB/SmolLM2-{size}-Instruct",
        "HuggingFaceTB",
        "2",
        _SMOLLM2,
        ("qwen3_instruct", "chat_template"),
        lr_exponent=_LLAMA_EXPONENT,
    ),
    ModelFamily(
        "HuggingFaceTB/SmolLM2-{size}", "HuggingFaceTB", "2", _SMOLLM2, _BASE, False, lr_exponent=_LLAMA_EXPONENT
    ),
)


def base_name(model_name: str) -> str:
    """Name without a ``:suffix`` and without surrounding folders of a local path (last two parts)."""
    name = model_name.split(":")[0].rstrip("/")
    return "/".join(name.split("/")[-2:])


def find(model_name: str) -> tuple[ModelFamily, str] | None:
    """(family, size) of a model. Folders are recognised by their last one or two path parts."""
    name = base_name(model_name)
    for family in CATALOG:
        for size in family.sizes:
            full = family.name.format(size=size)
            if name == full or name.split("/")[-1] == full.split("/")[-1]:
                return family, size
    return None


def known_names() -> list[str]:
    """All model names of the table."""
    return [family.name.format(size=size) for family in CATALOG for size in family.sizes]

"""Known models as one table: family, size, renderers, shape. ``model_info`` and ``hyperparam_utils`` read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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
class AdapterSize:
    """Hidden size of a model with experts or other layers than a dense transformer's, and the parameters that one unit of
    LoRA rank adds to its attention, to its MLPs with all experts, and to its output layer."""

    hidden: int
    attention: int
    mlp: int
    unembed: int


Size: TypeAlias = Shape | AdapterSize | None


@dataclass(frozen=True)
class ModelFamily:
    """Models that share renderers. ``sizes`` maps the size in a name to its shape (None: read the model's config).

    ``name`` is the pattern of a model name with ``{size}``; ``renderers`` begins with the recommended one. ``size_str``:
    the size in words where the name does not say it. ``lr_exponent``: power of (2000 / hidden size) in the learning rate
    rule; None where it was never calibrated.
    """

    name: str
    organization: str
    version: str
    sizes: dict[str, Size]
    renderers: tuple[str, ...]
    is_chat: bool = True
    is_vl: bool = False
    is_audio_in: bool = False
    size_str: str | None = None
    lr_exponent: float | None = None


_QWEN_EXPONENT, _LLAMA_EXPONENT = 0.0775, 0.781
_BASE = ("role_colon",)
_THINK = ("qwen3", "qwen3_disable_thinking")
_Q35 = ("qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking")
_Q38 = ("qwen3_8_xhigh_reasoning", "qwen3_8_disable_thinking", "qwen3_8_medium_reasoning", "qwen3_8_low_reasoning")
_DEEPSEEK41 = tuple(
    f"deepseekv4_1{mode}"
    for mode in ("", "_low_reasoning", "_max_reasoning", "_disable_thinking", "_preserve_thinking")
)
_KIMI31 = tuple(
    f"kimi_k31_pro_{mode}"
    for mode in ("max_reasoning", "high_reasoning", "low_reasoning", "disable_thinking", "no_reasoning_effort")
)
_NEMOTRON = ("nemotron3", "nemotron3_disable_thinking", "nemotron3_preserve_thinking")
_LIGHTNING = ("nemotron3_ultra", "nemotron3_ultra_disable_thinking", "nemotron3_ultra_preserve_thinking")
_ULTRA = (*_LIGHTNING[:2], "nemotron3_ultra_medium_thinking", _LIGHTNING[2])
_GLM = ("glm5_3_max_reasoning", "glm5_3_low_reasoning", "glm5_3_high_reasoning")

_QWEN3: dict[str, Size] = {
    "0.6B": Shape(1024, 28, 16, 8, 128, 3072, 151936, True),
    "1.7B": Shape(2048, 28, 16, 8, 128, 6144, 151936, True),
    "4B": Shape(2560, 36, 32, 8, 128, 9728, 151936, True),
    "8B": Shape(4096, 36, 32, 8, 128, 12288, 151936),
    "14B": Shape(5120, 40, 40, 8, 128, 17408, 151936),
    "32B": Shape(5120, 64, 64, 8, 128, 25600, 151936),
    "30B-A3B": AdapterSize(2048, 835584, 14450688, 153984),
    "235B-A22B": AdapterSize(4096, 3176448, 56598528, 156032),
}
_QWEN35: dict[str, Size] = {
    "0.8B": None,
    "2B": None,
    "4B": AdapterSize(2560, 897024, 1130496, 250880),
    "9B": AdapterSize(4096, 1130496, 1572864, 252416),
    "27B": AdapterSize(5120, 2965504, 4325376, 253440),
    "35B-A3B": AdapterSize(2048, 1013760, 16281600, 250368),
    "122B-A10B": None,
    "397B-A17B": AdapterSize(4096, 2841600, 96030720, 252416),
}
_LLAMA: dict[str, Size] = {
    "1B": Shape(2048, 16, 32, 8, 64, 8192, 128256, True),
    "3B": Shape(3072, 28, 24, 8, 128, 8192, 128256, True),
    "8B": Shape(4096, 32, 32, 8, 128, 14336, 128256),
    "70B": Shape(8192, 80, 64, 8, 128, 28672, 128256),
}
_SMOLLM2: dict[str, Size] = {
    "135M": Shape(576, 30, 9, 3, 64, 1536, 49152, True),
    "360M": Shape(960, 32, 15, 5, 64, 2560, 49152, True),
    "1.7B": Shape(2048, 24, 32, 32, 64, 8192, 49152, True),
}


def _pick(table: dict[str, Size], *sizes: str) -> dict[str, Size]:
    return {size: table[size] for size in sizes}


def _llama(version: str, chat: bool, *sizes: str) -> ModelFamily:
    name = f"meta-llama/Llama-{version}-{{size}}" + ("-Instruct" if chat else "")
    renderers = ("llama3",) if chat else _BASE
    return ModelFamily(name, "meta-llama", version, _pick(_LLAMA, *sizes), renderers, chat, lr_exponent=_LLAMA_EXPONENT)


def _qwen(
    name: str, version: str, sizes: dict[str, Size], renderers: tuple[str, ...], vision: bool = False
) -> ModelFamily:
    return ModelFamily(
        f"Qwen/{name}", "Qwen", version, sizes, renderers, renderers != _BASE, vision, lr_exponent=_QWEN_EXPONENT
    )


def _one(
    name: str, version: str, size: str, adapter: AdapterSize, renderers: tuple[str, ...], vision: bool = False
) -> ModelFamily:
    """A model whose name does not tell its size."""
    stem, _, last = name.rpartition("-")
    return ModelFamily(
        f"{stem}-{{size}}",
        name.split("/")[0],
        version,
        {last: adapter},
        renderers,
        renderers != _BASE,
        vision,
        size_str=size,
    )


_DEEPSEEK_V3 = AdapterSize(7168, 2440000, 94307328, 136448)
_DEEPSEEK_V4 = AdapterSize(5120, 1013760, 107673600, 134400)
_KIMI_K2 = AdapterSize(7168, 1940288, 144583680, 171008)
_NANO, _SUPER = AdapterSize(2688, 584832, 11346176, 133760), AdapterSize(4096, 1675264, 111349760, 135168)
_OSS = ("gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning")
_TML = ("tml_v0",)
_NVIDIA = "nvidia/NVIDIA-Nemotron"

CATALOG: tuple[ModelFamily, ...] = (
    _llama("3.2", False, "1B", "3B"),
    _llama("3.2", True, "1B", "3B"),
    _llama("3.1", False, "8B", "70B"),
    _llama("3.1", True, "8B", "70B"),
    _llama("3.3", True, "70B"),
    _qwen("Qwen3-{size}", "3", _QWEN3, _THINK),
    _qwen("Qwen3-{size}-Base", "3", _QWEN3, _BASE),
    _qwen("Qwen3-{size}-Instruct-2507", "3", _pick(_QWEN3, "4B", "30B-A3B", "235B-A22B"), ("qwen3_instruct",)),
    _qwen("Qwen3-{size}-Thinking-2507", "3", _pick(_QWEN3, "4B", "30B-A3B", "235B-A22B"), ("qwen3",)),
    _qwen(
        "Qwen3-VL-{size}-Instruct",
        "3",
        _pick(_QWEN3, "4B", "8B", "32B", "30B-A3B", "235B-A22B"),
        ("qwen3_vl_instruct",),
        True,
    ),
    _qwen("Qwen3.5-{size}-Base", "3.5", _pick(_QWEN35, "0.8B", "2B", "4B", "9B", "35B-A3B"), _BASE, True),
    _qwen("Qwen3.5-{size}", "3.5", _QWEN35, _Q35, True),
    _qwen("Qwen3.6-{size}", "3.6", _pick(_QWEN35, "27B", "35B-A3B"), _Q35, True),
    _qwen("Qwen3.8-{size}", "3.8", _pick(_QWEN35, "27B"), _Q38, True),
    _one("deepseek-ai/DeepSeek-V3.1", "3", "671B-A37B", _DEEPSEEK_V3, ("deepseekv3", "deepseekv3_thinking")),
    _one("deepseek-ai/DeepSeek-V3.1-Base", "3", "671B-A37B", _DEEPSEEK_V3, _BASE),
    _one("deepseek-ai/DeepSeek-V4.1-Flash", "4.1", "552B-A16B", _DEEPSEEK_V4, _DEEPSEEK41),
    _one("deepseek-ai/DeepSeek-V4.1-Flash-1017", "4.1", "552B-A16B", _DEEPSEEK_V4, _DEEPSEEK41),
    _one("openai/gpt-oss-20b", "1", "21B-A3.6B", AdapterSize(2880, 497664, 6842880, 203968), _OSS),
    _one("openai/gpt-oss-120b", "1", "117B-A5.1B", AdapterSize(2880, 746496, 40124160, 203968), _OSS),
    _one("moonshotai/Kimi-K2-Thinking", "K2", "1T-A32B", _KIMI_K2, ("kimi_k2",)),
    _one("moonshotai/Kimi-K2-Instruct-0905", "K2", "1T-A32B", _KIMI_K2, ("kimi_k2",)),
    _one("moonshotai/Kimi-K2.5", "K2.5", "1T-A32B", _KIMI_K2, ("kimi_k25", "kimi_k25_disable_thinking"), True),
    _one(
        "moonshotai/Kimi-K2.6",
        "K2.6",
        "1T-A32B",
        _KIMI_K2,
        ("kimi_k26", "kimi_k26_disable_thinking", "kimi_k26_preserve_thinking"),
        True,
    ),
    _one(
        "moonshotai/Kimi-K3.1-Pro",
        "K3.1",
        "2.8T-A104B",
        AdapterSize(7168, 8040960, 766457856, 171008),
        _KIMI31,
        True,
    ),
    _one(f"{_NVIDIA}-3-Nano-30B-A3B-BF16", "3", "30B-A3B", _NANO, _NEMOTRON),
    _one(f"{_NVIDIA}-3-Super-120B-A12B-BF16", "3", "120B-A12B", _SUPER, (*_NEMOTRON, "nemotron3_low_thinking")),
    _one(
        f"{_NVIDIA}-3-Ultra-550B-A55B-BF16",
        "3",
        "550B-A55B",
        AdapterSize(8192, 4134912, 254529536, 139264),
        _ULTRA,
    ),
    _one(f"{_NVIDIA}-3.5-Lightning-30B-A3B-BF16", "3.5", "30B-A3B", _NANO, _LIGHTNING),
    _one(f"{_NVIDIA}-3.5-Super-VL-120B-A12B-BF16", "3.5", "120B-A12B", _SUPER, _ULTRA, True),
    _one("zai-org/GLM-5.3", "5.3", "744B-A40B", AdapterSize(6144, 2920320, 121356288, 161024), _GLM),
    _one("zai-org/GLM-5.3-Flash", "5.3", "320B-A18B", AdapterSize(4096, 2009088, 75755520, 158976), _GLM),
    ModelFamily(
        "thinkingmachines/{size}",
        "thinkingmachines",
        "1",
        {"Inkling": AdapterSize(6144, 3424256, 154705920, 207168)},
        _TML,
        is_vl=True,
        is_audio_in=True,
        size_str="975B-A41B",
    ),
    ModelFamily(
        "thinkingmachines/Inkling-{size}",
        "thinkingmachines",
        "1",
        {"Small": AdapterSize(4096, 1311744, 64503808, 205120)},
        _TML,
        is_vl=True,
        is_audio_in=True,
        size_str="276B-A12B",
    ),
    _one(
        "thinkingmachines/Inkling-2-Small",
        "2",
        "594B-A17B",
        AdapterSize(4608, 2347008, 128065536, 205632),
        _TML,
        True,
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

"""Renderers by class: each one is the table's renderer of one name, for code that names a class instead."""

from __future__ import annotations

from typing import Any, ClassVar

from tinker_cookbook.renderers.families import FAMILIES, Family, with_history
from tinker_cookbook.renderers.template import TemplateRenderer
from tinker_cookbook.tokenizer_utils import Tokenizer


class NamedRenderer(TemplateRenderer):
    """The family ``renderer_name`` of the table.

    ``strip_thinking_from_history``: whether earlier turns lose their reasoning (None: what the family does).
    """

    renderer_name: ClassVar[str]

    def __init__(
        self,
        tokenizer: Tokenizer,
        image_processor: Any | None = None,
        *,
        strip_thinking_from_history: bool | None = None,
        family: Family | None = None,
    ) -> None:
        strips = strip_thinking_from_history
        named = FAMILIES[self.renderer_name] if strips is None else with_history(self.renderer_name, not strips)
        super().__init__(tokenizer, family or named, image_processor)


class DeepSeekV3DisableThinkingRenderer(NamedRenderer):
    """DeepSeek V3.1 without reasoning."""

    renderer_name = "deepseekv3"


class DeepSeekV3ThinkingRenderer(NamedRenderer):
    """DeepSeek V3.1 with reasoning."""

    renderer_name = "deepseekv3_thinking"


class DeepSeekV4_1Renderer(NamedRenderer):
    """DeepSeek V4.1."""

    renderer_name = "deepseekv4_1"


class DeepSeekV4_1LowReasoningRenderer(NamedRenderer):
    """DeepSeek V4.1 with little reasoning."""

    renderer_name = "deepseekv4_1_low_reasoning"


class DeepSeekV4_1MaxReasoningRenderer(NamedRenderer):
    """DeepSeek V4.1 with much reasoning."""

    renderer_name = "deepseekv4_1_max_reasoning"


class DeepSeekV4_1DisableThinkingRenderer(NamedRenderer):
    """DeepSeek V4.1 without reasoning."""

    renderer_name = "deepseekv4_1_disable_thinking"


class Glm5_3Renderer(NamedRenderer):
    """GLM 5.3."""

    renderer_name = "glm5_3_max_reasoning"


class Glm5_3HighReasoningRenderer(NamedRenderer):
    """GLM 5.3 with effort high."""

    renderer_name = "glm5_3_high_reasoning"


class Glm5_3LowReasoningRenderer(NamedRenderer):
    """GLM 5.3 with effort low."""

    renderer_name = "glm5_3_low_reasoning"


class KimiK2Renderer(NamedRenderer):
    """Kimi K2."""

    renderer_name = "kimi_k2"


class KimiK25Renderer(NamedRenderer):
    """Kimi K2.5 and K2.6."""

    renderer_name = "kimi_k25"


class KimiK25DisableThinkingRenderer(NamedRenderer):
    """Kimi K2.5 and K2.6 without reasoning."""

    renderer_name = "kimi_k25_disable_thinking"


class KimiK26PreserveThinkingRenderer(NamedRenderer):
    """Kimi K2.6 with the reasoning of earlier turns."""

    renderer_name = "kimi_k26_preserve_thinking"


class Llama3Renderer(NamedRenderer):
    """Llama 3."""

    renderer_name = "llama3"


class Nemotron3Renderer(NamedRenderer):
    """Nemotron 3."""

    renderer_name = "nemotron3"


class Nemotron3DisableThinkingRenderer(NamedRenderer):
    """Nemotron 3 without reasoning."""

    renderer_name = "nemotron3_disable_thinking"


class Nemotron3LowThinkingRenderer(NamedRenderer):
    """Nemotron 3 with effort low."""

    renderer_name = "nemotron3_low_thinking"


class Nemotron3PreserveThinkingRenderer(NamedRenderer):
    """Nemotron 3 with the reasoning of earlier turns."""

    renderer_name = "nemotron3_preserve_thinking"


class Nemotron3UltraRenderer(NamedRenderer):
    """Nemotron 3 Ultra."""

    renderer_name = "nemotron3_ultra"


class Nemotron3UltraDisableThinkingRenderer(NamedRenderer):
    """Nemotron 3 Ultra without reasoning."""

    renderer_name = "nemotron3_ultra_disable_thinking"


class Nemotron3UltraMediumThinkingRenderer(NamedRenderer):
    """Nemotron 3 Ultra with effort efficient."""

    renderer_name = "nemotron3_ultra_medium_thinking"


class Nemotron3UltraPreserveThinkingRenderer(NamedRenderer):
    """Nemotron 3 Ultra with the reasoning of earlier turns."""

    renderer_name = "nemotron3_ultra_preserve_thinking"


class Qwen3Renderer(NamedRenderer):
    """Qwen3 with reasoning."""

    renderer_name = "qwen3"


class Qwen3DisableThinkingRenderer(NamedRenderer):
    """Qwen3 without reasoning."""

    renderer_name = "qwen3_disable_thinking"


class Qwen3InstructRenderer(NamedRenderer):
    """Qwen3 Instruct."""

    renderer_name = "qwen3_instruct"


class Qwen3VLRenderer(NamedRenderer):
    """Qwen3-VL with reasoning."""

    renderer_name = "qwen3_vl"


class Qwen3VLInstructRenderer(NamedRenderer):
    """Qwen3-VL Instruct."""

    renderer_name = "qwen3_vl_instruct"


class Qwen3_5Renderer(NamedRenderer):
    """Qwen3.5."""

    renderer_name = "qwen3_5"


class Qwen3_5DisableThinkingRenderer(NamedRenderer):
    """Qwen3.5 without reasoning."""

    renderer_name = "qwen3_5_disable_thinking"


class Qwen3_8Renderer(NamedRenderer):
    """Qwen3.8."""

    renderer_name = "qwen3_8_xhigh_reasoning"


class Qwen3_8DisableThinkingRenderer(NamedRenderer):
    """Qwen3.8 without reasoning."""

    renderer_name = "qwen3_8_disable_thinking"


_CLASSES = {found.renderer_name: found for found in NamedRenderer.__subclasses__()}
# Names that share the class of another one.
_SHARED = {
    "deepseekv3_disable_thinking": "deepseekv3",
    "deepseekv4_1_preserve_thinking": "deepseekv4_1",
    "kimi_k26": "kimi_k25",
    "kimi_k26_disable_thinking": "kimi_k25_disable_thinking",
    "qwen3_5_preserve_thinking": "qwen3_5",
    "qwen3_8_medium_reasoning": "qwen3_8_xhigh_reasoning",
    "qwen3_8_low_reasoning": "qwen3_8_xhigh_reasoning",
}


def named_renderer(name: str, tokenizer: Tokenizer, image_processor: Any | None) -> NamedRenderer:
    """The renderer of a name of the table, as an instance of the class that goes by it."""
    return _CLASSES[_SHARED.get(name, name)](tokenizer, image_processor, family=FAMILIES[name])

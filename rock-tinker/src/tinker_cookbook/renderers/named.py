"""Renderers by class: each one is the table's renderer of one name, for code that names a class instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.families import FAMILIES, QWEN3_8_EFFORTS, Family, with_history
from tinker_cookbook.renderers.messages import Message
from tinker_cookbook.renderers.template import TemplateRenderer
from tinker_cookbook.renderers.tool_markers import KIMI_SYSTEM
from tinker_cookbook.tokenizer_utils import Tokenizer


class NamedRenderer(TemplateRenderer):
    """The family ``renderer_name`` of the table.

    ``strip_thinking_from_history``: whether earlier turns lose their reasoning; with the default they are as the family
    has them.
    """

    renderer_name: ClassVar[str]

    def __init__(
        self, tokenizer: Tokenizer, strip_thinking_from_history: bool = True, *, family: Family | None = None
    ) -> None:
        self._begin(tokenizer, None, None if strip_thinking_from_history else True, family)

    def _begin(
        self, tokenizer: Tokenizer, image_processor: Any | None, keeps_reasoning: bool | None, family: Family | None
    ) -> None:
        name = self.renderer_name
        named = FAMILIES[name] if keeps_reasoning is None else with_history(name, keeps_reasoning)
        TemplateRenderer.__init__(self, tokenizer, family or named, image_processor)

    @property
    def strip_thinking_from_history(self) -> bool:
        """Whether earlier turns lose their reasoning."""
        return self.family.reasoning is not None and self.family.reasoning.keep != "always"


class VisionRenderer(NamedRenderer):
    """A family that draws images as well."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        image_processor: Any | None = None,
        strip_thinking_from_history: bool = True,
        merge_text_chunks: bool = True,
        *,
        family: Family | None = None,
    ) -> None:
        self.merge_text_chunks = merge_text_chunks
        self._begin(tokenizer, image_processor, None if strip_thinking_from_history else True, family)


class DeepSeekV3Renderer(NamedRenderer):
    """DeepSeek V3.1. ``system_role_as_user``: system messages after the first message are drawn as the user's."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        system_role_as_user: bool = False,
        strip_thinking_from_history: bool = True,
        *,
        family: Family | None = None,
    ) -> None:
        self.system_role_as_user = system_role_as_user
        self._begin(tokenizer, None, None if strip_thinking_from_history else True, family)

    def _prepare(self, messages: Sequence[Message], generating: bool = False) -> list[Message]:
        if self.system_role_as_user:
            messages = [self._as_user(message) if index else message for index, message in enumerate(messages)]
        return super()._prepare(messages, generating)

    @staticmethod
    def _as_user(message: Message) -> Message:
        return {**message, "role": "user"} if message["role"] == "system" else message


class DeepSeekV3DisableThinkingRenderer(DeepSeekV3Renderer):
    """DeepSeek V3.1 without reasoning."""

    renderer_name = "deepseekv3"


class DeepSeekV3ThinkingRenderer(DeepSeekV3Renderer):
    """DeepSeek V3.1 with reasoning."""

    renderer_name = "deepseekv3_thinking"


class DeepSeekV4_1Renderer(NamedRenderer):
    """DeepSeek V4.1."""

    renderer_name = "deepseekv4_1"
    reasoning_effort: ClassVar[int | None] = 75


class DeepSeekV4_1LowReasoningRenderer(DeepSeekV4_1Renderer):
    """DeepSeek V4.1 with little reasoning."""

    renderer_name = "deepseekv4_1_low_reasoning"
    reasoning_effort = 50


class DeepSeekV4_1MaxReasoningRenderer(DeepSeekV4_1Renderer):
    """DeepSeek V4.1 with much reasoning."""

    renderer_name = "deepseekv4_1_max_reasoning"
    reasoning_effort = 100


class DeepSeekV4_1DisableThinkingRenderer(DeepSeekV4_1Renderer):
    """DeepSeek V4.1 without reasoning."""

    renderer_name = "deepseekv4_1_disable_thinking"
    reasoning_effort = None


class Glm5_3Renderer(NamedRenderer):
    """GLM 5.3."""

    renderer_name = "glm5_3_max_reasoning"
    reasoning_effort: ClassVar[str] = "Max"

    def __init__(
        self, tokenizer: Tokenizer, strip_thinking_from_history: bool = False, *, family: Family | None = None
    ) -> None:
        self._begin(tokenizer, None, False if strip_thinking_from_history else None, family)


class Glm5_3HighReasoningRenderer(Glm5_3Renderer):
    """GLM 5.3 with effort high."""

    renderer_name = "glm5_3_high_reasoning"
    reasoning_effort = "High"


class Glm5_3LowReasoningRenderer(Glm5_3Renderer):
    """GLM 5.3 with effort low."""

    renderer_name = "glm5_3_low_reasoning"
    reasoning_effort = "Low"


class KimiK2Renderer(NamedRenderer):
    """Kimi K2."""

    renderer_name = "kimi_k2"
    DEFAULT_SYSTEM_PROMPT: ClassVar[str] = KIMI_SYSTEM


class KimiK25Renderer(VisionRenderer, KimiK2Renderer):
    """Kimi K2.5 and K2.6."""

    renderer_name = "kimi_k25"


class KimiK25DisableThinkingRenderer(KimiK25Renderer):
    """Kimi K2.5 and K2.6 without reasoning."""

    renderer_name = "kimi_k25_disable_thinking"
    disables_thinking = True


class KimiK26PreserveThinkingRenderer(KimiK25Renderer):
    """Kimi K2.6 with the reasoning of earlier turns."""

    renderer_name = "kimi_k26_preserve_thinking"


class Llama3Renderer(NamedRenderer):
    """Llama 3."""

    renderer_name = "llama3"


class Qwen3Renderer(NamedRenderer):
    """Qwen3 with reasoning."""

    renderer_name = "qwen3"


class Qwen3DisableThinkingRenderer(Qwen3Renderer):
    """Qwen3 without reasoning."""

    renderer_name = "qwen3_disable_thinking"
    disables_thinking = True


class Qwen3InstructRenderer(Qwen3Renderer):
    """Qwen3 Instruct."""

    renderer_name = "qwen3_instruct"


class Qwen3VLRenderer(VisionRenderer, Qwen3Renderer):
    """Qwen3-VL with reasoning."""

    renderer_name = "qwen3_vl"


class Qwen3VLInstructRenderer(Qwen3VLRenderer):
    """Qwen3-VL Instruct."""

    renderer_name = "qwen3_vl_instruct"


class Qwen3_5Renderer(Qwen3VLRenderer):
    """Qwen3.5."""

    renderer_name = "qwen3_5"


class Qwen3_5DisableThinkingRenderer(Qwen3_5Renderer):
    """Qwen3.5 without reasoning."""

    renderer_name = "qwen3_5_disable_thinking"
    disables_thinking = True


class Qwen3_8Renderer(Qwen3_5Renderer):
    """Qwen3.8."""

    renderer_name = "qwen3_8_xhigh_reasoning"

    def __init__(
        self,
        tokenizer: Tokenizer,
        image_processor: Any | None = None,
        strip_thinking_from_history: bool = False,
        merge_text_chunks: bool = True,
        reasoning_effort: str = "xhigh",
        *,
        family: Family | None = None,
    ) -> None:
        self.merge_text_chunks = merge_text_chunks
        if reasoning_effort not in QWEN3_8_EFFORTS:
            raise RendererError(f"reasoning_effort={reasoning_effort!r} is unknown; use {', '.join(QWEN3_8_EFFORTS)}")
        self._begin(tokenizer, image_processor, False if strip_thinking_from_history else None, family)
        if family is None and self.family.effort is not None and not self.disables_thinking:
            self.family = replace(self.family, effort=QWEN3_8_EFFORTS[reasoning_effort])


class Qwen3_8DisableThinkingRenderer(Qwen3_8Renderer):
    """Qwen3.8 without reasoning."""

    renderer_name = "qwen3_8_disable_thinking"
    disables_thinking = True


class Nemotron3Renderer(Qwen3_5Renderer):
    """Nemotron 3."""

    renderer_name = "nemotron3"


class Nemotron3DisableThinkingRenderer(Nemotron3Renderer):
    """Nemotron 3 without reasoning."""

    renderer_name = "nemotron3_disable_thinking"
    disables_thinking = True


class Nemotron3LowThinkingRenderer(Nemotron3Renderer):
    """Nemotron 3 with effort low."""

    renderer_name = "nemotron3_low_thinking"


class Nemotron3PreserveThinkingRenderer(Nemotron3Renderer):
    """Nemotron 3 with the reasoning of earlier turns."""

    renderer_name = "nemotron3_preserve_thinking"


class Nemotron3UltraRenderer(Nemotron3Renderer):
    """Nemotron 3 Ultra."""

    renderer_name = "nemotron3_ultra"


class Nemotron3UltraDisableThinkingRenderer(Nemotron3UltraRenderer, Nemotron3DisableThinkingRenderer):
    """Nemotron 3 Ultra without reasoning."""

    renderer_name = "nemotron3_ultra_disable_thinking"
    disables_thinking = True


class Nemotron3UltraMediumThinkingRenderer(Nemotron3UltraRenderer):
    """Nemotron 3 Ultra with effort efficient."""

    renderer_name = "nemotron3_ultra_medium_thinking"


class Nemotron3UltraPreserveThinkingRenderer(Nemotron3UltraRenderer):
    """Nemotron 3 Ultra with the reasoning of earlier turns."""

    renderer_name = "nemotron3_ultra_preserve_thinking"


def _below(cls: type[NamedRenderer]) -> Iterator[type[NamedRenderer]]:
    for found in cls.__subclasses__():
        yield found
        yield from _below(found)


_CLASSES = {found.renderer_name: found for found in _below(NamedRenderer) if "renderer_name" in vars(found)}
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
    found = _CLASSES[_SHARED.get(name, name)]
    if issubclass(found, VisionRenderer):
        return found(tokenizer, image_processor, family=FAMILIES[name])
    return found(tokenizer, family=FAMILIES[name])

"""Model families as data: how a chat looks. ``template.TemplateRenderer`` draws it; nothing else knows a family."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from tinker_cookbook.renderers.tool_formats import DeepSeekTools, JsonTools, KimiTools, ToolFormat, XmlTools


@dataclass(frozen=True)
class Reasoning:
    """Where and how a family writes the reasoning of the assistant.

    ``opening``/``closing`` stand around it; ``empty`` is the block without reasoning (None: opening + closing).
    ``current``: when a message after the last user message has a block: always, only when it is the last one or has
    reasoning, only when it has reasoning, or never (reasoning is dropped or refused).
    ``history``: messages before the last user message drop their reasoning, keep it, or have an empty block
    (``keep_or_empty``: an empty block where there is nothing to keep).
    ``bare`` stands where there is no block. ``prompt`` is what a generation prompt adds after the header.
    ``in_header``: opening (or the empty block) belongs to the header, which is never trained.
    """

    opening: str = "<think>\n"
    closing: str = "\n</think>\n\n"
    empty: str | None = None
    current: Literal["always", "last_or_given", "given", "never"] = "last_or_given"
    history: Literal["drop", "keep", "empty", "keep_or_empty"] = "drop"
    bare: str = ""
    prompt: str = ""
    in_header: bool = False

    @property
    def empty_block(self) -> str:
        """The block of a message without reasoning."""
        return self.opening + self.closing if self.empty is None else self.empty


@dataclass(frozen=True)
class Family:
    """How a chat looks. ``headers`` by role ("*" for any other, with ``{role}``); ``ends`` likewise.

    ``separator`` stands before every header but the first. ``stop``: markers that end an assistant message.
    ``extends``: history is rendered as it was sampled. ``default_system``: text used when there is no system message.
    ``refuses_reasoning``: turns with reasoning cannot be trained. ``vision``: markers around an image.
    """

    headers: dict[str, str]
    ends: dict[str, str]
    stop: tuple[str, ...]
    bos: str = ""
    separator: str = ""
    reasoning: Reasoning | None = None
    tools: ToolFormat | None = None
    extends: bool = False
    refuses_reasoning: bool = False
    default_system: str | None = None
    vision: tuple[str, str] | None = None
    notes: str = field(default="", compare=False)


LLAMA3 = Family(
    bos="<|begin_of_text|>",
    headers={"*": "<|start_header_id|>{role}<|end_header_id|>\n\n"},
    ends={"*": "<|eot_id|>"},
    stop=("<|eot_id|>",),
    extends=True,
)

QWEN3 = Family(
    headers={"*": "<|im_start|>{role}\n"},
    ends={"*": "<|im_end|>"},
    stop=("<|im_end|>",),
    separator="\n",
    reasoning=Reasoning(),
    tools=JsonTools(),
)
_NO_BLOCK = Reasoning(opening="<think>", closing="</think>", current="given")
_VISION = ("<|vision_start|>", "<|vision_end|>")
_QWEN3_INSTRUCT = replace(QWEN3, reasoning=_NO_BLOCK, extends=True)

QWEN3_5 = replace(
    QWEN3,
    reasoning=Reasoning(current="always", prompt="<think>\n", in_header=True),
    tools=XmlTools(),
    vision=_VISION,
)

DEEPSEEK_V3 = Family(
    bos="<｜begin▁of▁sentence｜>",
    headers={"system": "", "user": "<｜User｜>", "assistant": "<｜Assistant｜>", "*": ""},
    ends={"assistant": "<｜end▁of▁sentence｜>", "*": ""},
    stop=("<｜end▁of▁sentence｜>",),
    reasoning=Reasoning(
        opening="<think>", closing="</think>", current="never", bare="</think>", prompt="</think>", in_header=True
    ),
    tools=DeepSeekTools(),
    extends=True,
)
_DEEPSEEK_THINKING = Reasoning(
    opening="<think>", closing="</think>", current="always", bare="</think>", prompt="<think>"
)

_KIMI_REASONING = Reasoning(opening="<think>", closing="</think>", current="always", history="empty")
KIMI_K2 = Family(
    headers={
        "user": "<|im_user|>user<|im_middle|>",
        "assistant": "<|im_assistant|>assistant<|im_middle|>",
        "*": "<|im_system|>{role}<|im_middle|>",
    },
    ends={"*": "<|im_end|>"},
    stop=("<|im_end|>",),
    reasoning=_KIMI_REASONING,
    tools=KimiTools(),
    default_system="You are Kimi, an AI assistant created by Moonshot AI.",
)
_KIMI_K25 = replace(
    KIMI_K2,
    reasoning=replace(_KIMI_REASONING, prompt="<think>"),
    default_system=None,
    vision=("<|media_begin|>image<|media_content|>", "<|media_end|>"),
)

_NEMOTRON_REASONING = Reasoning(
    closing="\n</think>\n",
    empty="<think></think>",
    current="always",
    history="empty",
    prompt="<think>\n",
    in_header=True,
)
NEMOTRON3 = replace(QWEN3, reasoning=_NEMOTRON_REASONING, tools=XmlTools(), default_system="")


def _closed(family: Family, block: str, in_header: bool) -> Family:
    """The family with reasoning switched off: the generation prompt writes an empty block."""
    assert family.reasoning is not None
    reasoning = replace(family.reasoning, prompt=block, empty=block, in_header=in_header)
    return replace(family, reasoning=reasoning, refuses_reasoning=True)


def _keeps(family: Family) -> Family:
    """The family with the reasoning of earlier turns left in."""
    assert family.reasoning is not None
    history: Literal["keep", "keep_or_empty"] = "keep_or_empty" if family.reasoning.history == "empty" else "keep"
    return replace(family, reasoning=replace(family.reasoning, history=history))


_CLOSED_QWEN = "<think>\n\n</think>\n\n"

FAMILIES: dict[str, Family] = {
    "llama3": LLAMA3,
    "qwen3": QWEN3,
    "qwen3_disable_thinking": _closed(QWEN3, _CLOSED_QWEN, in_header=False),
    "qwen3_instruct": _QWEN3_INSTRUCT,
    "qwen3_vl": replace(QWEN3, vision=_VISION),
    "qwen3_vl_instruct": replace(_QWEN3_INSTRUCT, vision=_VISION),
    "qwen3_5": QWEN3_5,
    "qwen3_5_disable_thinking": _closed(QWEN3_5, _CLOSED_QWEN, in_header=True),
    "qwen3_5_preserve_thinking": _keeps(QWEN3_5),
    "deepseekv3": DEEPSEEK_V3,
    "deepseekv3_disable_thinking": DEEPSEEK_V3,
    "deepseekv3_thinking": replace(DEEPSEEK_V3, reasoning=_DEEPSEEK_THINKING, extends=False),
    "kimi_k2": KIMI_K2,
    "kimi_k25": _KIMI_K25,
    "kimi_k25_disable_thinking": _closed(_KIMI_K25, "<think></think>", in_header=False),
    "kimi_k26": _KIMI_K25,
    "kimi_k26_disable_thinking": _closed(_KIMI_K25, "<think></think>", in_header=False),
    "kimi_k26_preserve_thinking": _keeps(_KIMI_K25),
    "nemotron3": NEMOTRON3,
    "nemotron3_disable_thinking": _closed(NEMOTRON3, "<think></think>", in_header=True),
    "nemotron3_preserve_thinking": _keeps(NEMOTRON3),
}

"""Model families as data: how a chat looks. ``template.TemplateRenderer`` draws it; nothing else knows a family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tinker_cookbook.renderers.tool_formats import JsonTools, NemotronTools, ToolFormat, XmlTools
from tinker_cookbook.renderers.tool_markers import KIMI_SYSTEM, DeepSeekTools, DsmlTools, GlmTools, KimiTools

Block: TypeAlias = tuple[str, str]
"""What stands in (the header, the output) of a message."""

NOTHING: Block = ("", "")


@dataclass(frozen=True)
class Reasoning:
    """Where and how a family writes the reasoning of the assistant between ``opening`` and ``closing``.

    ``keep``: the messages whose reasoning is written: the last one, the last one and those with tool calls, those
    after the last user message, all, or none. ``first``: all reasoning stands joined before the text, in a block that
    is there even without reasoning; else each part stands where it is, and ``absent`` is written for a message
    without any: as last message, elsewhere in the current turn, and before the last user message.
    ``dropped`` is written in place of reasoning that is not kept (None: like ``absent``), with ``dropped_break``
    before text without tool calls. ``before_kept``: in the header of a message with kept reasoning that is not the
    last. ``opening_in_header``: the opening marker is never trained. ``in_strings``: text with an opening marker is
    reasoning. ``trim``: newlines around reasoning and before the text after it are not kept. ``needs_user``: no
    block in a conversation without user message. ``forgotten``: what is not kept was removed before. ``prompt`` is what a generation prompt adds after the header.
    """

    opening: str = "<think>\n"
    closing: str = "\n</think>\n\n"
    keep: Literal["last", "last_or_calls", "turn", "always", "never"] = "last"
    first: bool = False
    absent: tuple[Block, Block, Block] = (NOTHING, NOTHING, NOTHING)
    dropped: Block | None = None
    dropped_break: str = ""
    before_kept: str = ""
    opening_in_header: bool = False
    in_strings: bool = True
    trim: bool = False
    needs_user: bool = False
    forgotten: bool = False
    prompt: str = ""


@dataclass(frozen=True)
class Parsing:
    """How sampled text becomes a message.

    ``prefix``: what the prompt already said; it is put before text that closes a block of reasoning without having
    opened it. ``trim``: newlines or all white space around reasoning, and newlines after it, are dropped.
    ``reasons``: reasoning is split from text.
    """

    prefix: str = ""
    trim: Literal["nothing", "newlines", "space"] = "nothing"
    reasons: bool = True


@dataclass(frozen=True)
class Family:
    """How a chat looks. ``headers`` by role ("*" for any other, with ``{role}``; without it others are refused).

    ``ends``: text after a message, by role. ``separator`` stands before every header but the first.
    ``shared_ends``: markers by role that begin a message and end an assistant message before it.
    ``stop``: markers that end an assistant message. ``extends``: history is rendered as it was sampled.
    ``default_system``: text of the system message that is added when the first message is none.
    ``effort``: text before that of the system message, which is left out when both are empty.
    ``user_effort``: text at the end of the last user message. ``first_system``: header of a system message at the start.
    ``one_system``: system messages elsewhere are refused. ``joins_turns``: neighbouring messages of a role share one
    header. ``bare_after_results``: no header after a tool result. ``turns``: the current turn begins after the last
    user message, or after the last answer without tool calls. ``strip``: whose surrounding white space is dropped.
    ``refuses_reasoning``: turns with reasoning cannot be trained. ``vision``: markers around an image.
    """

    headers: dict[str, str]
    ends: dict[str, str]
    stop: tuple[str, ...]
    bos: str = ""
    separator: str = ""
    shared_ends: dict[str, str] | None = None
    reasoning: Reasoning | None = None
    parsing: Parsing = Parsing()
    tools: ToolFormat | None = None
    extends: bool = False
    refuses_reasoning: bool = False
    default_system: str | None = None
    effort: str | None = None
    user_effort: str = ""
    first_system: str | None = None
    one_system: bool = False
    joins_turns: str | None = None
    bare_after_results: bool = False
    turns: Literal["user", "answer"] = "user"
    strip: Literal["nothing", "strings", "everything", "assistant"] = "nothing"
    vision: tuple[str, str] | None = None


def _with(family: Family, reasoning: dict[str, Any] | None = None, **changes: Any) -> Family:
    """A variant of a family; ``reasoning`` holds changes of its reasoning."""
    if reasoning is not None:
        assert family.reasoning is not None
        changes["reasoning"] = replace(family.reasoning, **reasoning)
    return replace(family, **changes)


LLAMA3 = Family(
    bos="<|begin_of_text|>",
    headers={"*": "<|start_header_id|>{role}<|end_header_id|>\n\n"},
    ends={"*": "<|eot_id|>"},
    stop=("<|eot_id|>",),
    extends=True,
    parsing=Parsing(reasons=False),
)

_CLOSED = "<think>\n\n</think>\n\n"
QWEN3 = Family(
    headers={"*": "<|im_start|>{role}\n"},
    ends={"*": "<|im_end|>"},
    stop=("<|im_end|>",),
    separator="\n",
    parsing=Parsing(trim="newlines"),
    reasoning=Reasoning(trim=True, needs_user=True, absent=(("", _CLOSED), NOTHING, NOTHING)),
    tools=JsonTools(),
)
_VISION = ("<|vision_start|>", "<|vision_end|>")
_QWEN3_INSTRUCT = _with(
    QWEN3,
    extends=True,
    parsing=Parsing(),
    reasoning={"opening": "<think>", "closing": "</think>", "trim": False, "absent": (NOTHING,) * 3},
)
_QWEN3_VL = _with(_QWEN3_INSTRUCT, extends=False, vision=_VISION, tools=JsonTools(always_breaks=True))

_HEADER_BLOCK: Block = (_CLOSED, "")
_OPENED_BLOCK: Block = ("<think>\n", "\n</think>\n\n")
QWEN3_5 = _with(
    QWEN3,
    strip="everything",
    parsing=Parsing(prefix="<think>\n", trim="space"),
    tools=XmlTools(),
    vision=_VISION,
    reasoning={
        "trim": False,
        "needs_user": False,
        "absent": (_OPENED_BLOCK, _HEADER_BLOCK, NOTHING),
        "dropped": NOTHING,
        "prompt": "<think>\n",
    },
)
_QWEN3_5_CLOSED = _with(
    QWEN3_5, refuses_reasoning=True, reasoning={"absent": (_HEADER_BLOCK, _HEADER_BLOCK, NOTHING), "prompt": _CLOSED}
)
_QWEN3_8 = _with(
    QWEN3_5,
    effort="",
    reasoning={"keep": "always", "in_strings": False, "absent": (_OPENED_BLOCK, _HEADER_BLOCK, _HEADER_BLOCK)},
)
QWEN3_8_EFFORTS = {
    "xhigh": "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.",
    "medium": "",
    "low": "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
    "unnecessary elaboration.",
}

_AFTER_THINK: Block = ("</think>", "")
DEEPSEEK_V3 = Family(
    bos="<｜begin▁of▁sentence｜>",
    headers={"system": "", "user": "<｜User｜>", "assistant": "<｜Assistant｜>", "tool": "<｜tool▁output▁begin｜>"},
    ends={"assistant": "<｜end▁of▁sentence｜>", "*": ""},
    stop=("<｜end▁of▁sentence｜>",),
    reasoning=Reasoning(
        opening="<think>", closing="</think>", keep="never", absent=(_AFTER_THINK,) * 3, prompt="</think>"
    ),
    tools=DeepSeekTools(),
    extends=True,
    one_system=True,
    bare_after_results=True,
)
_DEEPSEEK_THINKING = _with(
    DEEPSEEK_V3,
    extends=False,
    parsing=Parsing(prefix="<think>"),
    reasoning={
        "keep": "last_or_calls",
        "absent": (("", "<think></think>"), _AFTER_THINK, _AFTER_THINK),
        "before_kept": "</think>",
        "prompt": "<think>",
    },
)


def _deepseek_v4(effort: int | None, **reasoning: Any) -> Family:
    text = f"Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    return Family(
        bos="<｜begin▁of▁sentence｜>",
        headers={"system": "<｜System｜>", "user": "<｜User｜>", "tool": "<｜User｜>", "assistant": "<｜Assistant｜>"},
        first_system=f"<｜System｜>{text}" if effort else None,
        default_system="" if effort else None,
        ends={"assistant": "<｜end▁of▁sentence｜>", "*": ""},
        stop=("<｜end▁of▁sentence｜>",),
        reasoning=Reasoning(
            **{
                "opening": "<think>",
                "closing": "</think>",
                "first": True,
                "keep": "turn",
                "opening_in_header": True,
                "dropped": _AFTER_THINK,
                "prompt": "<think>",
                **reasoning,
            }
        ),
        parsing=Parsing(prefix="<think>"),
        tools=DsmlTools(),
        joins_turns="\n\n",
    )


def _glm(effort: str) -> Family:
    return Family(
        bos=f"[gMASK]<sop><|system|>Reasoning Effort: {effort}",
        headers={
            "system": "<|system|>",
            "user": "<|user|>",
            "assistant": "<|assistant|>",
            "tool": "<|observation|>",
        },
        ends={"*": ""},
        shared_ends={"user": "<|user|>", "tool": "<|observation|>"},
        stop=("<|user|>", "<|observation|>", "<|endoftext|>"),
        reasoning=Reasoning(
            opening="<think>", closing="</think>", first=True, keep="always", opening_in_header=True, prompt="<think>"
        ),
        parsing=Parsing(prefix="<think>"),
        tools=GlmTools(),
        strip="assistant",
        extends=True,
    )


KIMI_K2 = Family(
    headers={
        "user": "<|im_user|>user<|im_middle|>",
        "assistant": "<|im_assistant|>assistant<|im_middle|>",
        "*": "<|im_system|>{role}<|im_middle|>",
    },
    ends={"*": "<|im_end|>"},
    stop=("<|im_end|>",),
    turns="answer",
    reasoning=Reasoning(opening="<think>", closing="</think>", first=True, keep="turn", forgotten=True),
    tools=KimiTools(),
    default_system=KIMI_SYSTEM,
)
_KIMI_K25 = _with(
    KIMI_K2,
    parsing=Parsing(prefix="<think>"),
    reasoning={"prompt": "<think>"},
    tools=KimiTools(typescript=True),
    vision=("<|media_begin|>image<|media_content|>", "<|media_end|>\n"),
)
_KIMI_K25_CLOSED = _with(_KIMI_K25, refuses_reasoning=True, reasoning={"prompt": "<think></think>"})

_EMPTY_BLOCK: Block = ("<think></think>", "")
NEMOTRON3 = _with(
    QWEN3,
    strip="strings",
    parsing=Parsing(prefix="<think>\n", trim="space"),
    tools=NemotronTools(),
    default_system="",
    reasoning={
        "closing": "\n</think>\n",
        "keep": "turn",
        "trim": False,
        "needs_user": False,
        "absent": (_EMPTY_BLOCK,) * 3,
        "dropped_break": "\n",
        "prompt": "<think>\n",
    },
)
_NEMOTRON3_ULTRA = _with(NEMOTRON3, reasoning={"closing": "</think>", "dropped_break": ""})
_ALWAYS = {"keep": "always"}
_EMPTY_PROMPT = {"prompt": "<think></think>"}

FAMILIES: dict[str, Family] = {
    "llama3": LLAMA3,
    "qwen3": QWEN3,
    "qwen3_disable_thinking": _with(QWEN3, refuses_reasoning=True, reasoning={"prompt": _CLOSED}),
    "qwen3_instruct": _QWEN3_INSTRUCT,
    "qwen3_vl": _with(_QWEN3_VL, parsing=Parsing(trim="newlines")),
    "qwen3_vl_instruct": _QWEN3_VL,
    "qwen3_5": QWEN3_5,
    "qwen3_5_disable_thinking": _QWEN3_5_CLOSED,
    "qwen3_5_preserve_thinking": _with(QWEN3_5, reasoning=_ALWAYS),
    "qwen3_8_xhigh_reasoning": _with(_QWEN3_8, effort=QWEN3_8_EFFORTS["xhigh"]),
    "qwen3_8_medium_reasoning": _QWEN3_8,
    "qwen3_8_low_reasoning": _with(_QWEN3_8, effort=QWEN3_8_EFFORTS["low"]),
    "qwen3_8_disable_thinking": _with(
        _QWEN3_8, refuses_reasoning=True, reasoning={"absent": (_HEADER_BLOCK,) * 3, "prompt": _CLOSED}
    ),
    "deepseekv3": DEEPSEEK_V3,
    "deepseekv3_disable_thinking": DEEPSEEK_V3,
    "deepseekv3_thinking": _DEEPSEEK_THINKING,
    "deepseekv4_1": _deepseek_v4(75),
    "deepseekv4_1_low_reasoning": _deepseek_v4(50),
    "deepseekv4_1_max_reasoning": _deepseek_v4(100),
    "deepseekv4_1_disable_thinking": _with(
        _deepseek_v4(None, keep="never", prompt="</think>"), extends=True, parsing=Parsing()
    ),
    "deepseekv4_1_preserve_thinking": _with(_deepseek_v4(75, keep="always"), extends=True),
    "glm5_3_max_reasoning": _glm("Max"),
    "glm5_3_high_reasoning": _glm("High"),
    "glm5_3_low_reasoning": _glm("Low"),
    "kimi_k2": KIMI_K2,
    "kimi_k25": _KIMI_K25,
    "kimi_k25_disable_thinking": _KIMI_K25_CLOSED,
    "kimi_k26": _KIMI_K25,
    "kimi_k26_disable_thinking": _KIMI_K25_CLOSED,
    "kimi_k26_preserve_thinking": _with(_KIMI_K25, reasoning=_ALWAYS),
    "nemotron3": NEMOTRON3,
    "nemotron3_disable_thinking": _with(NEMOTRON3, refuses_reasoning=True, reasoning=_EMPTY_PROMPT),
    "nemotron3_preserve_thinking": _with(NEMOTRON3, extends=True, reasoning=_ALWAYS),
    "nemotron3_low_thinking": _with(NEMOTRON3, user_effort="\n\n{reasoning effort: low}"),
    "nemotron3_ultra": _NEMOTRON3_ULTRA,
    "nemotron3_ultra_medium_thinking": _with(_NEMOTRON3_ULTRA, user_effort="\n\n{reasoning effort: efficient}"),
    "nemotron3_ultra_disable_thinking": _with(_NEMOTRON3_ULTRA, refuses_reasoning=True, reasoning=_EMPTY_PROMPT),
    "nemotron3_ultra_preserve_thinking": _with(_NEMOTRON3_ULTRA, extends=True, reasoning=_ALWAYS),
}


def with_history(name: str, keeps_reasoning: bool) -> Family:
    """The family of this name whose earlier turns keep their reasoning, or lose it, instead of what it does."""
    family = FAMILIES[name]
    style = family.reasoning
    if style is None or style.keep == "never" or keeps_reasoning == (style.keep == "always"):
        return family
    if not keeps_reasoning:
        kept: dict[str, Any] = {"keep": "turn" if style.first else "last"}
        if style.first:
            kept["dropped"] = (style.opening + style.closing, "")
        return _with(family, reasoning={**kept, "absent": (*style.absent[:2], NOTHING)}, extends=False)
    if f"{name}_preserve_thinking" in FAMILIES:
        return FAMILIES[f"{name}_preserve_thinking"]
    kept = {"keep": "always", "before_kept": ""}
    if style.needs_user:
        kept["absent"] = (style.absent[0],) * 3
    elif family.bare_after_results:
        kept["absent"] = (style.absent[0], NOTHING, NOTHING)
    return _with(family, reasoning=kept, extends=style.needs_user or family.bare_after_results or family.extends)

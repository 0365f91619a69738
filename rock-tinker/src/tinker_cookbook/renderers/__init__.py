"""Conversations to tokens with loss weights, and sampled tokens back to messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import RenderContext, RenderedMessage, Renderer, TrainOnWhat
from tinker_cookbook.renderers.families import FAMILIES
from tinker_cookbook.renderers.messages import (
    AudioPart,
    Content,
    ContentPart,
    ImagePart,
    Message,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    content_to_jsonable,
    ensure_list,
    ensure_text,
    format_content_as_string,
    get_text_content,
    has_thinking,
    message_to_jsonable,
    remove_thinking,
)
from tinker_cookbook.renderers.parsing import (
    ParseFailureKind,
    ParseTermination,
    classify_parse_failure,
    detect_unterminated_tool_block,
    parse_content_blocks,
    parse_response_for_stop_token,
    parse_think_blocks,
)
from tinker_cookbook.renderers.streaming import (
    MessageDelta,
    ReasoningStreamingParser,
    StreamingMessageHeader,
    StreamingParser,
    StreamingTextDelta,
    StreamingThinkingDelta,
    Utf8TokenDecoder,
)
from tinker_cookbook.tokenizer_utils import Tokenizer

RendererFactory = Callable[[Tokenizer, Any], Renderer]

_registry: dict[str, RendererFactory] = {}
_GPT_OSS_EFFORTS = {
    "gpt_oss_no_sysprompt": None,
    "gpt_oss_low_reasoning": "low",
    "gpt_oss_medium_reasoning": "medium",
    "gpt_oss_high_reasoning": "high",
}
# Names of families whose format is part of a package that is not published.
_UNSUPPORTED = ("kimi_k31_pro", "tml_v0")


def register_renderer(name: str, factory: RendererFactory) -> None:
    """Make ``get_renderer(name, tokenizer)`` return ``factory(tokenizer, image_processor)``."""
    _registry[name] = factory


def unregister_renderer(name: str) -> bool:
    """Forget a registered renderer. Returns whether there was one."""
    return _registry.pop(name, None) is not None


def is_renderer_registered(name: str) -> bool:
    """Whether ``register_renderer`` was called for this name."""
    return name in _registry


def get_registered_renderer_names() -> list[str]:
    """Names in the registry, sorted."""
    return sorted(_registry)


def builtin_renderer_names() -> list[str]:
    """Names that ``get_renderer`` knows without registration."""
    return sorted([*FAMILIES, *_GPT_OSS_EFFORTS, "role_colon", "chat_template"])


def get_renderer(
    name: str, tokenizer: Tokenizer, image_processor: Any | None = None, model_name: str | None = None
) -> Renderer:
    """The renderer of this name: registry first, then the built-in families.

    Built in are "role_colon", "chat_template", "llama3", "qwen3", "qwen3_disable_thinking", "qwen3_instruct",
    "qwen3_vl", "qwen3_vl_instruct", "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking",
    "qwen3_8_xhigh_reasoning", "qwen3_8_medium_reasoning", "qwen3_8_low_reasoning", "qwen3_8_disable_thinking",
    "deepseekv3", "deepseekv3_disable_thinking", "deepseekv3_thinking", "deepseekv4_1", "deepseekv4_1_low_reasoning",
    "deepseekv4_1_max_reasoning", "deepseekv4_1_disable_thinking", "deepseekv4_1_preserve_thinking",
    "glm5_3_max_reasoning", "glm5_3_high_reasoning", "glm5_3_low_reasoning", "kimi_k2", "kimi_k25",
    "kimi_k25_disable_thinking", "kimi_k26", "kimi_k26_disable_thinking", "kimi_k26_preserve_thinking", "nemotron3",
    "nemotron3_low_thinking", "nemotron3_disable_thinking", "nemotron3_preserve_thinking", "nemotron3_ultra",
    "nemotron3_ultra_medium_thinking", "nemotron3_ultra_disable_thinking", "nemotron3_ultra_preserve_thinking",
    "gpt_oss_no_sysprompt", "gpt_oss_low_reasoning", "gpt_oss_medium_reasoning" and "gpt_oss_high_reasoning".
    Refused, because their format is part of a package that is not published: "kimi_k31_pro_max_reasoning",
    "kimi_k31_pro_high_reasoning", "kimi_k31_pro_low_reasoning", "kimi_k31_pro_disable_thinking",
    "kimi_k31_pro_no_reasoning_effort" and "tml_v0".

    ``model_name`` is only needed to pickle a renderer whose tokenizer does not know its own name.

    Raises:
        RendererError: unknown name.
    """
    renderer = _make(name, tokenizer, image_processor)
    renderer._renderer_name, renderer._model_name = name, model_name
    renderer._has_image_processor = image_processor is not None
    return renderer


def _make(name: str, tokenizer: Tokenizer, image_processor: Any | None) -> Renderer:
    if name in _registry:
        return _registry[name](tokenizer, image_processor)
    if name in FAMILIES:
        from tinker_cookbook.renderers.named import named_renderer

        return named_renderer(name, tokenizer, image_processor)
    if name == "role_colon":
        from tinker_cookbook.renderers.role_colon import RoleColonRenderer

        return RoleColonRenderer(tokenizer)
    if name == "chat_template":
        from tinker_cookbook.renderers.chat_template import ChatTemplateRenderer

        return ChatTemplateRenderer(tokenizer)
    if name in _GPT_OSS_EFFORTS:
        from tinker_cookbook.renderers.gpt_oss import GptOssRenderer

        effort = _GPT_OSS_EFFORTS[name]
        return GptOssRenderer(tokenizer, use_system_prompt=effort is not None, reasoning_effort=effort)
    if name.startswith(_UNSUPPORTED):
        raise RendererError(
            f"renderer_name={name!r} is not built in; use 'chat_template' (renders with the tokenizer's own template) "
            "or add one with register_renderer()"
        )
    known = [*builtin_renderer_names(), *get_registered_renderer_names()]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise RendererError(f"renderer_name={name!r} is unknown{hint} Known names: {', '.join(known)}")


def renderer_from_key(name: str, model_name: str, has_image_processor: bool) -> Renderer:
    """Rebuild a renderer in another process (used by pickle)."""
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    processor = None
    if has_image_processor:
        from tinker_cookbook.image_processing_utils import get_image_processor

        processor = get_image_processor(model_name)
    return get_renderer(name, get_tokenizer(model_name), processor, model_name)


__all__ = [
    "AudioPart",
    "Content",
    "ContentPart",
    "ImagePart",
    "Message",
    "MessageDelta",
    "ParseFailureKind",
    "ParseTermination",
    "ReasoningStreamingParser",
    "RenderContext",
    "RenderedMessage",
    "Renderer",
    "Role",
    "StreamingMessageHeader",
    "StreamingParser",
    "StreamingTextDelta",
    "StreamingThinkingDelta",
    "TextPart",
    "ThinkingPart",
    "Tokenizer",
    "ToolCall",
    "ToolSpec",
    "TrainOnWhat",
    "UnparsedToolCall",
    "Utf8TokenDecoder",
    "builtin_renderer_names",
    "classify_parse_failure",
    "content_to_jsonable",
    "detect_unterminated_tool_block",
    "ensure_list",
    "ensure_text",
    "format_content_as_string",
    "get_registered_renderer_names",
    "get_renderer",
    "get_text_content",
    "has_thinking",
    "is_renderer_registered",
    "message_to_jsonable",
    "parse_content_blocks",
    "parse_response_for_stop_token",
    "parse_think_blocks",
    "register_renderer",
    "remove_thinking",
    "unregister_renderer",
]

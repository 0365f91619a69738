"""What a family does to a conversation before it is drawn message by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tinker_cookbook.renderers.families import Family
from tinker_cookbook.renderers.messages import (
    Message,
    TextPart,
    ThinkingPart,
    ensure_list,
    ensure_text,
    get_text_content,
    remove_thinking,
)
from tinker_cookbook.renderers.parsing import split_thinking

# Name of a system message that declares tools.
_DECLARED = "tool_declare"


def prepare(family: Family, messages: Sequence[Message], generating: bool) -> list[Message]:
    """Messages as the family draws them: default texts added, results in order, dropped reasoning removed.

    ``generating``: the next message is to be sampled, so that the last one is history.
    """
    out = list(messages)
    tools = family.tools
    if family.turns == "answer" and family.reasoning is not None and family.reasoning.keep != "always":
        answered = _last_answer(out, generating)
        out = [_forget(message) if i <= answered else message for i, message in enumerate(out)]
    if tools is not None and tools.orders_results:
        out = _ordered(out, flags_stay=family.joins_turns is not None)
    if tools is not None and tools.joins_declaration:
        out = _declared(family, out)
    first = out[0]["role"] if out else None
    if family.default_system is not None and first not in ("system", "tool_declare"):
        out.insert(0, _like(out, "system", family.default_system))
    if family.effort is not None:
        out = _with_effort(out, family.effort)
    user = last_user(family, out)
    if family.user_effort and user >= 0:
        content = out[user]["content"]
        added = TextPart(type="text", text=family.user_effort)
        text = content + family.user_effort if isinstance(content, str) else [*content, added]
        out[user] = cast(Message, {**out[user], "content": text})
    if family.joins_turns is not None:
        out = _joined(
            out, family.joins_turns, tools.result_opening if tools else "", tools.result_closing if tools else ""
        )
    if family.reasoning is not None and (family.reasoning.trim or family.shared_ends is not None):
        read = range(len(out)) if family.reasoning.keep == "always" else range(len(out) - 1, len(out))
        out = [_split_reasoning(m) if i in read and m["role"] == "assistant" else m for i, m in enumerate(out)]
    return out


def _with_effort(messages: list[Message], effort: str) -> list[Message]:
    """Messages whose system message begins with ``effort``; without any text there is no system message."""
    given = messages[0] if messages and messages[0]["role"] == "system" else None
    texts = [effort, get_text_content(given).strip() if given is not None else ""]
    content = "\n\n".join(text for text in texts if text)
    rest = messages if given is None else messages[1:]
    system = _like(messages, "system", content) if given is None else cast(Message, {**given, "content": content})
    return [system, *rest] if content else list(rest)


def turn_start(family: Family, messages: Sequence[Message], generating: bool) -> int:
    """Index of the last message before the last turn of the assistant; -1 if it is the whole conversation."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    closing = family.tools.result_closing if family.tools is not None and family.joins_turns is not None else ""
    rows = enumerate(messages[:last])
    user = max((i for i, message in rows if message["role"] == "user" or _ends_in_user(message, closing)), default=-1)
    return max(user, _last_answer(messages, generating)) if family.turns == "answer" else user


def last_user(family: Family, messages: Sequence[Message]) -> int:
    """Index of the last user message; results count as such where they share a message with it."""
    if any(message.get("name") == _DECLARED for message in messages):
        return -1  # with tools, all reasoning belongs to the current turn
    roles = ("user", "tool") if family.joins_turns is not None else ("user",)
    return max((i for i, message in enumerate(messages) if message["role"] in roles), default=-1)


def _ends_in_user(message: Message, closing: str) -> bool:
    """Whether a result shares its message with the user text that came after it."""
    content = message["content"]
    return message["role"] == "tool" and isinstance(content, str) and bool(closing) and not content.endswith(closing)


def _last_answer(messages: Sequence[Message], generating: bool) -> int:
    """Index of the last assistant message without tool calls; the last message of all is still being written."""
    rows = list(enumerate(messages if generating else messages[:-1]))
    return max((i for i, m in rows if m["role"] == "assistant" and not m.get("tool_calls")), default=-1)


def _forget(message: Message) -> Message:
    if message["role"] != "assistant" or isinstance(message["content"], str):
        return message
    return cast(Message, {**message, "content": remove_thinking(message["content"])})


def _like(messages: list[Message], role: str, content: str) -> Message:
    """A message of the family's own; it is never trained where every message must say whether it is."""
    message = Message(role=role, content=content)
    if messages and "trainable" in messages[0]:
        message["trainable"] = False
    return message


def _ordered(messages: list[Message], flags_stay: bool) -> list[Message]:
    """Neighbouring tool results in the order of the calls that they answer; others stay where they are.

    ``flags_stay``: the field ``trainable`` keeps its place, because the results will share a message.
    """
    out: list[Message] = []
    order: dict[str, int] = {}
    start = 0
    for message in messages:
        if message["role"] == "assistant":
            order = {call.id: i for i, call in enumerate(message.get("tool_calls") or []) if call.id}
        if message["role"] != "tool":
            start = len(out) + 1
        out.append(message)
        if message["role"] == "tool" and all(m.get("tool_call_id") in order for m in out[start:]):
            run = sorted(out[start:], key=lambda m: order[m.get("tool_call_id", "")])
            if flags_stay and "trainable" in message:
                run = [
                    cast(Message, {**m, "trainable": o.get("trainable")}) for m, o in zip(run, out[start:], strict=True)
                ]
            out[start:] = run
    return out


def _declared(family: Family, messages: list[Message]) -> list[Message]:
    """Tool declarations at the end of the system message before them."""
    assert family.tools is not None
    out: list[Message] = []
    for message in messages:
        if message["role"] != "tool_declare":
            out.append(message)
            continue
        text = family.tools.declaration(ensure_text(message["content"]))
        given = out.pop() if out and out[-1]["role"] == "system" else None
        content = (ensure_text(given["content"]) if given is not None else "") + text
        out.append(cast(Message, {**(given or message), "role": "system", "content": content, "name": _DECLARED}))
    return out


def _joined(messages: list[Message], joiner: str, opening: str, closing: str) -> list[Message]:
    """Neighbouring user messages and tool results as one message; with a result in it, it counts as a result."""
    out: list[Message] = []
    for message in messages:
        role = message["role"]
        if role == "tool":
            content = f"{opening}{get_text_content(message)}{closing}"
            message = cast(Message, {**message, "content": content, "role": "tool"})
        if role in ("user", "tool") and out and out[-1]["role"] in ("user", "tool"):
            content = ensure_text(out[-1]["content"]) + joiner + ensure_text(message["content"])
            role = "tool" if "tool" in (role, out[-1]["role"]) else "user"
            out[-1] = cast(Message, {**out[-1], "role": role, "content": content})
        else:
            out.append(message)
    return out


def _split_reasoning(message: Message) -> Message:
    """Reasoning in the text of a message as a part of its own."""
    if not isinstance(message["content"], str) or "</think>" not in message["content"]:
        return message
    thinking, text = split_thinking(message["content"])
    parts = [ThinkingPart(type="thinking", thinking=thinking or ""), *ensure_list(text)]
    return cast(Message, {**message, "content": parts})

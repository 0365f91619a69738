"""What a rollout leaves: its turns with the exact token ids and logprobs, and their export as text and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tinker_cookbook.swe.messages import Message, canonical


@dataclass(frozen=True)
class Turn:
    """One model call.

    Attributes:
        index: 0, 1, 2 … in the order in which the calls were answered.
        messages: the request's messages.
        answer: the assistant message that went back.
        prompt_text: the prompt as the chat template wrote it.
        prompt_tokens: the prompt as it was sampled from.
        completion_tokens, logprobs: the sampled tokens (with the stop token, if one was sampled) and their logprobs.
        reused_tokens: how many leading prompt tokens are the very tokens of an earlier turn (0 = encoded afresh).
        finish_reason: stop | length | tool_calls.
    """

    index: int
    messages: tuple[Message, ...]
    answer: Message
    prompt_text: str
    prompt_tokens: tuple[int, ...]
    completion_tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    completion_text: str
    finish_reason: str
    reused_tokens: int
    temperature: float
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Everything but the messages that earlier turns already hold is in the prompt; this is the whole turn."""
        return {
            "index": self.index,
            "messages": list(self.messages),
            "answer": self.answer,
            "finish_reason": self.finish_reason,
            "prompt_tokens": list(self.prompt_tokens),
            "completion_tokens": list(self.completion_tokens),
            "logprobs": list(self.logprobs),
            "reused_tokens": self.reused_tokens,
            "temperature": self.temperature,
            "seconds": round(self.seconds, 3),
        }


@dataclass
class Trajectory:
    """The turns of one rollout and what the verifier said."""

    task_id: str
    turns: list[Turn] = field(default_factory=list)
    reward: float | None = None
    evaluated: bool = False

    def as_text(self) -> str:
        """A text that a person can read from top to bottom. A message is shown once, in the turn that brought it."""
        outcome = f"reward {self.reward:g}" if self.evaluated and self.reward is not None else "not evaluated"
        lines = [f"task {self.task_id} · {len(self.turns)} turns · {outcome}"]
        shown = 0
        previous: list[str] = []
        for turn in self.turns:
            if [canonical(item) for item in turn.messages[:shown]] != previous:
                lines.append(f"\n===== turn {turn.index}: the agent rewrote its history =====")
                shown = 0
            lines += [_block(f"turn {turn.index} · {item['role']}", _shown(item)) for item in turn.messages[shown:]]
            lines.append(
                _block(
                    f"turn {turn.index} · answer · {len(turn.prompt_tokens)} + {len(turn.completion_tokens)} tokens "
                    f"· {turn.finish_reason}",
                    turn.completion_text,
                )
            )
            previous = [canonical(item) for item in (*turn.messages, turn.answer)]
            shown = len(previous)
        return "\n".join(lines) + "\n"

    def as_json(self, **more: Any) -> dict[str, Any]:
        """The trajectory as JSON data; `more` comes first (e.g. return and advantage of a group member)."""
        return {
            "task_id": self.task_id,
            **more,
            "reward": self.reward,
            "evaluated": self.evaluated,
            "turns": [turn.as_json() for turn in self.turns],
        }


def _shown(message: Message) -> str:
    text = message.get("content") or ""
    calls = "\n".join(json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or [])
    return "\n".join(part for part in (text, calls) if part)


def _block(title: str, text: str) -> str:
    return f"\n----- {title} -----\n{text.rstrip()}"

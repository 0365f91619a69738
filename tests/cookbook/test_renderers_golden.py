"""Renderers against reference output: prompts, loss weights, stop sequences and parse results of eight families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Message, TextPart, ThinkingPart, TrainOnWhat, get_renderer

GOLDEN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "renderers.json").read_text())
NAMES = sorted(GOLDEN)


def _assistant(text: str, thinking: str | None) -> Message:
    if thinking is None:
        return Message(role="assistant", content=text)
    parts = [ThinkingPart(type="thinking", thinking=thinking), TextPart(type="text", text=text)]
    return Message(role="assistant", content=parts)


def conversation(thinking: bool = False) -> list[Message]:
    return [
        Message(role="system", content="SYS"),
        Message(role="user", content="U1"),
        _assistant("A1", "T1" if thinking else None),
        Message(role="user", content="U2"),
        _assistant("A2", "T2" if thinking else None),
    ]


def marked(tokenizer: Any, tokens: list[int], weights: list[float]) -> str:
    """Decoded text with ⟦ ⟧ around runs of weight 1."""
    out, start = "", 0
    while start < len(tokens):
        end = start
        while end < len(tokens) and weights[end] == weights[start]:
            end += 1
        text = tokenizer.decode(tokens[start:end])
        out += f"⟦{text}⟧" if weights[start] else text
        start = end
    return out


def supervised(name: str, tokenizer: Any, mode: TrainOnWhat, thinking: bool = False) -> str:
    model_input, weights = get_renderer(name, tokenizer).build_supervised_example(conversation(thinking), mode)
    assert model_input.length == len(weights)
    return marked(tokenizer, model_input.to_ints(), weights.tolist())


@pytest.mark.parametrize("name", NAMES)
def test_generation_prompt_equals_the_reference(name: str, universal_tokenizer: Any) -> None:
    prompt = get_renderer(name, universal_tokenizer).build_generation_prompt(conversation()[:-1])
    assert universal_tokenizer.decode(prompt.to_ints()) == GOLDEN[name]["gen"]


@pytest.mark.parametrize("mode", ["last_assistant_message", "all_assistant_messages", "all_tokens"])
@pytest.mark.parametrize("name", NAMES)
def test_training_weights_equal_the_reference(name: str, mode: str, universal_tokenizer: Any) -> None:
    assert supervised(name, universal_tokenizer, TrainOnWhat(mode)) == GOLDEN[name][f"sup_{mode}"]


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_in_the_trained_turn_equals_the_reference(name: str, universal_tokenizer: Any) -> None:
    expected = GOLDEN[name]["sup_think_last"]
    if expected.startswith("RendererError"):
        with pytest.raises(RendererError):
            supervised(name, universal_tokenizer, TrainOnWhat.LAST_ASSISTANT_MESSAGE, thinking=True)
    else:
        assert supervised(name, universal_tokenizer, TrainOnWhat.LAST_ASSISTANT_MESSAGE, thinking=True) == expected


@pytest.mark.parametrize("name", NAMES)
def test_stop_sequences_and_extension_property_equal_the_reference(name: str, universal_tokenizer: Any) -> None:
    renderer = get_renderer(name, universal_tokenizer)
    stops = [s if isinstance(s, str) else universal_tokenizer.decode([s]) for s in renderer.get_stop_sequences()]
    assert stops == GOLDEN[name]["stop"]
    assert renderer.has_extension_property == GOLDEN[name]["ext"]


@pytest.mark.parametrize("name", NAMES)
def test_parse_results_equal_the_reference(name: str, universal_tokenizer: Any) -> None:
    renderer = get_renderer(name, universal_tokenizer)
    stop = renderer.get_stop_sequences()[0]
    tail = universal_tokenizer.encode(stop) if isinstance(stop, str) else [stop]
    hello = universal_tokenizer.encode("hello", add_special_tokens=False)
    for tokens, key in ((hello + tail, "parse_stop"), (hello, "parse_trunc")):
        message, termination = renderer.parse_response(tokens)
        assert [dict(message), termination.value] == GOLDEN[name][key]

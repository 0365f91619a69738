"""All renderers against recorded answers of the official cookbook 0.6.1, and what they do beyond it."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Message, TrainOnWhat, get_renderer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from renderer_differences import meant  # noqa: E402
from renderer_observations import NAMES, digest, observe  # noqa: E402

# {"observations": [names of them], "answers": {renderer: three characters per observation, "---" if not compared}}
RECORD: dict[str, Any] = json.loads((HERE / "data" / "renderer_answers.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_every_renderer_answers_as_recorded(name: str, universal_tokenizer: Any) -> None:
    observations, line = RECORD["observations"], RECORD["answers"][name]
    answers = observe(name, universal_tokenizer, set(observations))
    recorded = {key: line[3 * i : 3 * i + 3] for i, key in enumerate(observations)}
    assert len(line) == 3 * len(observations) and sum(d != "---" for d in recorded.values()) > 300
    other = [key for key, d in recorded.items() if d != "---" and digest(answers[key]) != d]
    assert not other, {key: answers[key] for key in other[:5]}
    assert not [key for key, d in recorded.items() if d != "---" and meant(name, key)]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("role_colon")])
def test_no_text_of_a_conversation_becomes_a_marker(name: str, universal_tokenizer: Any) -> None:
    renderer = get_renderer(name, universal_tokenizer)
    special = {i for i, token in universal_tokenizer.added_tokens_decoder.items() if token.special}

    def markers(text: str) -> int:
        messages = [Message(role=r, content=text) for r in ("system", "user", "assistant", "user")]
        return sum(token in special for token in renderer.build_generation_prompt(messages).to_ints())

    forged = "".join(universal_tokenizer.added_tokens_decoder[i].content for i in sorted(special))
    assert markers(f"a{forged}b") == markers("ab")


@pytest.mark.parametrize(
    ("module", "name", "renderer"),
    [
        ("deepseek_v3", "DeepSeekV3ThinkingRenderer", "deepseekv3_thinking"),
        ("deepseek_v4_1", "DeepSeekV4_1Renderer", "deepseekv4_1_preserve_thinking"),
        ("glm5_3", "Glm5_3LowReasoningRenderer", "glm5_3_low_reasoning"),
        ("gpt_oss", "GptOssRenderer", "gpt_oss_low_reasoning"),
        ("kimi_k25", "KimiK25Renderer", "kimi_k26"),
        ("nemotron3", "Nemotron3UltraMediumThinkingRenderer", "nemotron3_ultra_medium_thinking"),
        ("qwen3", "Qwen3VLInstructRenderer", "qwen3_vl_instruct"),
        ("qwen3_5", "Qwen3_5Renderer", "qwen3_5_preserve_thinking"),
        ("qwen3_8", "Qwen3_8Renderer", "qwen3_8_low_reasoning"),
    ],
)
def test_classes_are_where_code_imports_them(
    module: str, name: str, renderer: str, universal_tokenizer: Any, universal_tokenizer_path: str
) -> None:
    found = getattr(importlib.import_module(f"tinker_cookbook.renderers.{module}"), name)
    made = get_renderer(renderer, universal_tokenizer, model_name=universal_tokenizer_path)
    assert isinstance(made, found)
    copy = pickle.loads(pickle.dumps(made))
    messages = [Message(role="user", content="q")]
    assert type(copy) is found and copy.build_generation_prompt(messages) == made.build_generation_prompt(messages)
    assert found(universal_tokenizer).build_generation_prompt(messages).length > 1


@pytest.mark.parametrize(
    ("module", "name", "extends", "kept"),
    [
        ("qwen3", "Qwen3Renderer", True, "<think>\nT1\n</think>\n\nA1"),
        ("qwen3_5", "Qwen3_5Renderer", False, "<think>\nT1\n</think>\n\nA1"),
        ("deepseek_v3", "DeepSeekV3ThinkingRenderer", True, "<｜Assistant｜><think>T1</think>A1"),
        ("deepseek_v4_1", "DeepSeekV4_1Renderer", True, "<｜Assistant｜><think>T1</think>A1"),
        ("kimi_k2", "KimiK2Renderer", False, "<think>T1</think>A1"),
        ("nemotron3", "Nemotron3Renderer", True, "<think>\nT1\n</think>\nA1"),
    ],
)
def test_history_keeps_its_reasoning_when_told(
    module: str, name: str, extends: bool, kept: str, universal_tokenizer: Any
) -> None:
    found = getattr(importlib.import_module(f"tinker_cookbook.renderers.{module}"), name)
    parts: Any = [{"type": "thinking", "thinking": "T1"}, {"type": "text", "text": "A1"}]
    messages = [Message(role="user", content="U1"), Message(role="assistant", content=parts)]
    messages.append(Message(role="user", content="U2"))
    renderer = found(universal_tokenizer, strip_thinking_from_history=False)
    assert renderer.has_extension_property is extends
    assert kept in universal_tokenizer.decode(renderer.build_generation_prompt(messages).to_ints())
    default = found(universal_tokenizer)
    assert kept not in universal_tokenizer.decode(default.build_generation_prompt(messages).to_ints())


class Processor:
    """Patches of 14 pixels, four of them a token."""

    merge_size, patch_size = 2, 14

    def get_number_of_image_patches(self, height: int, width: int, images_kwargs: Any = None) -> int:
        return (height // 14) * (width // 14)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3_vl", "user\na <|vision_start|>[2]<|vision_end|> b<|im_end|>"),
        ("qwen3_5", "user\na <|vision_start|>[2]<|vision_end|> b<|im_end|>"),
        ("kimi_k25", "<|im_middle|>a <|media_begin|>image<|media_content|>[2]<|media_end|>\n b<|im_end|>"),
    ],
)
def test_images_stand_between_their_markers(name: str, expected: str, universal_tokenizer: Any) -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (56, 28))
    renderer = get_renderer(name, universal_tokenizer, image_processor=Processor())
    parts: Any = [{"type": "text", "text": "a "}, {"type": "image", "image": image}, {"type": "text", "text": " b"}]

    def text(messages: list[Message]) -> str:
        chunks: list[Any] = renderer.build_generation_prompt(messages).chunks
        return "".join(
            universal_tokenizer.decode(chunk.tokens) if hasattr(chunk, "tokens") else f"[{chunk.length}]"
            for chunk in chunks
        )

    user = Message(role="user", content=parts)
    assert expected in text([user])
    # Results of tools may hold images too, and what the prompt holds is not trained after an image either.
    assert "[2]" in text([Message(role="tool", content=parts, name="f", tool_call_id="functions.f:0")])
    example, weights = renderer.build_supervised_example([user, Message(role="assistant", content="A")])
    assert example.length == len(weights) and 0 < weights.sum() < 8


def test_a_closed_prompt_is_no_prompt_of_reasoning(universal_tokenizer: Any) -> None:
    renderer = get_renderer("nemotron3_disable_thinking", universal_tokenizer)
    parts: Any = [{"type": "thinking", "thinking": "T"}, {"type": "text", "text": "A"}]
    messages = [Message(role="user", content="U"), Message(role="assistant", content=parts)]
    for mode in (TrainOnWhat.LAST_ASSISTANT_MESSAGE, TrainOnWhat.LAST_ASSISTANT_TURN):
        with pytest.raises(RendererError, match="reasoning"):
            renderer.build_supervised_example(messages, mode)

"""Stand-ins at the two seams of the SWE library: a token sampler and a ModelService, both in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tinker_cookbook.swe import ChatFormat, Completion, Policy, TokenBudget

CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class CharTokenizer:
    """One token a character, with `<|im_end|>` as token 0 and one more pair token, so that encoding is ambiguous:
    "ab" is one token when it is encoded, while a model may sample "a" and "b"."""

    eos_token = "<|im_end|>"
    eos_token_id = 0

    def __init__(self, chat_template: str | None = CHATML) -> None:
        self.chat_template = chat_template

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(
            conversations=[conversation],
            tools=options.get("tools"),
            chat_template=self.chat_template,
            add_generation_prompt=options["add_generation_prompt"],
        )
        return rendered[0]

    def encode(self, text: str, **_: Any) -> list[int]:
        tokens: list[int] = []
        while text:
            if text.startswith("<|im_end|>"):
                tokens.append(0)
                text = text[10:]
            elif text.startswith("ab"):
                tokens.append(1)
                text = text[2:]
            else:
                tokens.append(ord(text[0]) + 10)
                text = text[1:]
        return tokens

    def decode(self, token_ids: Any, **_: Any) -> str:
        return "".join({0: "<|im_end|>", 1: "ab"}.get(token) or chr(token - 10) for token in token_ids)


@dataclass
class ScriptedSampler:
    """Answers prompts from a list of texts (one token a character) or from a function of the prompt text."""

    answers: list[str] | Callable[[tuple[int, ...]], str]
    delay: float = 0.0
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    failure: Exception | None = None

    async def sample(self, prompt: tuple[int, ...], **options: Any) -> Completion:
        self.prompts.append(prompt)
        self.seen.append(options)
        await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        text = self.answers(prompt) if callable(self.answers) else self.answers[len(self.prompts) - 1]
        tokens = tuple(ord(char) + 10 for char in text)[: options["max_tokens"]]
        ended = len(tokens) < options["max_tokens"]
        tokens += (0,) if ended else ()
        return Completion(tokens, tuple(-0.5 - 0.01 * i for i in range(len(tokens))), "stop" if ended else "length")


@dataclass
class Request:
    index: int
    body: Any
    abandoned: tuple[int, ...] = ()


class SessionEnded:
    """What the service hands out when the agent has ended."""


class MemoryModelService:
    """A ModelService whose agent is a coroutine: it calls `ask` and gets (status, body)."""

    def __init__(self, agent: Callable[[MemoryModelService], Any]) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[tuple[int, Any]]] = {}
        self._agent = agent
        self._task: asyncio.Task[None] | None = None
        self.polls = 0
        self.broken_polls = 0

    async def ask(self, body: Any) -> tuple[int, Any]:
        index = len(self._waiting) + 1
        self._waiting[index] = asyncio.get_running_loop().create_future()
        await self._queue.put(Request(index, body))
        return await self._waiting[index]

    async def chat(self, messages: list[dict[str, Any]], **more: Any) -> tuple[int, Any]:
        return await self.ask(json.loads(json.dumps({"model": "local", "messages": messages, **more})))

    async def next_request(self, timeout: float) -> Any:
        self.polls += 1
        if self.broken_polls:
            self.broken_polls -= 1
            raise ConnectionError("the channel broke")
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(timeout):
                return await self._queue.get()
        except TimeoutError:
            return None

    async def _run(self) -> None:
        await self._agent(self)
        await self._queue.put(SessionEnded())

    async def respond(self, index: int, body: Any, *, status: int = 200) -> None:
        self._waiting[index].set_result((status, body))


@pytest.fixture
def char_chat() -> ChatFormat:
    return ChatFormat(CharTokenizer())


@pytest.fixture
def policy_of(char_chat: ChatFormat) -> Callable[..., Policy]:
    def make(sampler: ScriptedSampler, *, max_input: int = 4000, max_output: int = 50, context: int = 4050) -> Policy:
        return Policy(sampler, char_chat, TokenBudget(max_input, max_output, context), "tiny")

    return make


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    """A config folder with one task and small budgets."""
    import yaml

    config = tmp_path / "config"
    config.mkdir()
    task = tmp_path / "tasks" / "demo__task-1"
    task.mkdir(parents=True)
    (task / "task.toml").write_text("[metadata]\n")
    (config / "runtime.yaml").write_text(
        yaml.safe_dump({"backend": {"port": 19210}, "runtime": {"engine": "engine.yaml"}})
    )
    (config / "engine.yaml").write_text(yaml.safe_dump({"pretrain": "org/model", "sequence_length": 1000}))
    harbor = {
        "experiment_id": "t",
        "timeout": 60,
        "environment": {
            "base_url": "http://127.0.0.1:18080",
            "uploads": [[str(task), "/opt/swe/harbor-tasks/demo__task-1"]],
            "startup_timeout": 30,
        },
        "agents": [{"name": "a", "kwargs": {"max_input_tokens": 800, "max_output_tokens": 200}}],
        "datasets": [{"path": "/opt/swe/harbor-tasks", "task_names": ["demo__task-1"]}],
    }
    (config / "harbor.yaml").write_text(yaml.safe_dump(harbor))
    return config


@pytest.fixture
def scripted_sampler() -> type[ScriptedSampler]:
    return ScriptedSampler


@pytest.fixture
def char_tokenizer() -> type[CharTokenizer]:
    return CharTokenizer


@pytest.fixture
def memory_service() -> type[MemoryModelService]:
    return MemoryModelService

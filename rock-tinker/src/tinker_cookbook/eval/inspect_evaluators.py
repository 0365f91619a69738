"""Evaluation with inspect-ai tasks (extra: ``pip install inspect-ai``)."""

from __future__ import annotations

import time
from typing import Any

import chz

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message


@chz.chz
class InspectEvaluatorBuilder:
    """inspect-ai tasks and how to sample for them."""

    tasks: list[Any]
    renderer_name: str
    model_name: str
    include_reasoning: bool = False
    temperature: float = 1.0
    max_tokens: int = 1000
    limit: int | None = None
    log_dir: str | None = None
    max_connections: int = 64
    log_level: str = "INFO"
    metadata: dict[str, str] | None = None

    def __call__(self) -> InspectEvaluator:
        return InspectEvaluator(self)


class InspectEvaluator(SamplingClientEvaluator):
    """Runs the tasks and reports every metric of every scorer as ``<task>/<metric>``."""

    name = "inspect"

    def __init__(self, config: InspectEvaluatorBuilder) -> None:
        self.config = config

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        try:
            from inspect_ai import eval_async
            from inspect_ai.model import GenerateConfig, Model
        except ImportError as error:
            raise ConfigurationError("inspect tasks need the package inspect-ai: pip install inspect-ai") from error
        config = self.config
        generate = GenerateConfig(temperature=config.temperature, max_tokens=config.max_tokens)
        api = _api(sampling_client, config)
        logs = await eval_async(
            tasks=config.tasks,
            model=[Model(api, generate)],
            limit=config.limit,
            log_dir=config.log_dir,
            log_level=config.log_level,
            max_connections=config.max_connections,
            metadata=config.metadata,
        )
        out: dict[str, float] = {}
        for log in logs:
            if log.results is None:
                raise ConfigurationError(f"inspect task {log.eval.task} failed: {log.error}")
            for score in log.results.scores:
                out.update({f"{log.eval.task}/{name}": float(metric.value) for name, metric in score.metrics.items()})
        return out


def _api(sampling_client: tinker.SamplingClient, config: InspectEvaluatorBuilder) -> Any:
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelAPI, ModelOutput

    tokenizer = tokenizer_utils.get_tokenizer(config.model_name)
    renderer = renderers.get_renderer(config.renderer_name, tokenizer, model_name=config.model_name)

    class TinkerAPI(ModelAPI):
        async def generate(self, input: list[Any], tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
            messages = [Message(role=str(message.role), content=str(message.text)) for message in input]
            completer = TinkerTokenCompleter(
                sampling_client,
                config.max_tokens or builder.max_tokens,
                builder.temperature if config.temperature is None else config.temperature,
            )
            started = time.time()
            sampled = await completer(renderer.build_generation_prompt(messages), renderer.get_stop_sequences())
            message, _ = renderer.parse_response(sampled.tokens)
            text = (
                renderers.format_content_as_string(message["content"])
                if builder.include_reasoning
                else renderers.get_text_content(message)
            )
            reason: Any = "max_tokens" if sampled.stop_reason == "length" else "stop"
            choice = ChatCompletionChoice(
                message=ChatMessageAssistant(content=text, model=builder.model_name), stop_reason=reason
            )
            return ModelOutput(model=builder.model_name, choices=[choice], time=time.time() - started)

    builder = config
    return TinkerAPI(model_name=config.model_name)

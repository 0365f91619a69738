"""Comparisons of two completions, and models that prefer one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

import chz
import numpy as np

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.renderers import Message, TrainOnWhat

Label: TypeAlias = Literal["A", "B", "Tie"]
_OTHER: dict[Label, Label] = {"A": "B", "B": "A", "Tie": "Tie"}


@dataclass
class Comparison:
    """A conversation and two ways to go on."""

    prompt_conversation: list[Message]
    completion_A: list[Message]
    completion_B: list[Message]

    def swap(self) -> Comparison:
        """The same with the completions exchanged."""
        return Comparison(self.prompt_conversation, self.completion_B, self.completion_A)


@dataclass
class LabeledComparison:
    """A comparison with its outcome."""

    comparison: Comparison
    label: Label

    def swap(self) -> LabeledComparison:
        """The same with completions and outcome exchanged."""
        return LabeledComparison(self.comparison.swap(), _OTHER[self.label])


class ComparisonRenderer(ABC):
    """Comparisons to tokens."""

    @abstractmethod
    def build_generation_prompt(self, comparison: Comparison) -> tinker.ModelInput:
        """Prompt after which the model names the better completion."""

    @abstractmethod
    def to_model_input_weights(self, labeled_comparison: LabeledComparison) -> tuple[tinker.ModelInput, np.ndarray]:
        """Tokens and weights of a labelled comparison; only the label carries weight."""

    @property
    @abstractmethod
    def tokenizer(self) -> tokenizer_utils.Tokenizer:
        """Tokenizer in use."""


class ComparisonRendererFromChatRenderer(ComparisonRenderer):
    """Prompt, both completions under system headings, and the label as the answer."""

    def __init__(self, convo_renderer: renderers.Renderer) -> None:
        self.convo_renderer = convo_renderer

    @property
    def tokenizer(self) -> tokenizer_utils.Tokenizer:
        return self.convo_renderer.tokenizer

    def _conversation(self, comparison: Comparison) -> list[Message]:
        def heading(text: str) -> Message:
            return Message(role="system", content=f"==== {text} ====")

        return [
            *comparison.prompt_conversation,
            heading("Completion A"),
            *comparison.completion_A,
            heading("Completion B"),
            *comparison.completion_B,
            heading("Preference"),
        ]

    def build_generation_prompt(self, comparison: Comparison) -> tinker.ModelInput:
        return self.convo_renderer.build_generation_prompt(self._conversation(comparison))

    def to_model_input_weights(self, labeled_comparison: LabeledComparison) -> tuple[tinker.ModelInput, np.ndarray]:
        answer = Message(role="assistant", content=labeled_comparison.label)
        conversation = [*self._conversation(labeled_comparison.comparison), answer]
        model_input, weights = self.convo_renderer.build_supervised_example(
            conversation, TrainOnWhat.LAST_ASSISTANT_MESSAGE
        )
        trained = np.flatnonzero(weights.numpy())
        if not len(trained):
            raise DataValidationError("the label of the comparison has no trained token")
        first = np.zeros(len(weights), dtype=np.float32)
        first[trained[0]] = 1.0
        return model_input, first


class PreferenceModel(ABC):
    """Compares two completions."""

    @abstractmethod
    async def __call__(self, comparison: Comparison) -> float:
        """-1: A is better, 1: B is better, 0: no preference."""


@chz.chz
class PreferenceModelBuilder:
    """Configuration from which a preference model is made."""

    def __call__(self) -> PreferenceModel:
        """The model."""
        raise NotImplementedError


class PreferenceModelFromChatRenderer(PreferenceModel):
    """A trained comparison policy: samples the label."""

    def __init__(self, convo_renderer: renderers.Renderer, sampling_client: tinker.SamplingClient) -> None:
        self.comparison_renderer = ComparisonRendererFromChatRenderer(convo_renderer)
        self.sampling_client = sampling_client

    async def __call__(self, comparison: Comparison) -> float:
        response = await self.sampling_client.sample(
            prompt=self.comparison_renderer.build_generation_prompt(comparison),
            num_samples=1,
            sampling_params=tinker.SamplingParams(max_tokens=1, temperature=0.0),
        )
        label = str(self.comparison_renderer.tokenizer.decode(list(response.sequences[0].tokens))).strip()
        return {"A": -1.0, "B": 1.0}.get(label, 0.0)


@chz.chz
class PreferenceModelBuilderFromChatRenderer(PreferenceModelBuilder):
    """A comparison policy from sampler weights."""

    renderer_name: str
    model_name: str
    rm_weights_path: str
    base_url: str | None = None

    def __call__(self) -> PreferenceModel:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name)
        service_client = tinker.ServiceClient(base_url=self.base_url)
        client = service_client.create_sampling_client(model_path=self.rm_weights_path).result()
        return PreferenceModelFromChatRenderer(renderer, client)

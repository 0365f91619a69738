"""Self-distillation data: what the teacher, who has seen the golden answer, thinks of the student's own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import tinker
from tinker_cookbook.distillation.top_k import mean_entropy, soft_target_datum, top_k_rows
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.rl.metrics import add_to_advantages, array, score_tokens

if TYPE_CHECKING:
    import torch

DEFAULT_DEMO_TEMPLATE = (
    "{question}\n\nThis is an example of a good answer to the question:\n{golden_answer}\n\n"
    "Now answer the question yourself, in your own words."
)


def build_sdft_teacher_prompt(
    question: str,
    golden_answer: str,
    renderer: Renderer,
    system_prompt: str | None = None,
    demo_template: str = DEFAULT_DEMO_TEMPLATE,
) -> tinker.ModelInput:
    """Prompt of the teacher: the question with the golden answer as a demonstration."""
    messages = [Message(role="system", content=system_prompt)] if system_prompt else []
    text = demo_template.format(question=question, golden_answer=golden_answer)
    return renderer.build_generation_prompt([*messages, Message(role="user", content=text)])


@dataclass(frozen=True)
class _Continuation:
    """What the teacher is shown of a datum after its own prompt: everything from the first sampled token on, also what an
    environment said in between."""

    positions: np.ndarray  # of the sampled tokens in the datum
    tokens: list[int]
    first: int

    @classmethod
    def of(cls, datum: tinker.Datum) -> _Continuation:
        positions = np.flatnonzero(array(datum, "mask") > 0)
        targets = np.asarray(datum.loss_fn_inputs["target_tokens"].to_numpy())
        first = int(positions[0]) if len(positions) else len(targets)
        return cls(positions, [int(token) for token in targets[first:]], first)

    def after(self, prompt: tinker.ModelInput, limit: int) -> tuple[tinker.ModelInput, np.ndarray]:
        """The teacher's sequence, cut at the context length, and the positions of the sampled tokens in it."""
        kept = max(min(len(self.tokens), limit - prompt.length), 0)
        chunks = [*prompt.chunks, tinker.EncodedTextChunk(tokens=self.tokens[:kept])] if kept else list(prompt.chunks)
        return tinker.ModelInput(chunks=chunks), self.positions[self.positions - self.first < kept]

    def rows(self, positions: np.ndarray, prompt: tinker.ModelInput) -> np.ndarray:
        """Where the teacher's predictions of these positions are, among those of its tokens after the first."""
        return positions - self.first + prompt.length - 1


async def compute_sdft_advantages(
    data_D: list[tinker.Datum],
    metadata_D: Sequence[dict[str, int]],
    teacher_client: tinker.SamplingClient,
    teacher_prompts_P: Sequence[tinker.ModelInput],
    max_context_length: int = 32768,
) -> dict[str, float]:
    """Set advantages of sampled tokens to teacher logprob − student logprob, in place (no top-k)."""
    truncated = 0
    teacher_sum = student_sum = 0.0
    count = 0

    async def score(datum: tinker.Datum, group: int) -> tuple[np.ndarray, np.ndarray, int]:
        shown, prompt = _Continuation.of(datum), teacher_prompts_P[group]
        sequence, positions = shown.after(prompt, max_context_length)
        if not len(positions):
            return np.zeros(0), positions, len(shown.positions)
        logprobs = (await score_tokens(teacher_client, [sequence]))[0]
        return logprobs[shown.rows(positions, prompt)], positions, len(shown.positions)

    scored = await asyncio.gather(
        *(score(datum, row["group_idx"]) for datum, row in zip(data_D, metadata_D, strict=True))
    )
    for datum, (teacher, positions, total) in zip(data_D, scored, strict=True):
        truncated += len(positions) < total
        new = np.zeros(datum.model_input.length)
        student = array(datum, "logprobs")[positions]
        new[positions] = teacher - student
        add_to_advantages(datum, new - array(datum, "advantages"))
        teacher_sum += float(teacher.sum())
        student_sum += float(student.sum())
        count += len(positions)
    return {
        "sdft/num_datums": float(len(data_D)),
        "sdft/total_completion_tokens": float(count),
        "sdft/mean_teacher_lp": teacher_sum / max(count, 1),
        "sdft/mean_student_lp": student_sum / max(count, 1),
        "sdft/mean_advantage": (teacher_sum - student_sum) / max(count, 1),
        "sdft/teacher_truncated_count": float(truncated),
    }


async def build_topk_distillation_datums(
    data_D: list[tinker.Datum],
    metadata_D: Sequence[dict[str, int]],
    teacher_client: tinker.SamplingClient,
    teacher_prompts_P: Sequence[tinker.ModelInput],
    topk: int = 20,
    max_context_length: int = 32768,
    vocab_size: int | None = None,
    skip_first_n_tokens: int = 3,
) -> tuple[list[tinker.Datum], dict[str, float]]:
    """The student's sequences with the teacher's top-k as soft targets of shape (N, K), for cross_entropy.

    The first ``skip_first_n_tokens`` sampled tokens are left out: there the demonstration shows through most. Teacher
    tokens outside ``vocab_size`` are dropped. One datum for each of ``data_D``; where nothing is left to learn, its weights
    are 0.
    """

    async def build(datum: tinker.Datum, group: int) -> tuple[tinker.Datum, int, int]:
        shown, prompt = _Continuation.of(datum), teacher_prompts_P[group]
        sequence, positions = shown.after(prompt, max_context_length)
        rows_N: list[list[tuple[int, float]]] = [[] for _ in range(datum.model_input.length)]
        weights_N = np.zeros(datum.model_input.length)
        rows = await top_k_rows(teacher_client, sequence, topk) if len(positions) else []
        for number, (position, at) in enumerate(zip(positions, shown.rows(positions, prompt), strict=True)):
            found = rows[at] if at < len(rows) else []
            rows_N[position] = [(t, lp) for t, lp in found if vocab_size is None or t < vocab_size]
            weights_N[position] = float(number >= skip_first_n_tokens)
        data = soft_target_datum(datum.model_input, rows_N, weights_N, topk)
        return data, len(positions), len(shown.positions)

    built = await asyncio.gather(
        *(build(datum, row["group_idx"]) for datum, row in zip(data_D, metadata_D, strict=True))
    )
    truncated = sum(kept < total for _, kept, total in built)
    weights_D = [np.asarray(datum.loss_fn_inputs["weights"].to_numpy()) for datum, _, _ in built]
    entropies = [mean_entropy(weights) for weights in weights_D if weights.any()]
    metrics = {
        "sdft/num_datums": float(len(built)),
        "sdft/topk": float(topk),
        "sdft/total_completion_tokens": float(sum(kept for _, kept, _ in built)),
        "sdft/mean_teacher_entropy": float(np.mean(entropies)) if entropies else 0.0,
        "sdft/teacher_truncated_count": float(truncated),
    }
    return [datum for datum, _, _ in built], metrics


async def build_reverse_kl_datums(
    data_D: list[tinker.Datum],
    metadata_D: Sequence[dict[str, int]],
    teacher_client: tinker.SamplingClient,
    teacher_prompts_P: Sequence[tinker.ModelInput],
    topk: int = 20,
    max_context_length: int = 32768,
    vocab_size: int | None = None,
    skip_first_n_tokens: int = 3,
) -> tuple[list[tinker.Datum], dict[str, float]]:
    """The same data for ``reverse_kl_custom_loss``: their weights are the teacher's probabilities."""
    data, metrics = await build_topk_distillation_datums(
        data_D,
        metadata_D,
        teacher_client,
        teacher_prompts_P,
        topk,
        max_context_length,
        vocab_size,
        skip_first_n_tokens,
    )
    trained = sum(int((datum.loss_fn_inputs["weights"].to_numpy().sum(axis=1) > 0).sum()) for datum in data)
    return data, {**metrics, "sdft/total_completion_positions": float(trained)}


def reverse_kl_custom_loss(
    data: list[tinker.Datum], logprobs_list: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Σ over trained positions of KL(student ‖ teacher) on the teacher's top-k tokens, both renormalised there."""
    import torch

    total = torch.zeros(())
    entropy, positions = 0.0, 0
    for datum, logprobs in zip(data, logprobs_list, strict=True):
        weights = torch.as_tensor(np.asarray(datum.loss_fn_inputs["weights"].to_numpy(), dtype=np.float32))
        student = logprobs.reshape(weights.shape)
        rows = weights.sum(dim=1) > 0
        q = weights[rows] / weights[rows].sum(dim=1, keepdim=True)
        present = q > 0
        masked = student[rows].masked_fill(~present, -1e9)
        log_p = torch.log_softmax(masked, dim=1)
        log_q = torch.log(torch.where(present, q, torch.ones_like(q)))
        terms = torch.where(present, log_p.exp() * (log_p - log_q), torch.zeros_like(q))
        total = total + terms.sum()
        entropy -= float((log_p.exp() * log_p).detach()[present].sum())
        positions += int(rows.sum())
    value, count = float(total.detach()), max(positions, 1)
    return total, {
        "sdft/reverse_kl_loss": value,
        "sdft/reverse_kl_mean": value / count,
        "sdft/reverse_kl_positions": float(positions),
        "sdft/student_entropy_mean": entropy / count,
    }

"""Comparison of mathematical answers, and reading them out of texts."""

from __future__ import annotations

from tinker_cookbook.eval.benchmarks import grading
from tinker_cookbook.recipes.math_rl.math_env import safe_grade


def normalize_answer(answer: str | None) -> str | None:
    """An answer in a comparable form; None stays None."""
    return None if answer is None else grading.normalize_answer(answer)


def extract_boxed(text: str) -> str:
    r"""Content of the last ``\boxed{...}``.

    Raises:
        ValueError: there is none.
    """
    found = grading.extract_boxed(text)
    if found is None:
        raise ValueError(f"no \\boxed{{...}} in {text[-80:]!r}")
    return found


def grade_answer(given_answer: str, ground_truth: str) -> bool:
    """Whether two answers are equal: as texts, as numbers, or (with sympy) as expressions."""
    return grading.same_answer(given_answer, ground_truth)


def grade_answer_math_verify(given_answer: str, ground_truth: str) -> bool:
    """The same by the package math-verify."""
    return safe_grade(given_answer, ground_truth, "math_verify", timeout=5.0)

"""What a person can mend, said in one line: packages that are not installed, and what a server refuses."""

from __future__ import annotations

import sys
from types import TracebackType

import tinker

_EXTRAS = {
    "chz": "cookbook", "transformers": "cookbook", "jinja2": "cookbook", "huggingface_hub": "cookbook",
    "torch": "weights", "safetensors": "weights", "datasets": "recipes", "sympy": "recipes", "PIL": "images",
}  # fmt: skip
"""The extra of rock-tinker that brings a module."""


def missing_package(error: BaseException) -> str | None:
    """How to get the package that an import did not find; None when no extra brings it."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    return extra and f"{error.name} is not installed; pip install 'rock-tinker[{extra}]' brings it"


def refusal(error: tinker.TinkerError) -> str:
    """What the server said, without the form of its answer."""
    body = error.body if isinstance(error, tinker.APIStatusError) else None
    detail = body.get("detail") if isinstance(body, dict) else None
    return detail if isinstance(detail, str) else str(error)


def name_missing_packages() -> None:
    """A program that ends because a package is missing names the extra that brings it, in place of a traceback."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        message = missing_package(error)
        if message is None:
            before(kind, error, trace)
        else:
            print(f"refused: {message}", file=sys.stderr)

    sys.excepthook = hook

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
_PACKAGES = {
    "wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow", "inspect_ai": "inspect-ai", "fsspec": "fsspec",
    "rock": "rl-rock",
}  # fmt: skip
"""The package of a module that no extra brings."""
MISSING_PACKAGE_EXIT_CODE = 2


def missing_package(error: BaseException) -> str | None:
    """How to get the package that an import did not find, also where an error tells of it that was raised from that one;
    None when it is no package that this library asks for."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    if cause is None:
        return None
    module = (cause.name or "").partition(".")[0]
    if module in _EXTRAS:
        return f"{cause.name} is not installed; pip install 'rock-tinker[{_EXTRAS[module]}]' brings it"
    if module in _PACKAGES:
        return f"{cause.name} is not installed; pip install {_PACKAGES[module]} brings it"
    return None


def refusal(error: tinker.TinkerError) -> str:
    """What the server said, without the form of its answer."""
    body = error.body if isinstance(error, tinker.APIStatusError) else None
    detail = body.get("detail") if isinstance(body, dict) else None
    said = detail if isinstance(detail, str) else str(error)
    return f"{said}; set TINKER_API_KEY" if isinstance(error, tinker.AuthenticationError) else said


def name_missing_packages() -> None:
    """A program that ends because a package is missing names what brings it, in place of a traceback."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        message = missing_package(error)
        if message is None:
            before(kind, error, trace)
        else:
            print(f"refused: {message}", file=sys.stderr)
            sys.exit(MISSING_PACKAGE_EXIT_CODE)

    sys.excepthook = hook

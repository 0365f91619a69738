"""Distillation: a student learns from the distributions of teachers. The modules are loaded when they are asked for."""

import importlib
from types import ModuleType

__all__ = ["sdft", "train_off_policy", "train_on_policy"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

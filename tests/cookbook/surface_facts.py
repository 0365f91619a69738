"""Facts of the public surface of a cookbook: names, kinds, parameters and defaults, one name a line.

``python surface_facts.py`` prints those of the library on the path, in the form of ``data/facts.txt``::

    name: kind | parameter | parameter = default | *keyword_only = default

Texts are left out: a default or constant of several words is ``<text>``.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import tinker

ROOT = "tinker_cookbook"
LEFT_OUT = (
    "audio_processing_utils",
    "capture",
    "chat_app",
    "eval.benchmarks.",
    "eval.custom_",
    "eval.inspect_",
    "eval.run_inspect",
    "inference",
    "recipes",
    "renderers.kimi_k31_pro",
    "renderers.testing_utils",
    "renderers.tml_",
    "sandbox.modal_sandbox",
    "scripts",
    "third_party",
    "xmux",
)
"""Modules that the page of differences leaves out as a whole, and recipes, which have a list of their own."""

Facts = dict[str, dict[str, list[str]]]
HOMES = (".base", ".types", ".evaluators")
"""Ends of the names of modules that define what others import."""
SPECIAL = ("__call__", "__len__", "__iter__", "__enter__", "__aenter__")


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in SPECIAL


def is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).split(".")[0] == ROOT


def shown(value: Any) -> str:
    """A default or constant in one form for all libraries."""
    if isinstance(value, str) and (len(value) > 40 or len(value.split()) > 1 or "://" in value):
        return "<text>"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isfunction(value):
        return "<function>"
    if inspect.isclass(value):
        return f"<{value.__name__}>"
    if type(value) is object:
        return "<sentinel>"
    if is_missing(value) or type(value).__name__ in ("Factory", "_HAS_DEFAULT_FACTORY_CLASS"):
        return "<factory>"
    if dataclasses.is_dataclass(value) and value == type(value)():
        return f"{type(value).__name__}()"
    return re.sub(r"\b[\w.]+\.(\w+\()", r"\1", re.sub(r" at 0x[0-9a-f]+", "", repr(value))).replace(" | ", "|")


def is_missing(value: Any) -> bool:
    return type(value).__name__.strip("_").startswith("MISSING")


def parameters_of(function: Any, bound: bool) -> list[str]:
    """Parameters in order, without the first if it is bound."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[int(bound) :]
    except (TypeError, ValueError):
        return []
    marks = {"KEYWORD_ONLY": "*", "VAR_POSITIONAL": "args ", "VAR_KEYWORD": "kwargs "}
    return [
        marks.get(p.kind.name, "") + p.name + ("" if p.default is p.empty else f" = {shown(p.default)}")
        for p in parameters
    ]


def kind_of_call(function: Any, noun: str) -> str:
    inner = inspect.unwrap(function)
    if inspect.isasyncgenfunction(inner):
        return f"async iterator {noun}"
    return f"async {noun}" if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inner) else noun


def fields_of(cls: type) -> list[str] | None:
    """Fields of a record; those that are given by name alone have the mark. None for another class."""
    chz = getattr(cls, "__chz_fields__", None)
    defaults: dict[str, Any] = {}
    if isinstance(chz, dict):
        for name, field in chz.items():
            made = not is_missing(field._default_factory) and field._default_factory is not None
            defaults[name] = "<factory>" if made else None if is_missing(field._default) else shown(field._default)
    elif hasattr(cls, "__required_keys__"):
        hints = typing.get_type_hints(cls, include_extras=True)
        optional = {n for n, h in hints.items() if typing.get_origin(h) is typing.NotRequired}
        optional |= set(hints) - set(cls.__required_keys__)
        defaults = {name: "<optional>" if name in optional else None for name in hints}
    elif isinstance(models := getattr(cls, "model_fields", None), dict):
        for name, field in models.items():
            default = "<factory>" if field.default_factory else shown(field.default)
            defaults[name] = None if field.is_required() else default
    elif dataclasses.is_dataclass(cls) or issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return [text for text in parameters_of(cls, False) if is_public(text)]
    else:
        return None
    return [f"*{name}" + ("" if default is None else f" = {default}") for name, default in defaults.items()]


def facts_of_member(value: Any) -> list[str] | None:
    if isinstance(value, property) or type(value).__name__ in ("cached_property", "init_property"):
        return ["property"]
    if isinstance(value, staticmethod):
        return [kind_of_call(value.__func__, "static method"), *parameters_of(value.__func__, False)]
    if isinstance(value, classmethod):
        return [kind_of_call(value.__func__, "class method"), *parameters_of(value.__func__, True)]
    if inspect.isfunction(value):
        return [kind_of_call(value, "method"), *parameters_of(value, True)]
    if inspect.isclass(value):
        return None
    simple = isinstance(value, int | float | str | bool | None)
    return ["attribute", *([shown(value)] if simple else [])]


def facts_of_class(name: str, cls: type) -> dict[str, list[str]]:
    bases = [c.__name__ for c in cls.__mro__[1:] if is_ours(c) or issubclass(c, Exception) and c is not Exception]
    facts = {name: ["class", *sorted(base for base in bases if is_public(base))]}
    if issubclass(cls, enum.Enum):
        return facts | {f"{name}.{member.name}": ["member", shown(member.value)] for member in cls}
    fields = fields_of(cls)
    if fields:
        facts[f"{name}()"] = ["fields", *fields]
    elif fields is None and inspect.isfunction(cls.__init__) and not getattr(cls, "_is_protocol", False):
        parameters = parameters_of(cls.__init__, True)
        if parameters and not issubclass(cls, Exception):
            facts[f"{name}()"] = ["init", *parameters]
    known = {re.sub(r"^\*| = .*", "", field) for field in fields or ()}
    for owner in (c for c in cls.__mro__ if is_ours(c)):
        for member in [*vars(owner), *getattr(owner, "__annotations__", {})]:
            if not is_public(member) or member in known:
                continue
            known.add(member)
            found = facts_of_member(inspect.getattr_static(cls, member, ...))
            if found is not None:
                facts[f"{name}.{member}"] = found
    return facts


def facts_of_module(module: ModuleType, everything: bool) -> dict[str, list[str]]:
    """``everything`` describes what is imported as well as what is defined here."""
    facts: dict[str, list[str]] = {}
    exported = set(getattr(module, "__all__", ()))
    for name in sorted(set(dir(module)) | exported):
        value = getattr(module, name)
        if name.startswith("_") or name in ("annotations", "logger", "TYPE_CHECKING") or inspect.ismodule(value):
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            private = any(part.startswith("_") for part in value.__module__.split("."))
            here = (
                value.__module__ == module.__name__
                or is_ours(value)
                and (everything or private and hasattr(module, "__path__"))
            )
            if here and inspect.isclass(value):
                facts |= facts_of_class(name, value)
            elif here:
                facts[name] = [kind_of_call(value, "function"), *parameters_of(value, False)]
            elif is_ours(value) and (name in exported or hasattr(module, "__path__")):
                facts[name] = ["name"]
        elif isinstance(value, int | float | str | bool):
            facts[name] = ["constant", shown(value)]
        elif hasattr(tinker, name) or hasattr(tinker.types, name):
            continue
        elif everything or name in exported or name.isupper() and len(name) > 1 or typing.get_origin(value) is not None:
            facts[name] = ["name"]
    return facts


def modules() -> Iterator[str]:
    """Short names of the public modules."""
    root = importlib.import_module(ROOT)
    for info in pkgutil.walk_packages(root.__path__, f"{ROOT}.", onerror=lambda _: None):
        short = info.name.removeprefix(f"{ROOT}.")
        private = any(part.startswith("_") for part in short.split("."))
        if not private and not short.startswith(LEFT_OUT) and not short.endswith(("_test", "conftest")):
            yield short


def concise(facts: Facts) -> Facts:
    """Without members that are the base class's own, and without aliases and constants that a module imports."""
    classes = {n: (m, f[1:]) for m, found in facts.items() for n, f in found.items() if f[0] == "class"}
    out: Facts = {}
    for module, found in facts.items():
        out[module] = {}
        for key, parts in found.items():
            owner, _, member = key.partition(".")
            bases = classes.get(owner, ("", []))[1]
            inherited = any(facts[classes[b][0]].get(f"{b}.{member}") == parts for b in bases if b in classes)
            homes = [m for m, other in facts.items() if other.get(key) == parts and m.endswith(HOMES)]
            imported = parts[0] in ("name", "constant") and homes and module not in homes and "." in module
            if not inherited and not imported:
                out[module][key] = parts
    return out


def read(path: Path) -> Facts:
    """Facts of a file."""
    out: Facts = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            module = out.setdefault(line[3:], {})
        elif line:
            key, _, rest = line.partition(": ")
            module[key] = rest.split(" | ")
    return out


def parameter(text: str) -> tuple[str, str, str | None]:
    """Mark, name and default."""
    name, equals, default = text.partition(" = ")
    mark = next((mark for mark in ("*", "args ", "kwargs ") if name.startswith(mark)), "")
    return mark, name.removeprefix(mark), default if equals else None


def missing_parameters(theirs: list[str], mine: list[str]) -> Iterator[str]:
    have = {parameter(text)[1] for text in mine}
    marks = {parameter(text)[0] for text in mine}
    passes_on = {"args ", "kwargs "} <= {parameter(text)[0] for text in theirs}
    for mark, name, _ in map(parameter, theirs):
        if mark in ("args ", "kwargs "):
            if mark not in marks and not passes_on and len(mine) < len(theirs):
                yield name
        elif name not in have:
            yield name


def changed_parameters(theirs: list[str], mine: list[str]) -> Iterator[str]:
    """Parameters with which a call would fail here or mean something else."""
    have = {parameter(text)[1]: (place, *parameter(text)) for place, text in enumerate(mine)}
    for place, (mark, name, default) in enumerate(map(parameter, theirs)):
        if name in have and mark not in ("args ", "kwargs "):
            at, my_mark, _, my_default = have[name]
            moved = mark == "" and (my_mark != "" or at != place)
            same = default in (my_default, None) or default == "<sentinel>" and my_default is not None
            if moved or not same:
                yield name
    known = {parameter(text)[1] for text in theirs}
    yield from (n for n, (_, m, _, default) in have.items() if n not in known and default is None and m in ("", "*"))


def compare(theirs: Facts, mine: Facts) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(module, name) of what is not there, and of what is there in another way."""
    missing: set[tuple[str, str]] = set()
    changed: set[tuple[str, str]] = set()
    for module, facts in theirs.items():
        for key, (kind, *rest) in facts.items():
            owner = re.split(r"[.(]", key)[0]
            got = mine[module].get(key)
            if got is None:
                missing |= {(module, owner if owner not in mine[module] else key)}
            elif kind == "class" == got[0]:
                changed |= {(module, f"{key}({base})") for base in set(rest) - set(got[1:])}
            elif {kind, got[0]} & {"name", "attribute", "constant", "member"}:
                values = kind in ("attribute", "constant", "member") and bool(rest) and bool(got[1:])
                if values and rest != got[1:] or "async method" in got[0]:
                    changed.add((module, key))
            else:
                if kind != got[0] and not {kind, got[0]} <= {"init", "fields"}:
                    changed.add((module, key))
                form = f"{owner}.{{}}" if kind == "fields" else f"{key.removesuffix('()')}({{}})"
                missing |= {(module, form.format(name)) for name in missing_parameters(rest, got[1:])}
                changed |= {(module, form.format(name)) for name in changed_parameters(rest, got[1:])}
    return missing, changed


def facts_here(names: typing.Iterable[str]) -> Facts:
    """Facts of these modules of the library on the path, with everything that they import."""
    return {name: facts_of_module(importlib.import_module(f"{ROOT}.{name}"), True) for name in names}


if __name__ == "__main__":
    found = concise({name: facts_of_module(importlib.import_module(f"{ROOT}.{name}"), False) for name in modules()})
    for module_name, rows in found.items():
        print(f"## {module_name}", *(f"{key}: {' | '.join(parts)}" for key, parts in rows.items()), sep="\n")

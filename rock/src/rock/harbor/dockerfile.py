"""Reads Dockerfiles into steps. Only what a local sandbox can do is accepted; the rest is refused by name and line."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

IGNORED = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL"})
DEFAULT_SHELL = ("/bin/sh", "-c")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?::([-+])((?:[^{}]|\$\{[^{}]*\})*))?\})")
_DOLLAR = "\x00"
_HEREDOC = re.compile(r"<<-?(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")


class DockerfileError(ValueError):
    """A Dockerfile cannot be read or asks for something that a local sandbox cannot do."""


@dataclass(frozen=True)
class Context:
    """State between instructions: what RUN sees, and in the end what commands of the task see."""

    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    shell: tuple[str, ...] = DEFAULT_SHELL


@dataclass(frozen=True)
class CopyStep:
    """COPY or ADD of files of the build folder."""

    sources: tuple[str, ...]
    target: str
    unpack: bool
    mode: int | None
    owner: str
    context: Context
    line: int


@dataclass(frozen=True)
class RunStep:
    """RUN: a shell script, or a program with its arguments."""

    command: str | tuple[str, ...]
    context: Context
    line: int


@dataclass(frozen=True)
class FolderStep:
    """WORKDIR or VOLUME: a folder that must exist."""

    path: str
    context: Context
    line: int


Step = CopyStep | RunStep | FolderStep


@dataclass(frozen=True)
class Dockerfile:
    """A read Dockerfile: the image it starts from, its steps, and the state at its end."""

    image: str
    steps: tuple[Step, ...]
    final: Context


def read_dockerfile(
    path: Path, build_args: dict[str, str] | None = None, base_env: dict[str, str] | None = None
) -> Dockerfile:
    """Reads a Dockerfile with one stage.

    Args:
        build_args: values for ARG instructions.
        base_env: environment of the base image, for substitutions such as ``$PATH``.

    Raises:
        DockerfileError: it cannot be read, or names what is not supported, with line and instruction.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DockerfileError(f"{path} cannot be read: {error}") from error
    return _Reader(path, dict(build_args or {}), dict(base_env or {})).read(text)


def copy_sources(step: CopyStep, folder: Path) -> list[Path]:
    """Files and folders of the build folder that a COPY names.

    Raises:
        DockerfileError: a source does not exist or lies outside.
    """
    found: list[Path] = []
    for pattern in step.sources:
        relative = os.path.normpath(pattern.lstrip("/"))
        if relative.startswith(".."):
            raise DockerfileError(f"line {step.line}: COPY source {pattern!r} lies outside the build folder")
        matches = sorted(folder.glob(relative)) if relative != "." else [folder]
        if not matches:
            raise DockerfileError(f"line {step.line}: COPY source {pattern!r} does not exist in {folder}")
        found += matches
    return found


class _Reader:
    def __init__(self, path: Path, build_args: dict[str, str], base_env: dict[str, str]) -> None:
        self._path = path
        self._build_args = build_args
        self._context = Context(env=base_env)
        self._image = ""
        self._steps: list[Step] = []
        self._line = 0

    def read(self, text: str) -> Dockerfile:
        for line, word, rest, heredocs in _instructions(text):
            self._line = line
            if word in IGNORED:
                continue
            handler = getattr(self, f"_on_{word.lower()}", None)
            if handler is None:
                self._refuse(f"instruction {word} is not supported by local sandboxes")
            if not self._image and word not in ("FROM", "ARG"):
                self._refuse(f"{word} stands before FROM")
            if heredocs and word != "RUN":
                self._refuse(f"here-documents are supported in RUN only, not in {word}")
            handler(rest + heredocs if word == "RUN" else rest)
        if not self._image:
            self._line = 0
            self._refuse("it has no FROM")
        return Dockerfile(self._image, tuple(self._steps), self._context)

    def _refuse(self, problem: str) -> NoReturn:
        where = f"{self._path}, line {self._line}" if self._line else str(self._path)
        raise DockerfileError(f"{where}: {problem}")

    # --- instructions -----------------------------------------------------------------------------------------------

    def _on_from(self, rest: str) -> None:
        if self._image:
            self._refuse("a second FROM (several build stages) is not supported by local sandboxes")
        words = [
            word for word in self._substitute(rest, {**self._context.args}).split() if not word.startswith("--platform")
        ]
        if not words or (len(words) > 1 and (len(words) != 3 or words[1].lower() != "as")):
            self._refuse(f"FROM {rest!r} is not of the form FROM image [AS name]")
        self._image = words[0]
        self._context = replace(self._context, args={})

    def _on_arg(self, rest: str) -> None:
        for word in self._words(rest):
            name, equals, value = word.partition("=")
            if name in self._build_args:
                value = self._build_args[name]
            elif not equals:
                continue
            self._context = replace(self._context, args={**self._context.args, name: self._substitute(value)})

    def _on_env(self, rest: str) -> None:
        words = self._words(rest)
        if words and "=" not in words[0]:
            name, _, value = rest.partition(" ")
            words = [f"{name}={value.strip()}"]
        before = self._context
        env = dict(before.env)
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
                self._refuse(f"ENV {word!r} is not of the form NAME=value")
            env[name] = self._substitute(value)
        self._context = replace(before, env=env)

    def _on_workdir(self, rest: str) -> None:
        path = self._substitute(rest.strip().strip("\"'"))
        if not path:
            self._refuse("WORKDIR names no folder")
        path = str(Path(self._context.workdir) / path)
        self._context = replace(self._context, workdir=path)
        self._steps.append(FolderStep(path, self._context, self._line))

    def _on_volume(self, rest: str) -> None:
        paths = json.loads(rest) if rest.lstrip().startswith("[") else self._words(rest)
        for path in paths:
            self._steps.append(FolderStep(self._substitute(path), self._context, self._line))

    def _on_user(self, rest: str) -> None:
        self._context = replace(self._context, user=self._substitute(rest.strip()))

    def _on_shell(self, rest: str) -> None:
        words = self._json_words(rest)
        if not words:
            self._refuse('SHELL must be a list such as ["/bin/bash", "-c"]')
        self._context = replace(self._context, shell=tuple(words))

    def _on_run(self, rest: str) -> None:
        while rest.startswith("--"):
            option, _, rest = rest.partition(" ")
            rest = rest.lstrip()
            if not option.startswith(("--mount=type=cache", "--mount=type=tmpfs", "--network=")):
                self._refuse(f"RUN {option} is not supported by local sandboxes")
        words = self._json_words(rest)
        self._steps.append(RunStep(tuple(words) if words else rest, self._context, self._line))

    def _on_copy(self, rest: str) -> None:
        self._copy(rest, unpack=False)

    def _on_add(self, rest: str) -> None:
        self._copy(rest, unpack=True)

    def _copy(self, rest: str, *, unpack: bool) -> None:
        mode, owner = None, ""
        while rest.startswith("--"):
            option, _, rest = rest.partition(" ")
            rest = rest.lstrip()
            name, _, value = option.partition("=")
            if name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
                mode = int(value, 8)
            elif name == "--chown":
                owner = self._substitute(value)
            elif name != "--link":
                self._refuse(f"option {option} of COPY or ADD is not supported by local sandboxes")
        words = [self._substitute(word) for word in self._json_words(rest) or self._words(rest)]
        if len(words) < 2:
            self._refuse("COPY and ADD need at least one source and a target")
        for source in words[:-1]:
            if re.match(r"[a-z][a-z0-9+.-]*://|git@", source):
                self._refuse(f"source {source!r} is an address; only files of the build folder can be copied")
        target = words[-1]
        absolute = str(Path(self._context.workdir) / target) + (
            "/" if target.endswith(("/", "/.")) or target == "." else ""
        )
        self._steps.append(CopyStep(tuple(words[:-1]), absolute, unpack, mode, owner, self._context, self._line))

    # --- words ------------------------------------------------------------------------------------------------------

    def _substitute(self, text: str, names: dict[str, str] | None = None) -> str:
        known = names if names is not None else {**self._context.args, **self._context.env}

        def value(match: re.Match[str]) -> str:
            escaped, plain, braced, sign, other = match.groups()
            if escaped is not None:
                return "$" if escaped == "$" else match.group(0)
            found = known.get(plain or braced, "")
            if sign == "-":
                return found or self._substitute(other, known)
            if sign == "+":
                return self._substitute(other, known) if found else ""
            return found

        return _VARIABLE.sub(value, text)

    def _words(self, text: str) -> list[str]:
        """Words without their quotes. An escaped dollar sign stays escaped, for the substitution that follows."""
        try:
            return [word.replace(_DOLLAR, "\\$") for word in shlex.split(text.replace("\\$", _DOLLAR))]
        except ValueError as error:
            self._refuse(f"{text!r} has unbalanced quotes ({error})")

    def _json_words(self, text: str) -> list[str] | None:
        if not text.lstrip().startswith("["):
            return None
        try:
            words = json.loads(text)
        except ValueError:
            return None
        return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _instructions(text: str) -> list[tuple[int, str, str, str]]:
    """(line, instruction, arguments, here-documents) of each instruction, with continuation lines joined."""
    lines = text.splitlines()
    escape = "\\"
    for line in lines:
        directive = re.fullmatch(r"#\s*(\w+)\s*=\s*(\S+)\s*", line)
        if not directive:
            break
        if directive.group(1).lower() == "escape":
            escape = directive.group(2)
    found: list[tuple[int, str, str, str]] = []
    position = 0
    while position < len(lines):
        start = position
        parts: list[str] = []
        while position < len(lines):
            line = lines[position]
            position += 1
            if line.lstrip().startswith("#") or (parts and not line.strip()):
                continue
            stripped = line.rstrip()
            if stripped.endswith(escape):
                parts.append(stripped[: -len(escape)] + " ")
                continue
            parts.append(line)
            break
        whole = "".join(parts).strip()
        if not whole:
            continue
        word, _, rest = whole.partition(" ")
        heredocs = ""
        for mark in _HEREDOC.findall(rest) if word.upper() in ("RUN", "COPY", "ADD") else []:
            while position < len(lines):
                line = lines[position]
                position += 1
                heredocs += "\n" + line
                if line.strip() == mark[1]:
                    break
        found.append((start + 1, word.upper(), rest.strip(), heredocs))
    return found

"""Bodies of `/run_code`, in SandboxFusion's shape."""

from __future__ import annotations

import base64
import binascii
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _content(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a file's content must be base64: {error}") from error
    return text


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"file name {name!r} must lie below the run's folder: use a relative path without '..'")
    return name


FileName = Annotated[str, AfterValidator(_inside)]
FileContent = Annotated[str, AfterValidator(_content)]


class RunCode(BaseModel):
    """A program to be run once.

    Args:
        run_timeout: seconds.
        memory_limit_MB: address space of the program; -1: the sandbox's memory alone bounds it.
        files: name -> base64, written into the folder that the program runs in.
        fetch_files: names to return after the run.
    """

    model_config = ConfigDict(extra="ignore")

    code: str
    language: Literal["python", "bash"] = "python"
    run_timeout: float = Field(default=10, gt=0, le=3600)
    compile_timeout: float = Field(default=10, gt=0)
    memory_limit_MB: int = Field(default=-1, ge=-1)
    stdin: str | None = None
    files: dict[FileName, FileContent] = {}
    fetch_files: list[FileName] = []


class RunResult(BaseModel):
    """What the program did."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float
    return_code: int | None = None
    stdout: str = ""
    stderr: str = ""


class RunAnswer(BaseModel):
    """Success: exit code 0. Failed: another one, or too slow. SandboxError: it could not be run."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: None = None
    run_result: RunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}

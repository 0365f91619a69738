"""Bodies of the rocklet's routes; the admin's routes take the same ones plus `sandbox_id`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_TIMEOUT_SECONDS = 1200.0


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Command(_Body):
    """One command. A string runs in bash (sh where there is none), a list without a shell."""

    command: str | list[str]
    timeout: float | None = Field(default=DEFAULT_TIMEOUT_SECONDS, ge=0, allow_inf_nan=False)
    env: dict[str, str] | None = None
    cwd: str | None = None
    user: str | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    stdin: str | None = None


class CommandResponse(_Body):
    """Outcome of a command. Streams above the limit are cut in the middle; the files then hold them whole."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    stdout_file: str | None = None
    stderr_file: str | None = None


class JobStart(Command):
    """A long command.

    Args:
        output_file: path inside that gets both streams; None: a file of the rocklet's own.
        session: runs it in a background subshell of that session (its folder, variables, functions).
    """

    output_file: str | None = None
    session: str | None = None


class JobStatus(_Body):
    """State of a long command. `output` holds what was written from `offset` on, `next_offset` where to go on."""

    job_id: str
    pid: int
    running: bool
    exit_code: int | None = None
    timed_out: bool = False
    output_file: str = ""
    output: str = ""
    next_offset: int = 0


class JobPoll(_Body):
    """Waits up to `wait` seconds (at most 60) for the end of a job or for output beyond `offset`."""

    job_id: str
    wait: float = Field(default=30.0, ge=0, le=60)
    offset: int | None = None
    max_bytes: int = 1 << 20
    until: Literal["end", "output"] = "end"


class JobRef(_Body):
    job_id: str


class CreateSession(_Body):
    session_type: str = "bash"
    session: str = "default"
    startup_source: list[str] = []
    env_enable: bool = False
    env: dict[str, str] | None = None
    remote_user: str | None = None
    cwd: str | None = None
    startup_timeout: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    max_read_size: int = 2000


class CloseSession(_Body):
    session_type: str = "bash"
    session: str = "default"


class BashAction(_Body):
    """A command line for a session.

    Args:
        check: "raise" (an exit code other than 0 is an error), "silent" or "ignore".
        is_interactive_command: types the text into whatever runs in the session and waits for one of `expect`.
        is_interactive_quit: types the text and waits until the session's shell is back.
    """

    action_type: str = "bash"
    command: str = ""
    session: str = "default"
    timeout: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    check: Literal["raise", "silent", "ignore"] = "raise"
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    error_msg: str = ""
    expect: list[str] = []


class BashObservation(_Body):
    output: str = ""
    exit_code: int | None = None
    failure_reason: str = ""
    expect_string: str = ""
    session_type: str = "bash"
    output_file: str | None = None


class Interrupt(_Body):
    """Ctrl-C in a session; after `grace` seconds without effect the running processes are killed."""

    session: str = "default"
    grace: float = Field(default=2.0, ge=0, le=60)


class ReadFile(_Body):
    path: str
    encoding: str | None = None
    errors: str | None = None


class WriteFile(_Body):
    path: str
    content: str
    mode: int | None = None


class PathRef(_Body):
    path: str

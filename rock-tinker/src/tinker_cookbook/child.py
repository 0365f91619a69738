"""A child process that never outlives its parent: own process group, ended with the parent even after kill -9."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


class Child:
    """A running child in a session of its own, so that a Ctrl-C at the terminal reaches it only through `stop`.

    Args:
        command: program and arguments.
        output: where standard output and error go: a file, or subprocess.PIPE for `stdout`.

    Must be made in the main thread: the kernel ties the child to the thread that started it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: Path | int,
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = Path(command[0]).name
        with contextlib.ExitStack() as stack:
            stream: int | IO[bytes] = stack.enter_context(output.open("ab")) if isinstance(output, Path) else output
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes]:
        """Its output, when it was started with `output=subprocess.PIPE`."""
        assert self._process.stdout is not None
        return self._process.stdout

    def exit_code(self) -> int | None:
        """Its exit code, None while it runs; negative after a signal."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Sends a signal to the child itself."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Waits for its end; None when it still runs afterwards."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, patience: float) -> int:
        """SIGTERM, then after `patience` seconds SIGKILL; what is left of its group is killed as well.

        Returns:
            Its exit code.
        """
        self.signal(signal.SIGTERM)
        if self.wait(patience) is None:
            log.warning("%s did not end within %g s of SIGTERM; killing it", self.name, patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

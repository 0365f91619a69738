"""A folder of one vLLM engine: its sockets, its temporary files, and a note of its shared memory."""

from __future__ import annotations

import getpass
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinker_backend.runtime.ray.leftovers import note_memory
from tinker_backend.runtime.ray.own_folder import OwnFolder, remove_abandoned

_PARENT, _STEM = Path("/tmp"), "tinker-vllm"
"""Short: with the name of a socket in it, a path must not be longer than 107 bytes."""
_NOTE_SECONDS = 1.0


class EngineFolder:
    """The processes that this one starts from now on have their sockets and temporary files in ``path``."""

    def __init__(self) -> None:
        self._own = OwnFolder(_PARENT, _STEM)
        self.path = self._own.path
        # Compiled kernels are worth keeping; torch looks for them in the temporary folder.
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        os.environ["TMPDIR"] = os.environ["VLLM_RPC_BASE_PATH"] = str(self.path)
        tempfile.tempdir = None  # read the variable again

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Notes, again and again, what shared memory the engine makes while it starts."""
        done = threading.Event()

        def note() -> None:
            while not done.wait(_NOTE_SECONDS):
                note_memory(self.path, os.getpid())

        thread = threading.Thread(target=note, name="note-memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            note_memory(self.path, os.getpid())

    def remove(self) -> None:
        """Removes the folder and the shared memory."""
        self._own.remove()


def remove_folders_of_dead_engines() -> None:
    """Removes what engines of this machine left that were killed."""
    remove_abandoned(_PARENT, _STEM)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())

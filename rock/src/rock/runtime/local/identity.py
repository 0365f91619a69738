"""Which user ids a sandbox gets: a range of its own (root), the caller's range (nested) or the caller alone."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

FIRST_ID = 0x40000000
RANGE = 65536
SLOTS = 8192
_LOCKS = Path("/run/lock/rock-ids")


@dataclass(frozen=True)
class Identity:
    """Mapping of the sandbox's ids 0..count-1 to `base`..base+count-1 of the keeper's user namespace.

    `mapped_mounts`: folders of the outside are shown with shifted owners (needs root of the machine).
    """

    base: int
    count: int
    mapped_mounts: bool

    def write(self, pid: int) -> None:
        """Gives the fresh user namespace of process `pid` its maps."""
        folder = Path(f"/proc/{pid}")
        if self.count == 1:
            (folder / "setgroups").write_text("deny")
        group = self.base if self.count > 1 else os.getegid()
        (folder / "uid_map").write_text(f"0 {self.base} {self.count}\n")
        (folder / "gid_map").write_text(f"0 {group} {self.count}\n")


def initial_user_namespace() -> bool:
    """True where our ids are the machine's own (no user namespace around us)."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def choose_identity() -> tuple[Identity, int | None]:
    """Returns the identity and the descriptor of the lock that reserves its range (None if none is needed)."""
    if os.geteuid() != 0:
        return Identity(os.geteuid(), 1, False), None
    if not initial_user_namespace():
        ids = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        count = max((int(length) for inside, _, length in ids if inside == "0"), default=1)
        return Identity(0, count, False), None
    _LOCKS.mkdir(parents=True, exist_ok=True)
    _LOCKS.chmod(0o700)
    start = os.getpid()
    for offset in range(SLOTS):
        slot = (start + offset) % SLOTS
        lock = os.open(_LOCKS / str(slot), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return Identity(FIRST_ID + slot * RANGE, RANGE, True), lock
    raise OSError(f"all {SLOTS} id ranges are taken by running sandboxes; stop some")

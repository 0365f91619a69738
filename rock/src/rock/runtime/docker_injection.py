"""What a container needs so that the machine's Python runs our rocklet in it, whatever its image holds.

The interpreter, its packages and ours are bind-mounted read-only at their own paths. The shared libraries that
extension modules want (OpenSSL, libffi, zlib, ...) come along in one folder, so the image needs only a C library that
is not older than the machine's.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import rock

_C_LIBRARY = re.compile(
    r"^(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libnsl|libnss_|linux-vdso|libcrypt)\b"
)
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)")
_EXTENSIONS = (
    "_ssl",
    "_hashlib",
    "_ctypes",
    "zlib",
    "_bz2",
    "_lzma",
    "_uuid",
    "pyexpat",
    "_decimal",
    "_socket",
    "termios",
)


@dataclass(frozen=True)
class Injection:
    """Folders to mount read-only at the same path, and the library folder."""

    folders: tuple[str, ...]
    libraries: str
    python: str

    def environment(self) -> dict[str, str]:
        """Variables for the rocklet alone; it removes them before it runs commands."""
        return {"LD_LIBRARY_PATH": self.libraries, "PYTHONPATH": str(Path(rock.__file__).parent.parent)}


def prepare_injection(folder: Path) -> Injection:
    """Finds what the present Python consists of and gathers its libraries in `folder`/lib."""
    libraries = folder / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    for source in needed_libraries():
        target = libraries / Path(source).name
        if not target.exists():
            shutil.copyfile(source, target)
            target.chmod(0o755)
    package = str(Path(rock.__file__).parent.parent)
    roots = {os.path.realpath(sys.base_prefix), sys.base_prefix, sys.prefix, package, str(libraries)}
    roots |= {path for path in sysconfig.get_paths().values() if os.path.isdir(path)}
    # The system's Python has /usr as its prefix: mounting that would hide the image. Its parts are mounted singly.
    if sys.base_prefix == "/usr":
        roots -= {"/usr", "/usr/bin", "/usr/include"}
        roots |= {os.path.realpath(sys.executable), sysconfig.get_paths()["stdlib"], "/usr/lib/python3"}
    roots = {root for root in roots if os.path.exists(root) and root not in ("/", "/usr", "/usr/bin", "/usr/lib")}
    kept = [
        root for root in sorted(roots) if not any(root != other and root.startswith(other + "/") for other in roots)
    ]
    python = os.path.realpath(sys.executable) if sys.base_prefix == "/usr" else sys.executable
    return Injection(tuple(kept), str(libraries), python)


def needed_libraries() -> set[str]:
    """Shared libraries of the interpreter and of the extension modules that a rocklet imports."""
    files = {os.path.realpath(sys.executable)}
    for name in _EXTENSIONS:
        module = importlib.import_module(name)
        origin = getattr(module, "__file__", None)
        if origin:
            files.add(origin)
    found: set[str] = set()
    for file in files:
        listing = subprocess.run(["ldd", file], capture_output=True, text=True, timeout=30)
        for line in listing.stdout.splitlines():
            match = _NEEDED.match(line)
            if match and not _C_LIBRARY.match(match.group(1)):
                found.add(match.group(2))
    return found

"""A copy of the running Python in a folder of its own, for places where its usual prefix means another Python.

An image has a /usr and often a /usr/local of its own: mounting the machine's there would hide the image's Python and packages.
The copy needs nothing but a C library that is not older than this machine's::

    HOME/bin/python     starts it; programs that it starts see the LD_LIBRARY_PATH of its caller, not its own
    HOME/python/        interpreter, standard library, packages in site-packages
    HOME/lib/           shared libraries of the interpreter and its extension modules

``python -m rock.runtime.own_python HOME [--packages FOLDER]`` makes one by hand.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Prefixes that images have themselves.
SHARED_PREFIXES = ("/", "/usr", "/usr/local")
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
    "_sqlite3",
    "termios",
)
_NOT_NEEDED = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "turtledemo", "ensurepip", "config-*", "*.a"
)
# The loader reads LD_LIBRARY_PATH when the program starts; programs that it starts in turn shall not see ours. Debian's Python
# looks for packages in other folders than site-packages.
_SITE = """import os, site, sys
packages = os.path.join(os.path.dirname(__file__), "site-packages")
if packages not in sys.path:
    site.addsitedir(packages)
given = os.environ.pop("OWN_PYTHON_LIBRARY_PATH", "")
if given:
    os.environ["LD_LIBRARY_PATH"] = given
else:
    os.environ.pop("LD_LIBRARY_PATH", None)
"""
_START = """#!/bin/sh
export OWN_PYTHON_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" LD_LIBRARY_PATH=HOME/lib
exec HOME/python/bin/VERSION "$@"
"""


def version_name() -> str:
    """``python3.X`` of the running Python."""
    return f"python3.{sys.version_info.minor}"


def is_shared(prefix: str) -> bool:
    """Whether images have folders of their own at this prefix."""
    return os.path.realpath(prefix) in SHARED_PREFIXES


def copy_python(home: Path) -> Path:
    """Copies interpreter, standard library and libraries to `home`, without packages. Returns the folder for packages, which may
    have been filled before."""
    base = Path(sys.base_prefix)
    version = version_name()
    library = home / "python" / "lib" / version
    for name in dict.fromkeys(["lib", sys.platlibdir]):  # some systems keep extension modules in lib64
        source = base / name / version
        if source.is_dir():
            shutil.copytree(
                source,
                library,
                symlinks=False,
                ignore_dangling_symlinks=True,
                dirs_exist_ok=True,
                ignore=lambda at, names: {*_NOT_NEEDED(at, names), *_packages(names)},
            )
    (home / "python" / "bin").mkdir(parents=True, exist_ok=True)
    program = home / "python" / "bin" / version
    shutil.copy2(os.path.realpath(sys.executable), program)
    program.chmod(0o755)
    (home / "lib").mkdir(exist_ok=True)
    for file in needed_libraries():
        shutil.copy2(file, home / "lib" / Path(file).name)
    site = library / "site-packages"
    site.mkdir(exist_ok=True)
    return site


def make_own_python(home: Path, packages: Path | None = None, at: str | None = None) -> Path:
    """A complete copy with ``bin/python``. Returns that program.

    Args:
        packages: folder of installed packages that are copied into it.
        at: the folder that it will be used from; None: `home`.
    """
    home.mkdir(parents=True, exist_ok=True)
    site = copy_python(home)
    if packages is not None:
        shutil.copytree(packages, site, symlinks=True, dirs_exist_ok=True)
    write_site(home)
    return write_start(home / "bin" / "python", at or str(home.absolute()))


def write_site(home: Path, more: str = "") -> None:
    """Writes the ``sitecustomize`` of the copy at `home`: into the standard library, where a distribution may have put its own."""
    place = home / "python" / "lib" / version_name() / "sitecustomize.py"
    place.unlink(missing_ok=True)
    place.write_text(f"{_SITE}{more}")


def write_start(path: Path, home: str) -> Path:
    """The script that starts the Python at `home`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_START.replace("HOME", home).replace("VERSION", version_name()))
    path.chmod(0o755)
    return path


def needed_libraries() -> set[str]:
    """Shared libraries, the C library's apart, of the interpreter and of the extension modules that our programs import."""
    files = {os.path.realpath(sys.executable)}
    for name in _EXTENSIONS:
        try:
            module = importlib.import_module(name)
        except ImportError:  # a Python without it works on without it
            continue
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


def _packages(names: list[str]) -> set[str]:
    return {"site-packages", "dist-packages"} & set(names)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rock.runtime.own_python", description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--packages", type=Path, help="folder of installed packages")
    options = parser.parse_args()
    if (options.home / "python" / "bin").exists():
        print(f"own_python: {options.home} holds a Python; name another folder", file=sys.stderr)
        return 2
    print(make_own_python(options.home, options.packages))
    return 0


if __name__ == "__main__":
    sys.exit(main())

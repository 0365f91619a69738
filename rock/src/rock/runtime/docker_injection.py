"""What a container needs so that the machine's Python runs our rocklet in it, whatever its image holds.

The interpreter, its packages and ours are bind-mounted read-only at their own paths, with the shared libraries that extension
modules want (OpenSSL, libffi, zlib, ...) in one folder, so the image needs only a C library that is not older than the machine's.
Nothing is mounted over folders that an image has itself: a Python whose prefix is /usr or /usr/local is copied first, and its
packages are mounted elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import rock
from rock.runtime.own_python import copy_python, is_shared, needed_libraries, version_name

_PACKAGES = "/opt/rock-rocklet/packages"


@dataclass(frozen=True)
class Injection:
    """What to mount read-only (source, target), the library folder, how to start Python, and where it finds packages."""

    mounts: tuple[tuple[str, str], ...]
    libraries: str
    python: tuple[str, ...]
    packages: tuple[str, ...]

    def command(self) -> list[str]:
        """Starts the rocklet. Isolated: neither the image's working folder nor its PYTHON… variables lead to other modules."""
        program = f"import sys; sys.path[:0] = {list(self.packages)!r}; from rock.rocklet.server import main; main()"
        return [*self.python, "-I", "-B", "-c", program]


def prepare_injection(folder: Path) -> Injection:
    """Finds what the present Python consists of and gathers in `folder` what cannot be mounted where it is."""
    package = str(Path(rock.__file__).parent.parent)
    if is_shared(sys.base_prefix):
        copy = _copied(folder)
        python = (str(copy / "python" / "bin" / version_name()), "-S")
        sources = [*dict.fromkeys([package, *_package_folders()])]
        targets = [_place(number, source) for number, source in enumerate(sources)]
        mounts = ((str(copy), str(copy)), *zip(sources, targets, strict=True))
        return Injection(mounts, str(copy / "lib"), python, tuple(targets))
    libraries = folder / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    for source in needed_libraries():
        target = libraries / Path(source).name
        if not target.exists():
            shutil.copyfile(source, target)
            target.chmod(0o755)
    roots = {os.path.realpath(sys.base_prefix), sys.base_prefix, sys.prefix, package, str(libraries)}
    roots |= {path for path in sysconfig.get_paths().values() if os.path.isdir(path)}
    kept = [
        root for root in sorted(roots) if not any(root != other and root.startswith(other + "/") for other in roots)
    ]
    return Injection(tuple((root, root) for root in kept), str(libraries), (sys.executable,), (package,))


def _copied(folder: Path) -> Path:
    """The copy of this Python below `folder`, made once for each build of it."""
    program = os.path.realpath(sys.executable)
    state = os.stat(program)
    mark = hashlib.sha256(f"{program} {sys.version} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:16]
    target = folder / f"python-{mark}"
    if not target.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".python-", dir=folder))
        copy_python(draft)
        draft.chmod(0o755)
        draft.rename(target)
    return target


def _package_folders() -> list[str]:
    """Folders that hold what a rocklet imports, beside the standard library; nothing else of this machine is shown."""
    importlib.import_module("rock.rocklet.server")
    base = Path(sys.base_prefix)
    library = {str(base / name / version_name()) for name in ("lib", sys.platlibdir)}
    modules = [module for name, module in sys.modules.items() if "." not in name and name != "__main__"]
    files = [file for module in modules if (file := getattr(module, "__file__", None))]
    found = {os.path.dirname(os.path.dirname(file)) if _is_package(file) else os.path.dirname(file) for file in files}
    return [path for path in sys.path if path in found and path not in library and not path.endswith("/lib-dynload")]


def _is_package(file: str) -> bool:
    return os.path.basename(file).startswith("__init__.")


def _place(number: int, source: str) -> str:
    """Where a folder of packages is mounted: at its own path, unless that lies among folders that an image has."""
    return f"{_PACKAGES}-{number}" if source.startswith("/usr/") else source

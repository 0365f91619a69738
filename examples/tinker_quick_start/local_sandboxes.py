"""What local sandboxes see of this machine, as configure.py writes it into admin.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setting_error import SettingError


def show_harbor(runtime_section: dict[str, Any], task_root: Path) -> None:
    """Lets local sandboxes see Harbor's Python, built task layers, and the tasks' Python where it lies outside of /usr."""
    from rock.harbor.images import find_python
    from rock.harbor.outer import HarborPythonError, outer_binds

    store = (task_root / "assets").resolve() / "task-layers"
    store.mkdir(exist_ok=True)
    try:
        runtime_section["binds"] = outer_binds(harbor_python(task_root), store)
    except HarborPythonError as error:
        raise SettingError(f"{error}; run setup.sh control again") from error
    programs = [found for version in ("3.11", "3.12") if (found := find_python(version))]
    prefixes = dict.fromkeys(str(Path(program).resolve().parents[1]) for program in programs)
    seen = {bind["target"] for bind in runtime_section["binds"]}
    runtime_section["trees"] = [prefix for prefix in prefixes if prefix not in {"/usr", "/usr/local", *seen}]


def harbor_python(task_root: Path) -> Path:
    """Python of the Harbor environment; a linked control environment brings the one beside it."""
    beside = (task_root / "control-venv").resolve().parent
    for folder in (task_root, beside):
        python = (folder / "harbor-venv").resolve() / "bin" / "python"
        if python.exists():
            return python
    raise SettingError(
        f"{task_root}/harbor-venv is missing; run setup.sh control first, or link that of another TASK here"
    )

"""Problems of real repositories, rebuilt from released sources that still have the bug.

The public images of these problems hold the repository at one commit. Where they cannot be pulled, a source release with the
same bug serves as well: same instruction in substance, same failing behaviour, and the module's own tests as the tests that must
keep passing. ``report.json`` and ``reward.txt`` have the shape of the public ones.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

from rock.harbor.tasks.folder import write_task
from rock.harbor.tasks.sources import SourceArchive, default_cache, download_archive, download_wheels

PYTHON_VERSIONS = ("3.11", "3.12")
PIP_WHEEL = "pip-24.0-py3-none-any.whl"
_TEST_WHEELS = ("pip==24.0", "pytest==7.4.4", "iniconfig==2.0.0", "packaging==23.2", "pluggy==1.5.0")


@dataclass(frozen=True)
class RepositoryTask:
    """What a repository problem is built from.

    ``originals`` maps files or folders of the release to their place below ``tests/``; the verifier puts them back before it
    runs. ``dropped_tests`` names, for each Python version, tests of the release that fail there with or without the fix.
    """

    task_id: str
    archive: SourceArchive
    packages: tuple[str, ...]
    originals: dict[str, str]
    extra_packages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped_tests: dict[str, tuple[str, ...]] = field(default_factory=dict)


REPOSITORY_TASKS = {
    task.task_id: task
    for task in (
        RepositoryTask(
            task_id="sympy__sympy-19637",
            archive=SourceArchive(
                "sympy",
                "1.6.2",
                "sympy-1.6.2.tar.gz",
                "1cfadcc80506e4b793f5b088558ca1fcbeaec24cd6fc86f1fdccaa3ee1d48708",
            ),
            packages=("mpmath==1.3.0",),
            originals={"sympy/core/tests/test_sympify.py": "original/test_sympify.py"},
            extra_packages={"3.12": ("setuptools==79.0.1",)},
            dropped_tests={"3.12": ("sympy/core/tests/test_sympify.py::test_sympify_factorial",)},
        ),
        RepositoryTask(
            task_id="pallets__flask-5014",
            archive=SourceArchive(
                "flask",
                "2.2.5",
                "Flask-2.2.5.tar.gz",
                "edee9b0a7ff26621bd5a8c10ff484ae28737a2410d99b0bb9a6850c7fb977aa0",
            ),
            packages=("werkzeug==2.2.3", "jinja2==3.1.4", "itsdangerous==2.1.2", "click==8.1.7", "markupsafe==2.1.5"),
            originals={"tests": "original/tests"},
        ),
    )
}


def build_repository_task(task_id: str, output: Path, *, python: str = "3.11", cache: Path | None = None) -> Path:
    """Writes the task to ``output/<task_id>`` and returns that folder. An identical folder is left as it is.

    Raises:
        ValueError: unknown task or Python version.
        SourceError: a download failed.
        TaskFolderError: the folder exists with other content.
    """
    task = REPOSITORY_TASKS.get(task_id)
    if task is None:
        raise ValueError(f"task id {task_id!r} is unknown; there are {', '.join(sorted(REPOSITORY_TASKS))}")
    if python not in PYTHON_VERSIONS:
        raise ValueError(f"python {python!r} is not supported by these tasks; choose {' or '.join(PYTHON_VERSIONS)}")
    cache = cache or default_cache()
    archive = download_archive(task.archive, cache)
    requirements = (*_TEST_WHEELS, *task.packages, *task.extra_packages.get(python, ()))
    wheels = download_wheels(requirements, python, cache)
    packages = " ".join(word for word in requirements if not word.startswith("pip=="))

    def fill(folder: Path) -> None:
        with as_file(files("rock.harbor.tasks") / "data") as data:
            source = data / task_id
            for name in ("instruction.md", "task.toml"):
                shutil.copyfile(source / name, folder / name)
            shutil.copytree(source / "solution", folder / "solution")
            shutil.copytree(source / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("test.sh", "grade.py"):
                shutil.copyfile(data / name, folder / "tests" / name)
            config = json.loads((source / "config.json").read_text())
            environment = folder / "environment"
            (environment / "wheels").mkdir(parents=True)
            text = (source / "Dockerfile").read_text()
        for key, value in (("python", python), ("pip_wheel", PIP_WHEEL), ("packages", packages)):
            text = text.replace("{{" + key + "}}", value)
        (environment / "Dockerfile").write_text(text)
        shutil.copyfile(archive, environment / archive.name)
        for wheel in wheels:
            shutil.copyfile(wheel, environment / "wheels" / wheel.name)
        dropped = set(task.dropped_tests.get(python, ()))
        config["PASS_TO_PASS"] = [name for name in config["PASS_TO_PASS"] if name not in dropped]
        (folder / "tests" / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        _extract_originals(archive, task.originals, folder / "tests")

    origin = {
        "task_id": task_id,
        "source": f"{task.archive.project} {task.archive.version} (source release)",
        "source_sha256": task.archive.sha256,
        "python": python,
    }
    target = output / task_id
    write_task(target, origin, fill)
    return target


def _extract_originals(archive: Path, originals: dict[str, str], target: Path) -> None:
    """Copies files and folders of the release below ``target``."""
    with tarfile.open(archive) as release:
        top = release.getmembers()[0].name.split("/")[0]
        for member in release.getmembers():
            for origin, place in originals.items():
                prefix = f"{top}/{origin}"
                if not member.isfile() or not (member.name == prefix or member.name.startswith(prefix + "/")):
                    continue
                content = release.extractfile(member)
                assert content is not None
                path = target / (place + member.name[len(prefix) :])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())

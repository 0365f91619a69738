"""Registry files: datasets by name and version, each a list of tasks with their sources (the format of Harbor's registries)."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rock.datasets.source import DatasetError, FolderSource, GitSource, TaskSource


class RegistryTask(BaseModel):
    """A task: of a git repository (``git_url``, ``git_commit_id``, ``path`` in it), or in the folder ``path``."""

    model_config = ConfigDict(extra="ignore")

    name: str
    path: str
    git_url: str | None = None
    git_commit_id: str | None = None

    def source(self, base: Path) -> TaskSource:
        """Relative folders are relative to ``base``."""
        if self.git_url is None:
            return FolderSource(base / self.path)
        if self.git_commit_id is None:
            raise DatasetError(f"task {self.name!r} of the registry has a git_url but no git_commit_id; pin a commit")
        return GitSource(self.git_url, self.git_commit_id, self.path)


class RegistryDataset(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str
    version: str
    description: str = ""
    tasks: list[RegistryTask]


class Registry:
    """The datasets of one file."""

    def __init__(self, datasets: list[RegistryDataset], base: Path) -> None:
        self.datasets = datasets
        self.base = base

    def dataset(self, name: str) -> RegistryDataset:
        """A dataset by ``name`` or ``name@version``; without a version the last one of that name.

        Raises:
            DatasetError: there is none.
        """
        wanted, _, version = name.partition("@")
        found = [one for one in self.datasets if one.name == wanted and (not version or one.version == version)]
        if not found:
            known = ", ".join(f"{one.name}@{one.version}" for one in self.datasets) or "nothing"
            raise DatasetError(f"dataset {name!r} is not in the registry; it has {known}")
        return found[-1]

    def source(self, dataset: str, task_id: str) -> TaskSource:
        """Where a task of a dataset comes from. Raises DatasetError for an unknown name."""
        for task in self.dataset(dataset).tasks:
            if task.name == task_id:
                return task.source(self.base)
        raise DatasetError(f"dataset {dataset!r} has no task {task_id!r}")


def load_registry(path: Path) -> Registry:
    """Reads a registry file.

    Raises:
        DatasetError: it cannot be read, or an entry lacks a field.
    """
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, list):
            raise ValueError("the top level is no list")
        return Registry([RegistryDataset.model_validate(entry) for entry in content], path.parent)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DatasetError(f"{path}: field {field!r}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} is no registry: {error}") from error

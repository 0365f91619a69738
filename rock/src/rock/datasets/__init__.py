"""Task datasets in Harbor's format: single tasks fetched unchanged, with the checksum of every file.

A task comes from a git repository at a pinned commit (only its own files are fetched), from a folder of this machine, or by the
name of a dataset in a registry file.
"""

from rock.datasets.fetch import FetchedTask, fetch_task, verify_task
from rock.datasets.registry import Registry, load_registry
from rock.datasets.source import DatasetError, FolderSource, GitSource, TaskSource

__all__ = [
    "DatasetError",
    "FetchedTask",
    "FolderSource",
    "GitSource",
    "Registry",
    "TaskSource",
    "fetch_task",
    "load_registry",
    "verify_task",
]

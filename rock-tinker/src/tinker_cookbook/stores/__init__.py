"""Files of runs: storages, training runs, evaluation runs."""

from tinker_cookbook.stores._incremental import IncrementalReader
from tinker_cookbook.stores.eval_store import EvalStore, RunMetadata
from tinker_cookbook.stores.registry import RunInfo, RunRegistry
from tinker_cookbook.stores.storage import (
    AsyncStorage,
    FsspecStorage,
    LocalStorage,
    Storage,
    StorageStat,
    storage_from_uri,
    storage_join,
)
from tinker_cookbook.stores.training_store import IterationInfo, TrainingRunStore

__all__ = [
    "AsyncStorage",
    "EvalStore",
    "FsspecStorage",
    "IncrementalReader",
    "IterationInfo",
    "LocalStorage",
    "RunInfo",
    "RunMetadata",
    "RunRegistry",
    "Storage",
    "StorageStat",
    "TrainingRunStore",
    "storage_from_uri",
    "storage_join",
]

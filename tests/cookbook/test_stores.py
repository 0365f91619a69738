"""Storages, the files of training and evaluation runs, and finding them."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from pathlib import Path

import pytest

from tinker_cookbook.eval.benchmarks import BenchmarkResult, StoredTrajectory
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores import (
    AsyncStorage,
    EvalStore,
    FsspecStorage,
    IncrementalReader,
    LocalStorage,
    RunRegistry,
    Storage,
    TrainingRunStore,
    storage_from_uri,
    storage_join,
)

AnyStorage = LocalStorage | FsspecStorage


@pytest.fixture(params=["local", "fsspec"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStorage:
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    pytest.importorskip("fsspec")
    return FsspecStorage("memory", f"/{tmp_path.name}")


def test_a_storage_reads_what_was_written(storage: AnyStorage) -> None:
    assert isinstance(storage, Storage) and isinstance(storage, AsyncStorage)
    storage.write("a/b.txt", b"hello world")
    storage.append("a/lines", b"1\n")
    storage.append("a/lines", b"2\n")
    assert storage.read("a/lines") == b"1\n2\n" and storage.list_dir("a") == ["b.txt", "lines"]
    assert storage.read_range("a/b.txt", 2, 3) == b"llo" and storage.read_range("a/b.txt", 6) == b"world"
    assert storage.read_range("a/b.txt", 90, 3) == b""
    found = storage.stat("a/b.txt")
    assert found is not None and found.size == 11 and storage.stat("none") is None
    assert storage.url("a").endswith("/a") and "://" in storage.url()


def test_only_empty_folders_are_removed_and_what_is_not_there_is_no_error(storage: AnyStorage) -> None:
    storage.write("a/b.txt", b"1")
    storage.remove_dir("a")
    assert storage.read("a/b.txt") == b"1"
    storage.remove("a/b.txt")
    storage.remove("a/b.txt")
    storage.remove_dir("a")
    assert not storage.exists("a/b.txt") and storage.list_dir("a") == []
    with pytest.raises(FileNotFoundError):
        storage.read("a/b.txt")


def test_paths_cannot_leave_the_root(storage: AnyStorage) -> None:
    with pytest.raises(ConfigurationError, match="escapes storage root"):
        storage.write("../outside", b"1")
    assert storage_join("a/", "/b", "", "./c", "..", "d") == "a/b/d" and storage_join() == ""


def test_every_coroutine_does_what_its_method_does(storage: AnyStorage) -> None:
    async def walk() -> tuple[bytes, bytes, list[str], bool]:
        async with storage as opened:
            await opened.awrite("x", b"123")
            await opened.aappend("x", b"4")
            part = await opened.aread_range("x", offset=1, length=2)
            data, names = await opened.aread("x"), await opened.alist_dir("")
            await opened.aremove("x")
            return part, data, names, await opened.aexists("x")

    assert asyncio.run(walk()) == (b"23", b"1234", ["x"], False)
    twins = [name for name in dir(Storage) if hasattr(AsyncStorage, f"a{name}")]
    assert len(twins) == 9
    for name in twins:
        twin = getattr(storage, f"a{name}")
        assert inspect.iscoroutinefunction(twin)
        assert list(inspect.signature(twin).parameters) == list(inspect.signature(getattr(storage, name)).parameters)


def test_a_twin_runs_the_method_of_the_subclass(tmp_path: Path) -> None:
    class Loud(LocalStorage):
        def read(self, path: str) -> bytes:
            return super().read(path).upper()

    loud = Loud(tmp_path)
    loud.write("x", b"abc")
    assert asyncio.run(loud.aread("x")) == b"ABC"


def test_a_uri_names_its_storage(tmp_path: Path) -> None:
    assert storage_from_uri(str(tmp_path)).url("x") == f"file://{tmp_path.resolve()}/x"
    assert storage_from_uri(f"file://{tmp_path}").url() == f"file://{tmp_path.resolve()}"
    assert not LocalStorage(tmp_path / "later", mkdir=False).root.exists()


def test_the_reader_follows_a_growing_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    reader = IncrementalReader(storage, "m", max_records=2)
    assert reader.read() == [] and not reader.has_data()
    storage.append("m", b'{"step": 1, "a": 2}\n{"b":')
    assert reader.read() == [{"step": 1, "a": 2}] and reader.known_keys == {"a"}
    storage.append("m", b'3}\nbroken\n\n{"c": 1}\n')
    assert asyncio.run(reader.aread()) == [{"b": 3}, {"c": 1}]
    assert reader.records == [{"b": 3}, {"c": 1}] and reader.total_read == 3
    storage.write("m", b'{"z": 1}\n')
    assert reader.read() == [{"z": 1}] and reader.records == [{"z": 1}]


def test_the_files_of_a_run_by_meaning(storage: AnyStorage) -> None:
    store = TrainingRunStore(storage, "runs/one")
    assert store.read_config() is None and store.read_metrics() == [] and store.list_iterations() == []
    store.write_config({"loss_fn": "ppo"})
    store.write_metrics({"x": 1.5}, step=3)
    store.write_metrics({"x": 2.5, "y": 1}, step=4)
    assert store.read_new_metrics() == store.read_metrics() and store.metric_keys() == {"x", "y"}
    store.write_checkpoint({"name": "000001", "batch": 1, "note": "kept"})
    (record,) = store.read_checkpoint_records()
    assert record.batch == 1 and record.extra == {"note": "kept"}
    store.write_timing_spans(3, [{"name": "sampling"}])
    store.write_timing_spans(4, [])
    assert store.read_timing() == [{"step": 3, "spans": [{"name": "sampling"}]}]
    store.write_rollouts(2, [{"group_idx": 0, "traj_idx": 1, "reward": 0.5}])
    store.write_logtree(2, {"title": "t"}, base_name="eval_test")
    assert (
        store.read_single_rollout(2, 0, 1) == store.read_rollouts(2)[0] and store.read_single_rollout(2, 0, 0) is None
    )
    assert store.list_logtrees(2) == ["eval_test"] and store.read_logtree(2, "eval_test") == {"title": "t"}
    (iteration,) = store.list_iterations()
    assert (iteration.has_train_rollouts, iteration.has_train_logtree, iteration.eval_labels) == (True, False, ["test"])
    assert storage.list_dir("runs") == ["one"] and asyncio.run(store.aread_config()) == {"loss_fn": "ppo"}


def test_rows_after_a_step_are_cut_off_and_kept_in_a_file(tmp_path: Path) -> None:
    store = TrainingRunStore.local(tmp_path)
    for step in range(4):
        store.write_metrics({"x": step}, step)
    assert store.truncate_metrics(2) == 2 and [row["step"] for row in store.read_metrics()] == [0, 1]
    assert (tmp_path / "metrics.jsonl.pre_resume_000002").read_text().count("\n") == 4
    store.write_metrics({"x": 9}, 2)
    assert store.read_new_metrics() == [{"step": 2, "x": 9}]


def test_an_evaluation_run_from_its_start_to_its_scores(storage: AnyStorage) -> None:
    store = EvalStore(storage, "eval")
    run = store.create_run("org/model", ["gsm8k", "aime"], checkpoint_name="000010", config={"seed": 1})
    assert run.startswith("000010_")
    for idx, (reward, error) in enumerate([(1.0, None), (0.0, None), (0.0, "timeout")]):
        store.write_trajectory(run, "gsm8k", StoredTrajectory(idx, "gsm8k", reward=reward, error=error))
    assert [t.idx for t in store.read_trajectories(run, "gsm8k", correct_only=True)] == [0]
    assert [t.idx for t in store.read_trajectories(run, "gsm8k", incorrect_only=True)] == [1]
    assert [t.idx for t in store.read_trajectories(run, "gsm8k", errors_only=True)] == [2]
    one = store.read_single_trajectory(run, "gsm8k", 2)
    assert one is not None and one.error == "timeout" and store.read_single_trajectory(run, "gsm8k", 9) is None
    result = BenchmarkResult("gsm8k", 0.5, 3, 1, num_errors=1, pass_at_k={1: 0.5})
    store.write_result(run, result)
    store.write_summary(run, {"gsm8k": result})
    assert store.read_result(run, "gsm8k") == result and store.read_result(run, "aime") is None
    assert store.read_summary(run) == {"gsm8k": {"score": 0.5, "num_examples": 3, "num_correct": 1, "num_errors": 1}}
    assert store.finalize_run(run).scores == {"gsm8k": 0.5} == store.read_run(run).scores
    assert [r.run_id for r in asyncio.run(store.alist_runs())] == [run]
    storage.write(f"eval/runs/{run}/note.txt", b"mine")
    store.delete_run(run)
    assert storage.list_dir(f"eval/runs/{run}") == ["note.txt"] and store.list_runs() == []


def test_the_registry_finds_runs_in_several_roots(tmp_path: Path) -> None:
    first, second = LocalStorage(tmp_path / "1"), LocalStorage(tmp_path / "2")
    TrainingRunStore(first, "a").write_metrics({"x": 1}, 0)
    TrainingRunStore(first, "group/b").write_config({"dpo_beta": 0.1, "num_epochs": 1})
    done = TrainingRunStore(second, "done")
    done.write_metrics({"x": 1}, 0)
    done.write_checkpoint({"name": "final", "final": True})
    TrainingRunStore(second, "a").write_config({"loss_fn": "ppo"})
    os.utime(tmp_path / "1/a/metrics.jsonl", (time.time() - 3600,) * 2)
    registry = RunRegistry([first, second])
    assert registry.storage_count == 2 and registry.primary_storage is first
    runs = {run.run_id: run for run in registry.get_runs()}
    assert list(runs) == ["a", "done", "group/b"]
    assert (runs["done"].status, runs["a"].status) == ("completed", "idle")
    done.write_checkpoint({"name": "000002"})  # it goes on with more steps
    registry.refresh()
    assert {run.run_id: run.status for run in registry.get_runs()}["done"] == "running"
    assert (runs["a"].training_type, runs["group/b"].training_type, runs["done"].training_type) == ("rl", "dpo", None)
    assert registry.storage_for("a") is second and registry.storage_for("unknown") is first
    assert registry.get_training_store("group/b").read_config() == {"dpo_beta": 0.1, "num_epochs": 1}
    assert registry.get_eval_store() is None
    EvalStore(second, "eval_store").create_run("m", [], run_id="e")
    found = registry.get_eval_store()
    assert found is not None and [run.run_id for run in found.list_runs()] == ["e"]
    TrainingRunStore(first, "new").write_metrics({"x": 1}, 0)
    assert registry.get_run("new") is None
    registry.refresh()
    new = registry.get_run("new")
    assert new is not None and new.status == "running"

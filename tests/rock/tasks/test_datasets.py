"""Fetching single tasks from git, folders and registry files."""

from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner

from rock.datasets import DatasetError, FolderSource, GitSource, fetch_task, load_registry, verify_task
from rock.datasets.cli import datasets
from rock.harbor.tasks import write_mini_tasks


@pytest.fixture(scope="module")
def public_repository(tmp_path_factory):
    """A git repository of the shape of the public data set; (url, commit, folder of its first task)."""
    folder = tmp_path_factory.mktemp("public")
    written = write_mini_tasks(folder / "datasets", train_per_kind=2, heldout_per_kind=0, kinds=["create"])["train"]
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-q", "-m", "tasks"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run([*git, "config", "uploadpack.allowAnySHA1InWant", "true"], check=True)
    subprocess.run([*git, "config", "uploadpack.allowFilter", "true"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    return f"file://{folder}", commit, written[0]


def test_a_task_of_a_git_repository_comes_unchanged_and_alone(public_repository, tmp_path):
    url, commit, original = public_repository
    fetched = fetch_task(GitSource(url, commit, "datasets/train/mini__create-000"), "mini__create-000", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {fetched.folder.name, fetched.manifest.name}
    for path in original.rglob("*"):
        if path.is_file():
            assert (fetched.folder / path.relative_to(original)).read_bytes() == path.read_bytes()
    manifest = json.loads(fetched.manifest.read_text())
    assert manifest["source"] == {
        "kind": "git",
        "url": url,
        "commit": commit,
        "path": "datasets/train/mini__create-000",
    }
    assert verify_task(fetched.manifest) == fetched


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_changed_task_is_noticed(public_repository, tmp_path, change):
    fetched = fetch_task(FolderSource(public_repository[2]), "mini__create-000", tmp_path)
    path = fetched.folder / "tests" / ("extra" if change == "add" else "test.sh")
    path.unlink() if change == "remove" else path.write_text("changed")
    with pytest.raises(DatasetError, match=f"tests/{path.name}"):
        verify_task(fetched.manifest)


def test_nothing_is_overwritten_and_failures_leave_nothing(public_repository, tmp_path):
    url, commit, original = public_repository
    with pytest.raises(DatasetError, match="no folder 'nowhere'"):
        fetch_task(GitSource(url, commit, "nowhere"), "mini__x", tmp_path)
    with pytest.raises(DatasetError, match="Harbor's format"):
        fetch_task(FolderSource(original / "tests"), "mini__x", tmp_path)
    with pytest.raises(DatasetError, match="not the expected one"):
        fetch_task(FolderSource(original), "mini__x", tmp_path, expected={"a": "b"})
    assert list(tmp_path.iterdir()) == []
    fetch_task(FolderSource(original), "mini__x", tmp_path)
    with pytest.raises(DatasetError, match="never overwritten"):
        fetch_task(FolderSource(original), "mini__x", tmp_path)


@pytest.mark.parametrize(("commit", "path"), [("main", "x"), ("0123456789", "../x"), ("0123456789", "/x")])
def test_branches_and_paths_outside_are_refused(commit, path):
    with pytest.raises(DatasetError):
        GitSource("file:///x", commit, path)


def test_a_registry_file_leads_to_tasks_and_the_command_line_fetches_them(public_repository, tmp_path):
    url, commit, original = public_repository
    task = {
        "name": "mini__create-001",
        "git_url": url,
        "git_commit_id": commit,
        "path": "datasets/train/mini__create-001",
    }
    local = {"name": "local", "path": str(original)}
    registry = tmp_path / "registry.json"
    entry = {"name": "mini", "version": "1.0", "description": "small", "tasks": [task, local]}
    registry.write_text(json.dumps([{**entry, "version": "0.9", "tasks": []}, entry]))
    assert load_registry(registry).dataset("mini").version == "1.0"
    assert load_registry(registry).dataset("mini@0.9").tasks == []

    def run(*words):
        return CliRunner().invoke(datasets, [*words])

    assert "mini@1.0  2 tasks  small" in run("list", "--registry-path", str(registry)).output
    assert run("tasks", "mini", "--registry-path", str(registry)).output.split() == ["mini__create-001", "local"]
    output = tmp_path / "out"
    for name in ("mini__create-001", "local"):
        words = ["fetch", name, "--dataset", "mini", "--registry-path", str(registry), "--output", str(output)]
        assert run(*words).exit_code == 0
    assert run("verify", str(next(output.glob("local.*")))).exit_code == 0
    missing = run("fetch", "zzz", "--dataset", "mini", "--registry-path", str(registry), "--output", str(output))
    assert missing.exit_code == 1 and "no task 'zzz'" in missing.output
    assert "exactly one of" in run("fetch", "x", "--output", str(output)).output


@pytest.mark.parametrize(
    ("text", "word"),
    [("{}", "no list"), ("[{}]", "0.name"), ("nonsense", "no registry")],
    ids=["object", "field", "text"],
)
def test_a_broken_registry_is_refused_with_the_reason(tmp_path, text, word):
    path = tmp_path / "registry.json"
    path.write_text(text) if text != "[{}]" else path.write_text('[{"version": "1", "tasks": []}]')
    with pytest.raises(DatasetError, match=word.removeprefix("0.")):
        load_registry(path)

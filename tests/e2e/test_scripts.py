"""Each script stops with one sentence that names the fix, and writes its files whole or not at all."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

QS = Path(__file__).parents[2] / "examples" / "tinker_quick_start"
LOCAL = ["--profile", "local", "--task-id", "demo__task-1"]
needs_harbor = pytest.mark.skipif(
    "ROCK_HARBOR_PYTHON" not in os.environ, reason="needs the Harbor environment (ROCK_HARBOR_PYTHON)"
)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "Tiny-Model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("command", "task", "sentence"),
    [
        (["setup.sh"], None, "give one of: control, runtime"),
        (["setup.sh", "control"], None, "TASK is not set; export TASK="),
        (["setup.sh", "control"], "relative/path", "not absolute"),
        (["setup.sh", "runtime", "--gpu"], None, "--gpu-check only"),
        (["serve.sh"], None, "give one of: worker, admin"),
        (["run.sh", "sft"], None, "give one of: rollout, ppo, ppo-kl, grpo"),
        (["run.sh", "rollout"], None, "TASK is not set"),
    ],
)
def test_a_wrong_call_ends_with_one_sentence_that_names_the_fix(run_script, command, task, sentence):
    done = run_script(*command, task=task)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and sentence in lines[0]


@pytest.mark.parametrize("script", ["demo.sh", "setup.sh", "run.sh", "serve.sh"])
def test_help_prints_the_head_of_the_script(run_script, script):
    done = run_script(script, "--help", task=None)
    assert done.returncode == 0 and not done.stderr
    head = (QS / script).read_text().split("\n[ -n ")[0].splitlines()[1:]
    assert done.stdout.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in head]
    called_as_sh = subprocess.run(["sh", QS / script, "--help"], capture_output=True, text=True)
    assert called_as_sh.stdout == done.stdout and called_as_sh.returncode == 0


def test_the_options_of_a_recipe_are_listed_before_anything_is_configured(run_script, work_folder):
    done = run_script("run.sh", "grpo", "--help")
    assert done.returncode == 0 and "--rollout-concurrency" in done.stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [("TINKER_PYTHON", "/usr/bin/false"), ("TINKER_HARBOR_PYTHON", "/nowhere/python"), ("TINKER_PYTHON", "/bin/sh")],
)
def test_a_chosen_python_that_does_not_work_is_refused(run_script, work_folder, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    done = run_script("setup.sh", "control")
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2 and f"{name} is '{value}', which is no working CPython" in line


@pytest.mark.parametrize(
    "command",
    [
        ["configure.py", "--task-root", "/tmp/x", "--task-id", "a__b-1", "--model", "a/b", "--gpus", "1"],
        ["configure.py", "--task-root", "/tmp/x"],
        ["prepare_sandbox.py", "--task", "/tmp/x", "--task-id", "a__b-1", "--wheel", "x.whl", "--gpus", "1"],
    ],
)
def test_an_unknown_or_missing_option_ends_with_one_sentence(run_script, command):
    done = run_script(*command)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "arguments" in line and f"{command[0]} --help lists the options" in line


def test_scripts_without_their_predecessor_name_it(run_script, work_folder, tmp_path):
    assert "run setup.sh control first" in run_script("serve.sh", "admin", task=str(tmp_path / "other")).stderr
    assert "run configure.py" in run_script("serve.sh", "admin").stderr
    assert "run configure.py" in run_script("run.sh", "rollout").stderr


@needs_harbor
def test_configure_writes_a_local_configuration_that_the_recipes_and_both_servers_accept(
    run_script, work_folder, model_folder
):
    from rock.config import load_config
    from tinker_backend.config import EngineConfig, RuntimeConfig
    from tinker_cookbook.swe.settings import read_settings

    done = run_script("configure.py", *LOCAL, "--task-root", work_folder, "--model", model_folder)
    assert done.returncode == 0, done.stderr
    config = work_folder / "config"
    settings = read_settings(config)
    assert settings.base_model == "Tiny-Model"
    assert settings.task_ids == ["demo__task-1"]
    assert settings.budget.max_input + settings.budget.max_output <= settings.budget.context == 8192
    assert RuntimeConfig.load(config / "runtime.yaml").backend.port == 19210
    assert EngineConfig.load(config / "engine.yaml").pretrain == str(model_folder)
    assert load_config(config / "admin.yaml").admin.port == 18080
    for private in ("encryption-key", "harbor.yaml"):
        assert stat.S_IMODE((config / private).stat().st_mode) == 0o600
    assert not [path for path in work_folder.iterdir() if path.name.startswith(".config-")]


@needs_harbor
def test_configure_never_overwrites(run_script, work_folder, model_folder):
    command = ["configure.py", *LOCAL, "--task-root", work_folder, "--model", model_folder]
    assert run_script(*command).returncode == 0
    (work_folder / "config" / "engine.yaml").write_text("edited: true\n")
    done = run_script(*command)
    assert done.returncode == 2 and "never overwritten" in done.stderr
    assert (work_folder / "config" / "engine.yaml").read_text() == "edited: true\n"


@needs_harbor
def test_ports_of_the_options_reach_every_file(run_script, work_folder, model_folder):
    ports = [
        "--admin-port",
        "18081",
        "--worker-port",
        "22556",
        "--backend-port",
        "19211",
        "--model-service-port",
        "28081",
    ]
    run_script("configure.py", *LOCAL, "--task-root", work_folder, "--model", model_folder, *ports)
    read = {
        name: yaml.safe_load((work_folder / "config" / f"{name}.yaml").read_text())
        for name in ("harbor", "admin", "runtime")
    }
    assert read["harbor"]["environment"]["base_url"] == "http://127.0.0.1:18081"
    assert read["harbor"]["environment"]["proxy"]["port"] == 28081
    assert (read["admin"]["admin"]["port"], read["admin"]["worker"]["port"]) == (18081, 22556)
    assert read["runtime"]["backend"]["port"] == 19211


def test_a_cluster_that_exists_gets_its_address_and_no_local_services(run_script, work_folder, model_folder):
    options = ["--rock-base-url", "https://rock.example.com/", "--rock-cluster", "far", "--outer-image", "img:1"]
    run_script("configure.py", *LOCAL, "--task-root", work_folder, "--model", model_folder, *options)
    environment = yaml.safe_load((work_folder / "config" / "harbor.yaml").read_text())["environment"]
    assert (environment["base_url"], environment["cluster"]) == ("https://rock.example.com", "far")
    assert environment["image"] == "img:1" and environment["extra_headers"] == {}
    assert not (work_folder / "config" / "admin.yaml").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--task-id", "../x"], "is no task id"),
        (["--task-id", "other__task-2"], "run prepare_sandbox.py --task-id other__task-2"),
        (["--admin-port", "70000"], "--admin-port 70000 is no port"),
        (["--admin-port", "19210"], "two services share a port"),
        (["--rock-cluster", "far"], "needs --rock-base-url"),
        (["--rock-base-url", "ftp://x", "--rock-cluster", "far"], "is no address"),
        (["--model", "/nowhere"], "holds no config.json"),
        (["--model", "a/b/c"], "neither a folder, nor a hub id"),
        (["--max-output-tokens", "4000"], "exceed --context 8192"),
        (["--node-ip", "somewhere"], "is no IP address"),
    ],
)
def test_configure_refuses_a_wrong_value_and_writes_nothing(run_script, work_folder, model_folder, options, sentence):
    done = run_script("configure.py", *LOCAL, "--task-root", work_folder, "--model", model_folder, *options)
    assert done.returncode == 2 and sentence in done.stderr
    assert not (work_folder / "config").exists()


def test_the_gpu_profile_says_which_devices_are_shared_and_a_rollout_claims_no_training_gpu(
    run_script, work_folder, model_folder
):
    (work_folder / "runtime-venv" / "bin").mkdir(parents=True)
    (work_folder / "runtime-venv" / "bin" / "python").touch()
    gpu = [
        "configure.py",
        "--task-id",
        "demo__task-1",
        "--task-root",
        work_folder,
        "--model",
        "Qwen/Qwen3-4B-Instruct-2507",
    ]
    gpu += ["--outer-image", "tinker-harbor:local", "--node-ip", "10.0.0.5"]
    done = run_script(*gpu, "--rollout-only")
    assert done.returncode == 0, done.stderr
    assert "no training GPU is claimed" in done.stdout
    engine = yaml.safe_load((work_folder / "config" / "engine.yaml").read_text())
    assert engine["actor_infer"]["device_mapping"] == "4-7" and "actor_train" not in engine
    assert engine["sequence_length"] == 65536
    kwargs = yaml.safe_load((work_folder / "config" / "harbor.yaml").read_text())["agents"][0]["kwargs"]
    assert (int(kwargs["max_input_tokens"]), int(kwargs["max_output_tokens"])) == (32768, 8192)
    (work_folder / "config").rename(work_folder / "config-rollout")
    assert "they share [4, 5, 6, 7]" in run_script(*gpu).stdout


def make_wheel(folder: Path, member: str = "rock/__init__.py") -> Path:
    wheel = folder / "rl_rock-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, "")
    return wheel


@pytest.fixture
def source_task(tmp_path: Path) -> Path:
    task = tmp_path / "source" / "own__task-9"
    for name in ("instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh"):
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(f"{name}\n")
    (task / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    return task


def test_a_task_of_a_folder_is_taken_over_unchanged_with_checksums_and_reused(
    run_script, work_folder, source_task, tmp_path
):
    command = ["prepare_sandbox.py", "--task", work_folder, "--task-id", "own__task-9", "--profile", "local"]
    command += ["--wheel", make_wheel(tmp_path), "--source", source_task.parent]
    assert run_script(*command).returncode == 0
    target = work_folder / "assets" / "harbor-tasks" / "own__task-9"
    assert (target / "tests" / "test.sh").read_text() == "tests/test.sh\n"
    manifest = json.loads((work_folder / "sandbox-preparation" / "manifest.json").read_text())
    assert manifest["source"]["kind"] == "folder" and len(manifest["files"]) == 4
    assert run_script(*command).returncode == 0  # nothing to do
    (target / "tests" / "test.sh").write_text("changed\n")
    done = run_script(*command)
    assert done.returncode == 2 and "a file changed" in done.stderr


def test_a_preparation_that_fails_at_the_image_goes_on_with_the_fetched_task(
    run_script, work_folder, source_task, tmp_path
):
    command = ["prepare_sandbox.py", "--task", work_folder, "--task-id", "own__task-9"]
    command += ["--wheel", make_wheel(tmp_path), "--source", source_task.parent]
    done = run_script(*command, "--rock-root", "/nowhere")  # the gpu profile wants a checkout for its image
    assert done.returncode == 2 and "--rock-root must name a complete checkout" in done.stderr
    manifest = json.loads((work_folder / "sandbox-preparation" / "manifest.json").read_text())
    assert manifest["control_image"]["state"] == "not built yet"
    again = run_script(*command, "--profile", "local")
    assert again.returncode == 0, again.stderr


def test_a_public_task_is_fetched_alone_from_its_git_commit(run_script, work_folder, source_task, tmp_path):
    import shutil
    import subprocess

    origin = tmp_path / "origin"
    for name in ("own__task-9", "other__task-1"):
        shutil.copytree(source_task, origin / "datasets" / "swebench-verified" / name)
    git = ["git", "-C", str(origin), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "tasks"],
        ["config", "uploadpack.allowAnySHA1InWant", "true"],
        ["config", "uploadpack.allowFilter", "true"],
    ):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    command = ["prepare_sandbox.py", "--task", work_folder, "--task-id", "own__task-9", "--profile", "local"]
    command += [
        "--wheel",
        make_wheel(tmp_path),
        "--source",
        "public",
        "--git-url",
        f"file://{origin}",
        "--git-commit",
        commit,
    ]
    done = run_script(*command)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((work_folder / "sandbox-preparation" / "manifest.json").read_text())
    assert manifest["source"] == {
        "kind": "public",
        "url": f"file://{origin}",
        "commit": commit,
        "path": "datasets/swebench-verified/own__task-9",
    }
    assert sorted(path.name for path in (work_folder / "assets" / "harbor-tasks").iterdir()) == [
        "demo__task-1",
        "own__task-9",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--task-id", "a b"], "is no task id"),
        (["--source", "/nowhere"], "no folder that holds"),
        (["--wheel", "/nowhere/x.whl"], "is no rl_rock wheel"),
        (["--task", "/proc/nowhere"], "--task /proc/nowhere cannot be made"),
    ],
)
def test_prepare_sandbox_refuses_a_wrong_value(run_script, work_folder, tmp_path, options, sentence):
    command = ["prepare_sandbox.py", "--task", work_folder, "--task-id", "own__task-9", "--profile", "local"]
    done = run_script(*command, "--wheel", make_wheel(tmp_path), "--source", tmp_path, *options)
    assert done.returncode == 2 and sentence in done.stderr
    assert not (work_folder / "assets" / "harbor-tasks" / "own__task-9").exists()


def test_a_rock_wheel_with_tinker_modules_is_refused(run_script, work_folder, source_task, tmp_path):
    wheel = make_wheel(tmp_path, "tinker/__init__.py")
    command = ["prepare_sandbox.py", "--task", work_folder, "--task-id", "own__task-9", "--profile", "local"]
    done = run_script(*command, "--wheel", wheel, "--source", source_task.parent)
    assert done.returncode == 2 and "holds Tinker modules" in done.stderr


@needs_harbor
def test_a_taken_port_is_named_with_the_setting_that_changes_it(run_script, work_folder, model_folder):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        run_script("configure.py", *LOCAL, "--task-root", work_folder, "--model", model_folder, "--admin-port", port)
        done = run_script("serve.sh", "admin")
    assert done.returncode == 2
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr and "admin.port" in done.stderr


def test_the_gpu_environment_inherits_an_image_whose_python_is_an_environment_itself(tmp_path):
    image, venv = tmp_path / "image", tmp_path / "runtime-venv"
    for folder in (image, venv):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = image.glob("lib/python*/site-packages")
    (packages / "torch.py").write_text("")
    script = f"cd {QS}; source checks.sh; source setup_runtime.sh; python=$(image_python); echo $python; inherit_environment $python {venv}"
    environment = {**os.environ, "TINKER_RUNTIME_PYTHON": str(image / "bin" / "python")}
    done = subprocess.run(["bash", "-ec", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(image / "bin" / "python")
    seen = [str(venv / "bin" / "python"), "-c", "import torch; print(torch.__file__)"]
    assert subprocess.run(seen, capture_output=True, text=True).stdout.strip() == str(packages / "torch.py")

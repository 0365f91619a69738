"""run.sh from end to end in local sandboxes: a scripted model, the real agent, the real verifier, and a clean end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

QS = Path(__file__).parents[2] / "examples" / "tinker_quick_start"
RUNTIME = Path(__file__).with_name("scripted_runtime.py")
MODEL = Path(os.environ.get("TINKER_TEST_MODEL", Path.home() / ".cache/tinker-backend/models/SmolLM2-135M-Instruct"))
HARBOR = os.environ.get("ROCK_HARBOR_PYTHON")
# Told apart from every other process of the machine.
LONG_COMMAND = "sleep 76543"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.harbor,
    pytest.mark.namespaces,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not MODEL.is_dir(), reason="needs the folder of SmolLM2-135M-Instruct (TINKER_TEST_MODEL)"),
    pytest.mark.skipif(HARBOR is None, reason="needs the Harbor environment (ROCK_HARBOR_PYTHON)"),
]


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def mini_family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few mini tasks."""
    from rock.harbor.tasks import write_mini_tasks

    folder = tmp_path_factory.mktemp("mini")
    write_mini_tasks(folder, train_per_kind=1, heldout_per_kind=1)
    return folder


@pytest.fixture
def configured(work_folder: Path, mini_family: Path) -> Callable[..., Path]:
    """Configures a TASK of the local profile whose model writes the given answers."""

    def configure(task: Path, turns: list[list[str]], *options: str) -> Path:
        (work_folder / "assets" / "harbor-tasks" / task.name).symlink_to(task)
        admin, worker, backend = free_ports(3)
        command = ["--profile", "local", "--task-root", work_folder, "--task-id", task.name, "--model", MODEL]
        command += ["--admin-port", admin, "--worker-port", worker, "--backend-port", backend, *options]
        subprocess.run([sys.executable, QS / "configure.py", *map(str, command)], check=True, timeout=60)
        (work_folder / "script.json").write_text(json.dumps({"turns": turns}))
        runtime = work_folder / "config" / "runtime.yaml"
        data = yaml.safe_load(runtime.read_text())
        data["runtime"]["command"] = [sys.executable, str(RUNTIME)]
        runtime.write_text(yaml.safe_dump(data))
        engine = work_folder / "config" / "engine.yaml"
        engine.write_text(
            yaml.safe_dump({**yaml.safe_load(engine.read_text()), "script": str(work_folder / "script.json")})
        )
        return work_folder

    return configure


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PY", "ROCK", "TINKER_API_KEY")}
    environment |= {"TASK": str(folder), "OMP_NUM_THREADS": "1"}
    log = (folder / "terminal.log").open("wb")
    # A terminal gives the job a process group of its own, which Ctrl-C reaches as a whole.
    return subprocess.Popen(
        ["bash", str(QS / "run.sh"), *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
        start_new_session=True,
    )  # fmt: skip


def run_dir(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found


def results(folder: Path) -> Path:
    (found,) = (run_dir(folder) / "results").iterdir()
    return found


def exit_code(folder: Path) -> int:
    return int(json.loads((run_dir(folder) / "exit-status.json").read_text())["exit_code"])


def leftovers(folder: Path) -> list[str]:
    """Processes and mounts that still name the work folder, and agents' commands in sandboxes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in text or text.startswith(LONG_COMMAND):
            found.append(text)
    return found + [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]


def assert_clean(folder: Path) -> None:
    end = time.monotonic() + 30
    while (left := leftovers(folder)) and time.monotonic() < end:
        time.sleep(0.2)
    assert left == [], (folder / "terminal.log").read_text()
    config = [yaml.safe_load((folder / "config" / name).read_text()) for name in ("admin.yaml", "runtime.yaml")]
    for port in (config[0]["admin"]["port"], config[0]["worker"]["port"], config[1]["backend"]["port"]):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def solution_of(task: Path) -> str:
    """The command that solves a mini task, as the agent writes it."""
    lines = (task / "solution" / "solve.sh").read_text().splitlines()
    command = "\n".join(line for line in lines if not line.startswith(("#!", "set ", "cd ")))
    return f"```bash\n{command}\n```"


def mini_task(family: Path) -> Path:
    return sorted((family / "train").iterdir())[0]


def test_a_rollout_whose_model_writes_the_right_command_ends_with_reward_one(configured, mini_family):
    task = mini_task(mini_family)
    folder = configured(task, [[solution_of(task)]])
    assert start(folder, "rollout", "--task-id", task.name).wait(300) == 0, (folder / "terminal.log").read_text()
    summary = json.loads((results(folder) / "summary.json").read_text())
    assert (summary["task_id"], summary["reward"], summary["episode_done"]) == (task.name, 1.0, True)
    assert summary["turns_used"] == 1 and summary["time_seconds"] > 0
    assert exit_code(folder) == 0
    log = (run_dir(folder) / "client.log").read_text()
    for line in ("Run directory: ", "Results dir: ", "TINKER_SERVER_JOB ", "Rollout done"):
        assert line in log
    assert list((results(folder) / "sandbox").rglob("reward.txt"))
    assert_clean(folder)


def test_a_rollout_that_does_nothing_ends_with_reward_zero_and_exit_code_zero(configured, mini_family):
    task = mini_task(mini_family)
    folder = configured(task, [["```bash\ntrue\n```"]])
    assert start(folder, "rollout", "--task-id", task.name).wait(300) == 0, (folder / "terminal.log").read_text()
    summary = json.loads((results(folder) / "summary.json").read_text())
    assert (summary["reward"], summary["episode_done"]) == (0.0, True)


def test_the_right_edit_of_the_sympy_problem_ends_with_reward_one_and_a_report(configured, tmp_path):
    from rock.harbor.tasks import build_repository_task
    from rock.harbor.tasks.sources import SourceError

    try:
        task = build_repository_task("sympy__sympy-19637", tmp_path / "tasks")
    except SourceError as error:
        pytest.skip(f"the source release cannot be had: {error}")
    edit = "sed -i 's/^        hit = kern in s$/            hit = kern in s/' sympy/core/sympify.py && git diff --stat"
    fence = "```mswea_bash_command\n{}\n```"
    turns = [[fence.format(edit)], [fence.format("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]]
    folder = configured(task, turns)
    assert start(folder, "rollout", "--task-id", task.name).wait(500) == 0, (folder / "terminal.log").read_text()
    summary = json.loads((results(folder) / "summary.json").read_text())
    assert (summary["reward"], summary["episode_done"], summary["turns_used"]) == (1.0, True, 2)
    status = json.loads((results(folder) / "report.json").read_text())[task.name]
    assert status["resolved"] is True and not status["tests_status"]["PASS_TO_PASS"]["failure"]
    turns_json = json.loads((results(folder) / "trajectory.json").read_text())["turns"]
    first = turns_json[0]
    kept = first["prompt_tokens"] + first["completion_tokens"]
    assert (
        turns_json[1]["prompt_tokens"][: len(kept)] == kept
    )  # the second prompt holds the very tokens of the first turn
    assert_clean(folder)


def test_grpo_on_a_group_with_one_right_answer_trains_and_publishes(configured, mini_family):
    task = mini_task(mini_family)
    folder = configured(task, [[solution_of(task), "```bash\ntrue\n```"]])
    arguments = ["grpo", "--group-size", "2", "--rollout-concurrency", "2", "--lora-rank", "4", "--save-state", "end"]
    assert start(folder, *arguments).wait(400) == 0, (folder / "terminal.log").read_text()
    step: dict[str, Any] = json.loads((results(folder) / "step_000" / "step_result.json").read_text())
    assert sorted(step["group_returns"]) == [0, 1] and sorted(step["group_advantages"]) == [-0.5, 0.5]
    log = (run_dir(folder) / "client.log").read_text()
    for line in ("forward_backward done", "optim_step done", "Weights published to sampler"):
        assert line in log
    assert json.loads((results(folder) / "checkpoint.json").read_text())["name"] == "end"
    assert_clean(folder)


@pytest.mark.parametrize("mode", ["ppo", "ppo-kl"])
def test_ppo_modes_leave_their_result_and_trajectory(configured, mini_family, mode):
    task = mini_task(mini_family)
    folder = configured(task, [[solution_of(task)]])
    assert start(folder, mode, "--lora-rank", "0", "--max-train-transitions", "1").wait(400) == 0
    result = json.loads((results(folder) / "result.json").read_text())
    assert result["reward"] == 1 and result["fwdbwd_metrics"] and result["optim_metrics"]
    assert result["train_elapsed"] > 0 and result["published_sampling_client"]
    assert task.name in (results(folder) / "trajectory.txt").read_text()
    assert_clean(folder)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("Run directory", signal.SIGINT),
        ("TINKER_SERVER_JOB", signal.SIGINT),
        ("turn 0", signal.SIGINT),  # the agent's command runs in the task environment inside the sandbox
        ("turn 0", signal.SIGTERM),
    ],
)
def test_an_interrupted_run_leaves_no_process_mount_or_port(configured, mini_family, moment, number):
    task = mini_task(mini_family)
    folder = configured(task, [[f"```bash\n{LONG_COMMAND}\n```"]])
    running = start(folder, "rollout", "--task-id", task.name)
    wait_for(running, folder, moment)
    if moment == "turn 0":
        time.sleep(1.0)
    if number == signal.SIGINT:
        os.killpg(running.pid, number)  # what Ctrl-C at a terminal does
    else:
        os.kill(running.pid, number)
    assert running.wait(180) == 128 + number, (folder / "terminal.log").read_text()
    assert exit_code(folder) == 128 + number
    assert not list((run_dir(folder) / "results").rglob("summary.json"))
    assert_clean(folder)


def wait_for(running: subprocess.Popen[bytes], folder: Path, text: str) -> None:
    """Waits until the terminal shows a text."""
    end = time.monotonic() + 180
    while text not in (folder / "terminal.log").read_text():
        assert running.poll() is None and time.monotonic() < end, (folder / "terminal.log").read_text()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["grpo", "--group-size", "1"], "--group-size is 1; GRPO compares at least 2 rollouts"),
        (["grpo", "--group-size", "two"], "argument --group-size: 'two' is no whole number"),
        (["ppo", "--learning-rate", "fast"], "argument --learning-rate: 'fast' is no number"),
        (["ppo", "--learning-rat", "1e-6"], "unrecognized arguments: --learning-rat 1e-6"),
        (["rollout", "--task-id", "nope"], "task 'nope' is not in"),
    ],
)
def test_a_mistake_in_the_options_is_told_before_anything_is_started(configured, mini_family, arguments, sentence):
    folder = configured(mini_task(mini_family), [["x"]])
    running = start(folder, *arguments)
    assert running.wait(60) == 2 == exit_code(folder)
    assert sentence in (run_dir(folder) / "client.log").read_text()
    assert not list(run_dir(folder).glob("rock-*.out")) and not (folder / "jobs").exists()


def test_a_taken_backend_port_is_told_before_anything_is_started(configured, mini_family):
    folder = configured(mini_task(mini_family), [["x"]])
    port = yaml.safe_load((folder / "config" / "runtime.yaml").read_text())["backend"]["port"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert start(folder, "rollout").wait(60) == 2
    assert f"127.0.0.1:{port} cannot be used" in (folder / "terminal.log").read_text()
    assert not list(run_dir(folder).glob("rock-*.out"))


def test_a_killed_run_takes_everything_with_it(configured, mini_family):
    task = mini_task(mini_family)
    folder = configured(task, [[f"```bash\n{LONG_COMMAND}\n```"]])
    running = start(folder, "rollout", "--task-id", task.name)
    wait_for(running, folder, "turn 0")
    running.kill()
    running.wait()
    assert_clean(folder)


def test_a_model_that_cannot_be_loaded_ends_the_run_with_its_reason(configured, mini_family):
    task = mini_task(mini_family)
    folder = configured(task, [["x"]])
    runtime = folder / "config" / "runtime.yaml"
    data = yaml.safe_load(runtime.read_text())
    data["runtime"] |= {"command": ["/bin/false"], "start_timeout_seconds": 10}
    runtime.write_text(yaml.safe_dump(data))
    assert start(folder, "rollout", "--task-id", task.name).wait(120) == 1
    assert "the backend" in (run_dir(folder) / "client.log").read_text()
    assert exit_code(folder) == 1
    assert_clean(folder)

"""demo.sh, the README's first command, from an empty folder to the page; with the real small model."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

QS = Path(__file__).parents[2] / "examples" / "tinker_quick_start"
MODEL = Path(os.environ.get("TINKER_TEST_MODEL", Path.home() / ".cache/tinker-backend/models/SmolLM2-135M-Instruct"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.harbor
@pytest.mark.namespaces
@pytest.mark.timeout(1500)
@pytest.mark.skipif(
    "ROCK_HARBOR_PYTHON" not in os.environ, reason="needs a Python 3.12 for Harbor (ROCK_HARBOR_PYTHON)"
)
@pytest.mark.skipif(not MODEL.is_dir(), reason="needs the folder of SmolLM2-135M-Instruct (TINKER_TEST_MODEL)")
def test_the_demo_ends_with_a_graded_rollout_a_trained_step_and_a_page(tmp_path: Path) -> None:
    task = tmp_path / "demo"
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PY", "ROCK", "ROLL", "OMP_NUM_THREADS")
    }
    done = subprocess.run(
        ["bash", str(QS / "demo.sh")],
        env=environment | {"TASK": str(task)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"Open the page: {task}/demo.html" in done.stdout

    (rollout,) = (task / "runs").glob("rollout-*")
    assert json.loads((rollout / "exit-status.json").read_text()) == {"exit_code": 0}
    summary = json.loads(next(rollout.glob("results/*/summary.json")).read_text())
    assert summary["task_id"] == "sympy__sympy-19637" and summary["episode_done"] is True
    report = json.loads(next(rollout.glob("results/*/report.json")).read_text())
    assert "tests_status" in report["sympy__sympy-19637"]

    (training,) = (task / "runs").glob("grpo-*")
    log = (training / "client.log").read_text()
    for line in ("forward_backward done", "optim_step done", "Weights published to sampler"):
        assert line in log
    result = json.loads(next(training.glob("results/*/result.json")).read_text())
    trained = [step for step in result["steps"] if step["skipped"] is None]
    assert trained and len(set(trained[0]["group_returns"])) > 1
    # On-policy: the trainer scores the sampled tokens nearly as the sampler did.
    assert trained[0]["fwdbwd_metrics"]["kl_sample_train_v2:mean"] < 0.05

    page = (task / "demo.html").read_text()
    for text in ("sympy__sympy-19637", trained[0]["task_id"], "advantage +", "Loss of each trained step"):
        assert text in page

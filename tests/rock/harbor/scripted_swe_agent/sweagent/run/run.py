"""Takes SWE-agent's command line and configuration; each answer's bash block is run, and every budget is kept as SWE-agent keeps it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml


def options(words: list[str]) -> dict[str, str]:
    """``--a.b=c`` and ``--a.b c``."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        found[name] = value if equals else next(rest)
    return found


def main() -> None:
    assert sys.argv[1] == "run", sys.argv
    given = options(sys.argv[2:])
    agent: dict[str, Any] = yaml.safe_load(Path(given["config"]).read_text())["agent"]
    model = dict(agent.get("model") or {})
    for name, value in given.items():
        if name.startswith("agent.model."):
            model[name.removeprefix("agent.model.")] = value
    base = model.get("api_base") or os.environ["OPENAI_BASE_URL"]
    extra = model.get("completion_kwargs") or {}
    extra = json.loads(extra) if isinstance(extra, str) else extra
    keep = next(one["n"] for one in agent["history_processors"] if one["type"] == "last_n_observations")
    longest = agent["templates"]["max_observation_length"]
    problem = Path(given["problem_statement.path"]).read_text()
    history: list[dict[str, str]] = [{"role": "user", "content": f"{agent['templates']['system_template']}\n{problem}"}]
    observations: list[int] = []
    calls = 0
    status = "exit_error"
    while True:
        shown = [dict(message) for message in history]
        for index in observations[:-keep] if len(observations) > keep else []:
            shown[index]["content"] = "Old environment output: (omitted)"
        body = {
            "model": model["name"].partition("/")[2],
            "messages": shown,
            "temperature": float(model["temperature"]),
            "top_p": float(model["top_p"]),
            **extra,
        }
        request = urllib.request.Request(
            f"{base}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            text = json.load(reply)["choices"][0]["message"]["content"]
        calls += 1
        if calls > int(model["per_instance_call_limit"]):  # the answer to the last call is not used
            status = "exit_cost"
            break
        history.append({"role": "assistant", "content": text})
        found = re.search(r"```bash\n(.*?)\n```", text, re.DOTALL)
        command = found[1] if found else "submit"
        if command == "submit":
            status = "submitted"
            break
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=given["env.repo.repo_name"])
        history.append({"role": "user", "content": f"OBSERVATION:\n{(done.stdout + done.stderr)[:longest]}"})
        observations.append(len(history) - 1)
    folder = Path(given["output_dir"]) / "task"
    folder.mkdir(parents=True, exist_ok=True)
    info = {"exit_status": status, "model_stats": {"api_calls": calls}, "settings": model}
    (folder / "task.traj").write_text(json.dumps({"trajectory": [], "history": history, "info": info}))


if __name__ == "__main__":
    main()

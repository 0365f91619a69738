"""One self-contained HTML page of a rollout and a training run: turns, rewards, advantages and losses; no network.

python -m tinker_cookbook.swe.report --rollout RUN_DIR --training RUN_DIR --out page.html
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from tinker_cookbook.swe import report_charts as charts
from tinker_cookbook.swe.errors import SettingError

_LONGEST_TEXT = 6000


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page. Returns 0, or 2 when a run directory holds no result."""
    parser = argparse.ArgumentParser(prog="tinker_cookbook.swe.report", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rollout", type=Path, help="run directory of run.sh rollout")
    parser.add_argument("--training", type=Path, help="run directory of run.sh grpo, ppo or ppo-kl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--note", action="append", default=[], metavar="NAME=VALUE", help="one more fact for the head")
    options = parser.parse_args(arguments)
    try:
        page = build(options.rollout, options.training, [tuple(note.split("=", 1)) for note in options.note])
    except SettingError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    part = options.out.with_name(f".{options.out.name}.part")
    part.write_text(page, encoding="utf-8")
    os.replace(part, options.out)
    print(options.out)
    return 0


def build(rollout: Path | None, training: Path | None, notes: Sequence[tuple[str, ...]] = ()) -> str:
    """The page as text.

    Raises:
        SettingError: a run directory without results, or neither given.
    """
    if rollout is None and training is None:
        raise SettingError("there is nothing to show; give --rollout, --training, or both")
    css = (importlib.resources.files("tinker_cookbook") / "templates" / "report.css").read_text(encoding="utf-8")
    sections = [_head(notes)]
    if rollout is not None:
        sections.append(_rollout_section(results_folder(rollout)))
    if training is not None:
        sections.append(_training_section(results_folder(training)))
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Agent rollout and GRPO on this machine</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def results_folder(run_dir: Path) -> Path:
    """The one results folder of a run directory, or the folder itself."""
    found = sorted(path for path in (run_dir / "results").glob("*") if path.is_dir())
    if found:
        return found[-1]
    if (run_dir / "summary.json").is_file() or (run_dir / "result.json").is_file():
        return run_dir
    raise SettingError(f"{run_dir} holds no results; look into its client.log")


def _head(notes: Sequence[tuple[str, ...]]) -> str:
    facts = [
        ("written", time.strftime("%Y-%m-%d %H:%M")),
        ("cores", f"{len(os.sched_getaffinity(0))} × {platform.machine()}"),
        *((note[0], note[-1]) for note in notes),
    ]
    return (
        "<h1>A coding agent, its verifier, and the training step that follows</h1>\n"
        '<p class="soft">The model answered every call of the agent below; the verifier of each task gave the reward; '
        "rewards that differ within a group became advantages, and these one step of training.</p>\n" + _facts(facts)
    )


def _rollout_section(folder: Path) -> str:
    summary = _read(folder / "summary.json")
    trajectory = _read(folder / "trajectory.json") if (folder / "trajectory.json").is_file() else {"turns": []}
    turns = trajectory["turns"]
    facts = [
        ("reward", _reward(summary["reward"])),
        ("episode done", "yes" if summary["episode_done"] else "no"),
        ("turns", str(summary["turns_used"])),
        ("time", f"{summary['time_seconds']:.0f} s"),
        ("tokens read", f"{sum(len(turn['prompt_tokens']) for turn in turns):,}"),
        ("tokens written", f"{sum(len(turn['completion_tokens']) for turn in turns):,}"),
    ]
    tests = _tests(folder, str(summary["task_id"]))
    error = f'<p class="down">{escape(str(summary["error"]))}</p>' if summary.get("error") else ""
    return (
        f"<h2>Rollout: {escape(str(summary['task_id']))}</h2>\n{_facts(facts)}{error}{tests}"
        f"<h3>Turns</h3>\n{_turns(turns)}"
    )


def _tests(folder: Path, task_id: str) -> str:
    """The verifier's report in SWE-bench's shape, as a table."""
    if not (folder / "report.json").is_file():
        return ""
    report = _read(folder / "report.json")
    report = report.get(task_id, report)
    status = report.get("tests_status") if isinstance(report, dict) else None
    if not isinstance(status, dict):
        return ""
    rows = [
        f"<tr><td>{escape(kind)}</td><td class='number'>{len(found.get('success', []))}</td>"
        f"<td class='number'>{len(found.get('failure', []))}</td></tr>"
        for kind, found in status.items()
        if isinstance(found, dict) and (found.get("success") or found.get("failure"))
    ]
    return (
        "<h3>Tests of the verifier</h3>\n<div class='wide'><table><tr><th>kind</th><th class='number'>passed</th>"
        f"<th class='number'>failed</th></tr>{''.join(rows)}</table></div>\n"
    )


def _training_section(folder: Path) -> str:
    result = _read(folder / "result.json")
    steps: list[dict[str, Any]] = result["steps"]
    options = result["options"]
    trained = [step for step in steps if step["skipped"] is None]
    facts = [
        ("steps", str(len(steps))),
        ("trained", str(len(trained))),
        ("rollouts a step", str(options["group_size"])),
        ("LoRA rank", str(options["lora_rank"] or "all weights")),
        ("learning rate", f"{options['learning_rate']:g}"),
        ("loss", str(options["loss_fn"])),
    ]
    rows = "".join(_step_row(step) for step in steps)
    parts = [
        f"<h2>Training: {escape(str(result['mode']).upper())}</h2>\n{_facts(facts)}",
        "<div class='wide'><table><tr><th>step</th><th>task</th><th>returns</th><th class='number'>loss</th>"
        "<th class='number'>tokens</th><th class='number'>KL sampler‖trainer</th><th>outcome</th></tr>"
        f"{rows}</table></div>",
        charts.returns(steps),
        charts.losses(trained),
    ]
    shown = trained[-1] if trained else (steps[-1] if steps else None)
    if shown is not None:
        parts.append(_group(folder, shown))
    return "\n".join(parts)


def _step_row(step: dict[str, Any]) -> str:
    metrics = step.get("fwdbwd_metrics") or {}
    loss = metrics.get("loss:sum")
    gap = metrics.get("kl_sample_train_v2:mean")
    outcome = "trained and published" if step["skipped"] is None else f"skipped: {step['skipped']}"
    returns = " ".join(f"{value:g}" for value in step["group_returns"]) or "–"
    return (
        f"<tr><td>{step['step']}</td><td>{escape(step['task_id'])}</td><td>{returns}</td>"
        f"<td class='number'>{'–' if loss is None else f'{loss:.4g}'}</td>"
        f"<td class='number'>{step['train_tokens'] or '–'}</td>"
        f"<td class='number'>{'–' if gap is None else f'{gap:.2g}'}</td><td>{escape(outcome)}</td></tr>"
    )


def _group(folder: Path, step: dict[str, Any]) -> str:
    """The rollouts of one step with their transcripts."""
    parts = [
        f"<h3>The group of step {step['step']}: {escape(step['task_id'])}</h3>",
        charts.advantages(step),
    ]
    for file in sorted((folder / f"step_{step['step']:03d}").glob("rollout_*.json")):
        rollout = _read(file)
        advantage = rollout.get("advantage")
        tone = "none" if not advantage else "up" if advantage > 0 else "down"
        shown = "not evaluated" if advantage is None else f"advantage {advantage:+.3g}"
        parts.append(
            f"<details><summary>{escape(file.stem)} · reward {_reward(rollout['reward'])} · "
            f"<span class='{tone}'>{shown}</span> · {_turn_count(rollout['turns'])}</summary>"
            f"<div>{_turns(rollout['turns'])}</div></details>"
        )
    return "\n".join(parts)


def _turns(turns: list[dict[str, Any]]) -> str:
    """Transcripts: each message once, in the turn that brought it."""
    parts = []
    shown: list[Any] = []
    for turn in turns:
        start = len(shown) if turn["messages"][: len(shown)] == shown else 0
        blocks = [_message(item) for item in turn["messages"][start:]]
        blocks.append(_message(turn["answer"], answer=True))
        mean = sum(turn["logprobs"]) / len(turn["logprobs"]) if turn["logprobs"] else 0.0
        parts.append(
            f"<details><summary>turn {turn['index'] + 1} · {len(turn['prompt_tokens'])} tokens read "
            f"({turn['reused_tokens']} kept) · {len(turn['completion_tokens'])} written · "
            f"mean logprob {mean:.2f} · {turn['seconds']:.1f} s</summary><div>{''.join(blocks)}</div></details>"
        )
        shown = [*turn["messages"], turn["answer"]]
    return "\n".join(parts) or '<p class="soft">The model was never asked.</p>'


def _turn_count(turns: list[Any]) -> str:
    return "1 turn" if len(turns) == 1 else f"{len(turns)} turns"


def _message(message: dict[str, Any], *, answer: bool = False) -> str:
    text = str(message.get("content") or "")
    for call in message.get("tool_calls") or []:
        text += "\n" + json.dumps(call["function"], ensure_ascii=False)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}\n… {len(text) - _LONGEST_TEXT} more characters"
    role = "answer of the policy" if answer else str(message.get("role"))
    return f"<div class='role'>{escape(role)}</div><pre{' class=answer' if answer else ''}>{escape(text.strip())}</pre>"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"<dl class='facts'>{cells}</dl>\n"


def _reward(value: float | None) -> str:
    return "not evaluated" if value is None else f"{value:g}"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {error}") from error


if __name__ == "__main__":
    sys.exit(main())

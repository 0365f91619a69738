"""The configuration of one run: engine.yaml, runtime.yaml and harbor.yaml of a config folder, read and checked together."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.launch import read_runtime_yaml, read_yaml
from tinker_cookbook.swe.budget import TokenBudget
from tinker_cookbook.swe.errors import SettingError

# Where the tasks stand in the sandbox when harbor.yaml names no folder.
_TASKS_IN_SANDBOX = "/opt/swe/harbor-tasks"


@dataclass(frozen=True)
class RunSettings:
    """What a recipe needs to know of a config folder.

    Attributes:
        base_model: the name that the backend serves the model under.
        tokenizer: folder or hub id of its tokenizer.
        budget: token limits of one model call.
        job_seconds: the budget of one rollout, from the start of the sandbox to the collected results.
        rollout_only: the engine was configured without training.
        harbor: harbor.yaml as data.
    """

    config_dir: Path
    runtime_yaml: Path
    base_model: str
    tokenizer: str
    budget: TokenBudget
    job_seconds: float
    temperature: float
    rollout_only: bool
    harbor: dict[str, Any]

    @property
    def task_ids(self) -> list[str]:
        """The tasks that harbor.yaml names."""
        return [name for dataset in self.harbor.get("datasets") or [] for name in dataset.get("task_names") or []]

    def harbor_for(self, task: Path | str) -> dict[str, Any]:
        """The harbor configuration of one rollout of one task.

        Args:
            task: a task id that harbor.yaml uploads, or the folder of a Harbor task on this machine.
        """
        harbor = copy.deepcopy(self.harbor)
        folder = task if isinstance(task, Path) else self._task_folder(task)
        target = _task_root(harbor)
        others = [pair for pair in harbor["environment"].get("uploads") or [] if not str(pair[1]).startswith(target)]
        harbor["environment"]["uploads"] = [*others, [str(folder), f"{target}/{folder.name}"]]
        harbor["datasets"] = [{"path": target, "task_names": [folder.name], "n_tasks": 1}]
        return harbor

    def _task_folder(self, task_id: str) -> Path:
        for source, target in self.harbor["environment"].get("uploads") or []:
            for folder in (Path(source), Path(source) / task_id):
                if folder.name == task_id and (folder / "task.toml").is_file():
                    return folder
            if Path(target).name == task_id:
                return Path(source)
        known = ", ".join(self.task_ids) or "none"
        raise SettingError(
            f"task {task_id!r} is not in {self.config_dir}/harbor.yaml (it names: {known}); "
            "run prepare_sandbox.py and configure.py for it in a new TASK folder"
        )


def read_settings(config_dir: Path, *, max_tokens: int | None = None) -> RunSettings:
    """Reads and checks a config folder.

    Args:
        max_tokens: `--max-tokens`: replaces the agent's output budget in this run, in all places at once.

    Raises:
        SettingError: a file or a value is missing or wrong, or the budgets do not fit.
    """
    if not config_dir.is_dir():
        raise SettingError(f"{config_dir} is no folder; run configure.py with --task-root {config_dir.parent}")
    runtime_yaml = config_dir / "runtime.yaml"
    runtime = read_runtime_yaml(runtime_yaml)
    engine_yaml = Path(runtime["runtime"]["engine"])
    engine = read_yaml(engine_yaml)
    harbor = read_yaml(config_dir / "harbor.yaml")
    for key in ("environment", "agents", "datasets"):
        if not harbor.get(key):
            raise SettingError(f"{config_dir}/harbor.yaml has no {key}; write it anew with configure.py")
    agent = harbor["agents"][0]
    output = _output_budget(agent.setdefault("kwargs", {}), max_tokens, config_dir)
    kwargs = agent["kwargs"]
    context = _whole(engine, "sequence_length", 4096, engine_yaml)
    budget = TokenBudget(
        max_input=_whole(kwargs, "max_input_tokens", max(1, context - output), config_dir / "harbor.yaml"),
        max_output=output,
        context=context,
    )
    return RunSettings(
        config_dir=config_dir,
        runtime_yaml=runtime_yaml,
        base_model=_model_name(engine, engine_yaml),
        tokenizer=_tokenizer(engine, engine_yaml),
        budget=budget,
        job_seconds=_seconds(harbor, config_dir / "harbor.yaml"),
        temperature=float(kwargs.get("temperature", 1.0)),
        rollout_only=bool(runtime["runtime"].get("rollout_only", False)),
        harbor=harbor,
    )


def _output_budget(kwargs: dict[str, Any], max_tokens: int | None, config_dir: Path) -> int:
    """The agent's output budget; its two spellings must agree, and both take the value of --max-tokens."""
    written: Any = kwargs.get("completion_kwargs") or {}
    as_text = isinstance(written, str)
    completion: dict[str, Any] = json.loads(written) if as_text else dict(written)
    found = {
        "max_output_tokens": kwargs.get("max_output_tokens"),
        "completion_kwargs.max_tokens": completion.get("max_tokens"),
    }
    values = {int(value) for value in found.values() if value is not None}
    if max_tokens is None and len(values) > 1:
        raise SettingError(
            f"{config_dir}/harbor.yaml names two output budgets ({found}); make them equal, or give --max-tokens"
        )
    if max_tokens is None and not values:
        raise SettingError(f"{config_dir}/harbor.yaml names no agents[0].kwargs.max_output_tokens; add it")
    budget = values.pop() if max_tokens is None else max_tokens
    if budget < 1:
        raise SettingError(f"the output budget is {budget} tokens; give --max-tokens at least 1")
    if kwargs.get("max_output_tokens") is not None or not completion:
        # Harbor hands some agents their options as text; the spelling is kept.
        kwargs["max_output_tokens"] = str(budget) if isinstance(kwargs.get("max_output_tokens"), str) else budget
    if completion.get("max_tokens") is not None:
        completion["max_tokens"] = budget
        kwargs["completion_kwargs"] = json.dumps(completion) if as_text else completion
    return budget


def _whole(section: dict[str, Any], key: str, default: int, file: Path) -> int:
    value = section.get(key, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise SettingError(f"{key} in {file} is {value!r}; give a whole number of at least 1")
    return number


def _seconds(harbor: dict[str, Any], file: Path) -> float:
    value = harbor.get("timeout", 1800)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise SettingError(f"timeout in {file} is {value!r}; give the seconds of a whole rollout, e.g. 1800")
    return float(value)


def _pretrain(engine: dict[str, Any], file: Path) -> str:
    pretrain = engine.get("pretrain")
    if not isinstance(pretrain, str) or not pretrain:
        raise SettingError(f"pretrain in {file} is {pretrain!r}; give a model folder or a hub id")
    return pretrain


def _model_name(engine: dict[str, Any], file: Path) -> str:
    if engine.get("model_name"):
        return str(engine["model_name"])
    pretrain = _pretrain(engine, file)
    is_folder = (file.parent / Path(pretrain).expanduser()).is_dir()
    return Path(pretrain).name if is_folder else pretrain


def _tokenizer(engine: dict[str, Any], file: Path) -> str:
    pretrain = _pretrain(engine, file)
    folder = file.parent / Path(pretrain).expanduser()
    return str(folder.resolve()) if folder.is_dir() else pretrain


def _task_root(harbor: dict[str, Any]) -> str:
    path = (harbor["datasets"][0] or {}).get("path")
    return str(path) if path else _TASKS_IN_SANDBOX

"""Where the numbers of a run go: JSON lines, the terminal, and services for those who use them."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils.code_state import code_state

logger = logging.getLogger(__name__)

_HANDLER = "tinker_cookbook"


def dump_config(config: Any) -> Any:
    """A configuration as plain JSON values: chz objects, dataclasses, pydantic models and containers."""
    if config is None or isinstance(config, bool | int | float | str):
        return config.value if isinstance(config, Enum) else config
    if isinstance(config, Enum):
        return config.value
    if isinstance(config, Mapping):
        return {str(key): dump_config(value) for key, value in config.items()}
    if isinstance(config, Sequence | set | frozenset):
        return [dump_config(value) for value in config]
    if hasattr(config, "__chz_fields__"):
        rows = {name: dump_config(getattr(config, name)) for name in config.__chz_fields__}
        return {"class": type(config).__qualname__, **rows}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: dump_config(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if hasattr(config, "model_dump"):
        return dump_config(config.model_dump())
    if callable(config):
        return f"{getattr(config, '__module__', '?')}:{getattr(config, '__qualname__', type(config).__qualname__)}"
    return str(config) if isinstance(config, Path) else repr(config)


class Logger(ABC):
    """One destination."""

    @abstractmethod
    def log_hparams(self, config: Any) -> None:
        """The configuration, once."""

    @abstractmethod
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Numbers of a step."""

    def enable_event_steps(self) -> None:
        """Numbers of events will come too, with a step of their own; called before the first of them."""
        return None

    def log_metrics_event(
        self,
        metrics: dict[str, Any],
        step: int | float,
        step_metric: str,
        metric_axes: Mapping[str, str] | None = None,
    ) -> None:
        """Numbers of an event that is no step of training, such as an evaluation.

        Args:
            step: where the event is on the axis ``step_metric``, which is stored as one of the numbers.
            metric_axes: other axes, by the names of the metrics that are drawn over them.
        """
        self.log_metrics({**metrics, step_metric: step}, step=int(step))

    def log_summary(self, metrics: dict[str, Any]) -> None:
        """Numbers of the whole run."""
        return None

    def log_long_text(self, key: str, text: str) -> None:
        """A text under a name."""
        return None

    def sync(self) -> None:
        """Write out what is buffered."""
        return None

    def close(self) -> None:
        """End of the run."""
        return None

    def get_logger_url(self) -> str | None:
        """Where a person can look at the run."""
        return None

    @property
    def store(self) -> TrainingRunStore | None:
        """The run's files, if this destination has them."""
        return None


class JsonLogger(Logger):
    """``config.json`` and ``metrics.jsonl`` in the folder of the run."""

    def __init__(self, log_dir: str | Path, store: TrainingRunStore | None = None) -> None:
        self._store = store or TrainingRunStore.local(log_dir)

    @property
    def store(self) -> TrainingRunStore:
        return self._store

    def log_hparams(self, config: Any) -> None:
        self._store.write_config(dump_config(config))
        diff = code_state()
        self._store.write_code_diff(diff)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._store.write_metrics(metrics, step)

    def log_summary(self, metrics: dict[str, Any]) -> None:
        self._store.write_metrics(metrics)

    def log_long_text(self, key: str, text: str) -> None:
        self._store.write_text(f"{key.replace('/', '_')}.txt", text)


class PrettyPrintLogger(Logger):
    """A table on the terminal; plain lines where there is no terminal."""

    def log_hparams(self, config: Any) -> None:
        logger.info("config: %s", json.dumps(dump_config(config), ensure_ascii=False))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        from rich.console import Console
        from rich.table import Table

        console = Console(stderr=False)
        if not console.is_terminal:
            shown = ", ".join(f"{key}={_short(value)}" for key, value in metrics.items() if not key.startswith("time/"))
            logger.info("step %s: %s", step, shown)
            return
        table = Table(title=f"Step {step}", show_header=False)
        for key, value in sorted(metrics.items()):
            table.add_row(key, _short(value))
        console.print(table)

    def log_summary(self, metrics: dict[str, Any]) -> None:
        logger.info("summary: %s", json.dumps(metrics, default=str))


class WandbLogger(Logger):
    """Weights & Biases (extra: ``pip install wandb``). A resumed folder continues its run."""

    def __init__(
        self,
        project: str | None = None,
        config: Any | None = None,
        log_dir: str | Path | None = None,
        wandb_name: str | None = None,
    ) -> None:
        wandb: Any = _need("wandb")
        id_file = None if log_dir is None else Path(log_dir) / "wandb_run_id"
        known = id_file.read_text().strip() if id_file is not None and id_file.exists() else None
        folder = None if log_dir is None else str(log_dir)
        self._run = wandb.init(
            project=project, name=wandb_name, dir=folder, id=known, resume="allow" if known else None
        )
        self._event_steps = False
        if id_file is not None:
            id_file.write_text(str(self._run.id))
        if config is not None:
            self.log_hparams(config)

    def log_hparams(self, config: Any) -> None:
        self._run.config.update(dump_config(config), allow_val_change=True)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if self._event_steps and step is not None:
            self._run.log({**metrics, "step": step})
        else:
            self._run.log(metrics, step=step)

    def enable_event_steps(self) -> None:
        """The service's own counter only goes up, so steps become a metric that the others are drawn over."""
        self._event_steps = True
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log_metrics_event(
        self,
        metrics: dict[str, Any],
        step: int | float,
        step_metric: str,
        metric_axes: Mapping[str, str] | None = None,
    ) -> None:
        for key in metrics:
            self._run.define_metric(key, step_metric=(metric_axes or {}).get(key, step_metric))
        self._run.log({**metrics, step_metric: step})

    def log_summary(self, metrics: dict[str, Any]) -> None:
        self._run.summary.update(metrics)

    def close(self) -> None:
        self._run.finish()

    def get_logger_url(self) -> str | None:
        return str(self._run.url) if self._run.url else None


class TensorBoardLogger(Logger):
    """TensorBoard event files (needs ``tensorboard``)."""

    def __init__(self, log_dir: str | Path) -> None:
        _need("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(Path(log_dir) / "tensorboard"))

    def log_hparams(self, config: Any) -> None:
        self._writer.add_text("config", f"```json\n{json.dumps(dump_config(config), indent=2)}\n```")

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for key, value in metrics.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(key, value, step)

    def sync(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MlflowLogger(Logger):
    """MLflow (needs ``mlflow``); the tracking server comes from ``MLFLOW_TRACKING_URI``."""

    def __init__(self, experiment: str, name: str | None) -> None:
        self._mlflow: Any = _need("mlflow")
        self._mlflow.set_experiment(experiment)
        self._mlflow.start_run(run_name=name)

    def log_hparams(self, config: Any) -> None:
        self._mlflow.log_dict(dump_config(config), "config.json")

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        numbers = {k.replace(":", "."): float(v) for k, v in metrics.items() if isinstance(v, int | float)}
        self._mlflow.log_metrics(numbers, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class MultiplexLogger(Logger):
    """Several destinations at once."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = list(loggers)

    def log_hparams(self, config: Any) -> None:
        for destination in self.loggers:
            destination.log_hparams(config)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for destination in self.loggers:
            destination.log_metrics(metrics, step)

    def enable_event_steps(self) -> None:
        for destination in self.loggers:
            destination.enable_event_steps()

    def log_metrics_event(
        self,
        metrics: dict[str, Any],
        step: int | float,
        step_metric: str,
        metric_axes: Mapping[str, str] | None = None,
    ) -> None:
        for destination in self.loggers:
            destination.log_metrics_event(metrics, step, step_metric, metric_axes)

    def log_summary(self, metrics: dict[str, Any]) -> None:
        for destination in self.loggers:
            destination.log_summary(metrics)

    def log_long_text(self, key: str, text: str) -> None:
        for destination in self.loggers:
            destination.log_long_text(key, text)

    def sync(self) -> None:
        for destination in self.loggers:
            destination.sync()

    def close(self) -> None:
        for destination in self.loggers:
            destination.close()

    def get_logger_url(self) -> str | None:
        return next((url for url in (item.get_logger_url() for item in self.loggers) if url), None)

    @property
    def store(self) -> TrainingRunStore | None:
        return next((item.store for item in self.loggers if item.store is not None), None)


def setup_logging(
    log_dir: str | Path,
    wandb_project: str | None = None,
    wandb_name: str | None = None,
    config: Any | None = None,
    do_configure_logging_module: bool = True,
) -> MultiplexLogger:
    """Loggers of a run: files and terminal always, W&B with a project.

    ``TINKER_COOKBOOK_LOGGERS=tensorboard,mlflow`` adds those two.
    """
    folder = Path(log_dir).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"log_path={str(log_dir)!r} cannot be made: {error}") from error
    if do_configure_logging_module:
        configure_logging_module(str(folder / "logs.log"))
    loggers: list[Logger] = [JsonLogger(folder), PrettyPrintLogger()]
    if wandb_project:
        loggers.append(WandbLogger(wandb_project, None, folder, wandb_name))
    for extra in filter(None, os.environ.get("TINKER_COOKBOOK_LOGGERS", "").split(",")):
        if extra == "tensorboard":
            loggers.append(TensorBoardLogger(folder))
        elif extra == "mlflow":
            loggers.append(MlflowLogger(wandb_project or "tinker-cookbook", wandb_name or folder.name))
        else:
            raise ConfigurationError(f"TINKER_COOKBOOK_LOGGERS: {extra!r} is unknown; use tensorboard, mlflow")
    out = MultiplexLogger(loggers)
    if config is not None:
        out.log_hparams(config)
    return out


class _RunLog(logging.FileHandler):
    """The messages of a run, in its folder; when that is gone, the program goes on without them."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)  # opens the file again when another library has closed all handlers
        except FileNotFoundError:
            logging.getLogger().removeHandler(self)


def configure_logging_module(path: str, level: int = logging.INFO) -> logging.Logger:
    """Send the messages of the ``logging`` module to a file and to the terminal."""
    root = logging.getLogger()
    root.setLevel(level)
    for old in [h for h in root.handlers if h.get_name() == _HANDLER]:
        root.removeHandler(old)
        old.close()
    form = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    handlers: tuple[logging.Handler, ...] = (_RunLog(path, encoding="utf-8"), logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(form)
        handler.set_name(_HANDLER)
        root.addHandler(handler)
    for noisy in ("httpx", "httpcore", "urllib3", "datasets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return root


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _need(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigurationError(f"this logger needs the package {package!r}: pip install {package}") from error

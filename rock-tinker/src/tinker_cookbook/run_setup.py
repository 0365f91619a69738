"""What every training run opens before its loop starts: logging, session, training client, checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import tinker
from tinker_cookbook import checkpoint_utils, model_info, tokenizer_utils
from tinker_cookbook.checkpoint_utils import CheckpointManager, CheckpointRecord
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.git_rev import recipe_user_metadata
from tinker_cookbook.utils.session_naming import resolve_session_display_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """``resume``: the checkpoint that the training client was restored from, None for a new run."""

    service_client: tinker.ServiceClient
    training_client: tinker.TrainingClient
    ml_logger: ml_log.Logger
    checkpoints: CheckpointManager
    resume: CheckpointRecord | None
    tokenizer: Tokenizer


def _warn_when_nothing_listens(url: str | None) -> None:
    """The SDK tries for minutes in silence, since a server may still be starting."""
    parts = urlsplit(url or "")
    if parts.hostname is None:
        return
    try:
        socket.create_connection((parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), 3).close()
    except OSError as error:
        logger.warning(
            "nothing listens at %s (%s); trying on for some minutes. tinker-backend serve starts a server, and "
            "base_url or TINKER_BASE_URL names it",
            url,
            error,
        )


@contextlib.asynccontextmanager
async def open_run(config: Any, *, seed: int | None, logged_config: Any | None = None) -> AsyncIterator[OpenRun]:
    """Open the run that a training configuration describes, and close its session and its files at the end.

    ``seed`` is that of a new adapter's first weights. ``logged_config`` is written to the run's files instead of
    ``config``.
    """
    resume = checkpoint_utils.get_last_checkpoint(config.log_path)
    logged = logged_config if logged_config is not None else config
    ml_logger = ml_log.setup_logging(config.log_path, config.wandb_project, config.wandb_name, logged)
    if config.enable_trace:
        trace.trace_init(output_file=f"{config.log_path}/trace_events.jsonl")
    name = resolve_session_display_name(session_name=config.session_name, wandb_name=config.wandb_name)
    model_info.warn_if_renderer_not_recommended(config.model_name, config.renderer_name)
    metadata = recipe_user_metadata(config.recipe_name)
    await asyncio.to_thread(_warn_when_nothing_listens, config.base_url or os.environ.get("TINKER_BASE_URL"))
    try:
        with tinker.ServiceClient(
            user_metadata=metadata, display_name=name, base_url=config.base_url
        ) as service_client:
            training_client = await checkpoint_utils.open_training_client(
                service_client,
                model_name=config.model_name,
                lora_rank=config.lora_rank,
                resume_from=resume,
                load_checkpoint_path=config.load_checkpoint_path,
                renderer_name=config.renderer_name,
                user_metadata=metadata,
                seed=seed,
            )
            checkpoints = CheckpointManager(
                training_client,
                service_client,
                config.log_path,
                save_every=config.save_every,
                save_every_tokens=getattr(config, "save_every_tokens", 0),
                save_every_seconds=getattr(config, "save_every_seconds", 0.0),
                ttl_seconds=config.ttl_seconds,
                rolling_save_every=config.rolling_save_every,
                rolling_ttl_seconds=config.rolling_ttl_seconds,
                store=ml_logger.store,
            )
            local = tokenizer_utils.find_local_folder(config.model_name) is not None
            tokenizer = tokenizer_utils.get_tokenizer(config.model_name) if local else training_client.get_tokenizer()
            yield OpenRun(service_client, training_client, ml_logger, checkpoints, resume, tokenizer)
    finally:
        trace.trace_shutdown()
        ml_logger.close()

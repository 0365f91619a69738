"""What vLLM's workers get from here, besides their own methods. vLLM loads this module in each of them, by its name.

A worker may be the replica itself, its child, or (of several devices) a child of the engine's process. Workers end with the
replica: when it is killed, or all of Ray dies at once, nobody else would end them, and they would hold their memory for ever.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch

from tinker_backend.runtime.ray.leftovers import parent_of, start_of
from tinker_backend.runtime.ray.weight_broadcast import Channel, Item, receive

REPLICA = "TINKER_REPLICA"
"""Environment variable: process id of the replica, for the processes that it starts."""
_POLL_SECONDS = 1.0


class WeightReceiver:
    """Mixed into vLLM's workers (``worker_extension_cls``), which call its methods by their names."""

    def receive_weights(self, items: list[Any], dtype: str, channel: dict[str, Any], first: int) -> None:
        """Replaces this worker's weights by those of a channel; workers of a replica are ``first``, ``first + 1``, …"""
        worker: Any = self
        named = [Item(name, tuple(shape)) for name, shape in items]
        incoming = receive(named, getattr(torch, dtype), Channel(**channel), first + int(worker.rank))
        worker.reload_weights(weights_iterator=incoming)
        _pack_tied_head(worker.model_runner.get_model())

    def read_weights(self, path: str) -> None:
        """Replaces this worker's weights by those of a folder."""
        worker: Any = self
        worker.reload_weights(weights_path=path)
        _pack_tied_head(worker.model_runner.get_model())


def _pack_tied_head(model: torch.nn.Module) -> None:
    """On a CPU vLLM multiplies by packed copies; it renews those of the weights that it reads, so not that of a tied head."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)


def end_with(replica: int) -> None:
    """From now on this process ends within two seconds when ``replica`` is gone, and so does a process between the two."""
    began, engine = start_of(replica), os.getppid()
    between = parent_of(engine) == replica

    def watch() -> None:
        while began is not None and start_of(replica) == began:
            time.sleep(_POLL_SECONDS)
        if between and os.getppid() == engine:
            os.kill(engine, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-replica", daemon=True).start()


if (replica_id := int(os.environ.get(REPLICA, os.getpid()))) != os.getpid():
    end_with(replica_id)

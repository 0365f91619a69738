"""Starts the runtime process: ``python -m tinker_backend.runtime --engine engine.yaml --endpoint ipc:///dir/runtime.sock``."""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import sys
from pathlib import Path
from typing import Any

from tinker_backend.runtime.service import Service


def main() -> int:
    """Command line of the runtime; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tinker_backend.runtime", description="Trains and samples for one server.")
    parser.add_argument("--engine", type=Path, required=True, help="engine.yaml")
    parser.add_argument("--endpoint", required=True, help="ZeroMQ endpoint to bind, such as ipc:///run/runtime.sock")
    parser.add_argument("--parent", type=int, help="process id whose end also ends the runtime")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    options = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s runtime %(name)s: %(message)s",
    )

    # Threads that wait for one another spin for some 30 microseconds, the time between two small operations, and then
    # sleep: others may want their cores. Read when torch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1500")

    def build() -> Any:
        # torch is imported here, on the engine's thread, so that the socket is bound at once.
        from tinker_backend.config import EngineConfig
        from tinker_backend.engine_rules import is_cluster

        config = EngineConfig.load(options.engine)
        if is_cluster(config):
            from tinker_backend.runtime.ray.build_cluster import build_cluster

            return build_cluster(config)
        from tinker_backend.runtime.build import build_engine
        from tinker_backend.runtime.hardware import keep_freed_memory

        keep_freed_memory()
        return build_engine(config)

    return Service(options.endpoint, options.parent, build, importlib.metadata.version("tinker-backend")).run()


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # The engine's thread may be inside torch; nothing of it is needed any more.
    os._exit(status)

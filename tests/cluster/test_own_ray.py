"""A runtime's Ray is its own: others on the machine, and what the environment says of them, do not matter to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

RUNTIME = """
import json, os, sys
import ray
from tinker_backend.config import EngineConfig
from tinker_backend.runtime.ray.placement import place
from tinker_backend.runtime.ray.ray_cluster import ActorLost, NodeProbe, RayCluster, wait_for

vllm = {"strategy_args": {"strategy_name": "vllm"}, "device_mapping": [0]}
cluster = {"cpus": 1, "object_store_bytes": 80 * 2**20} | json.loads(sys.argv[1])
config = EngineConfig.model_validate({"pretrain": "none", "device": "cpu", "actor_infer": vllm, "cluster": cluster})
mine = RayCluster(config.cluster, place(config))
mine.open()
try:
    actor = mine.actor(NodeProbe, mine.placement.infer[0])
    (port,) = wait_for([actor.free_port.remote()], 120)
    print(json.dumps({"nodes": [node["NodeID"] for node in ray.nodes()], "answered": port > 0}), flush=True)
    for line in sys.stdin:
        (port,) = wait_for([actor.free_port.remote()], 60)
        print(json.dumps({"answered": port > 0}), flush=True)
except ActorLost as error:
    print(json.dumps({"lost": str(error)}), flush=True)
finally:
    mine.close()
"""


class Runtime:
    """The cluster of one engine, in a process."""

    def __init__(self, cluster: dict[str, Any], **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNTIME, json.dumps(cluster)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kept | environment,
        )

    def answer(self) -> dict[str, Any]:
        """Its next line of JSON."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"the runtime ended with {self.process.wait()}")

    def ask(self) -> dict[str, Any]:
        """Calls its actor once more."""
        assert self.process.stdin is not None
        self.process.stdin.write("once more\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> int:
        """Lets it close its Ray; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


def test_two_runtimes_start_at_once_and_one_goes_on_when_the_other_is_killed(ray_address: str, tmp_path: Path) -> None:
    """In a home without a token of Ray's, beside a third Ray that the environment names."""
    runtimes = [Runtime({}, HOME=str(tmp_path), RAY_ADDRESS=ray_address) for _ in range(2)]
    try:
        first, second = (runtime.answer() for runtime in runtimes)
        assert len(first["nodes"]) == len(second["nodes"]) == 1 and first["nodes"] != second["nodes"]
        runtimes[0].process.send_signal(signal.SIGKILL)
        runtimes[0].process.wait(30)
        assert runtimes[1].ask() == {"answered": True}
        assert not list(tmp_path.rglob("auth_token"))
    finally:
        statuses = [runtime.end() for runtime in runtimes]
    assert statuses[1] == 0


def test_a_runtime_with_another_mode_of_authentication_is_told_so(ray_address: str, tmp_path: Path) -> None:
    modes = [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5" * 64}]
    runtimes = [Runtime({"address": ray_address}, HOME=str(tmp_path), **mode) for mode in modes]
    try:
        right, wrong = (runtime.answer() for runtime in runtimes)
        assert right["answered"] and len(right["nodes"]) == 1
        assert "RAY_AUTH_MODE" in wrong["lost"], wrong
    finally:
        for runtime in runtimes:
            runtime.end()


def test_the_numbers_of_gpus_count_those_that_the_server_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinker_backend.config import EngineConfig
    from tinker_backend.runtime.ray.placement import place
    from tinker_backend.runtime.ray.ray_cluster import RayCluster

    def names(address: str | None) -> list[str]:
        vllm = {"strategy_args": {"strategy_name": "vllm"}, "device_mapping": "0-3", "num_gpus_per_worker": 2}
        config = EngineConfig.model_validate({"pretrain": "none", "actor_infer": vllm, "cluster": {"address": address}})
        cluster = RayCluster(config.cluster, place(config))
        return [cluster._cuda_names(seat) for seat in cluster.placement.infer]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert names(None) == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5, 6,GPU-7a")
    assert names(None) == ["4,5", "6,GPU-7a"]
    assert names("auto") == ["0,1", "2,3"], "what other nodes show is not known here"

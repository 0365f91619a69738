"""One client process with many sessions: samples through the SDK, all at once, again and again. One JSON line at its end.

Arguments: base URL, sessions, samples of a round, rounds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {"TINKER_BASE_URL": sys.argv[1], "TINKER_API_KEY": "tml-test", "TINKER_TELEMETRY": "0"}

import tinker
from tinker import types


def resident_megabytes() -> float:
    """Memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def main() -> None:
    sessions, samples, rounds = map(int, sys.argv[2:])
    services = [tinker.ServiceClient() for _ in range(sessions)]
    samplers = [service.create_sampling_client(base_model="fake-model").result() for service in services]
    prompt = types.ModelInput.from_ints(list(range(64)))
    params = types.SamplingParams(max_tokens=16)
    figures = []
    for _ in range(rounds):
        started = time.monotonic()
        futures = [samplers[i % sessions].sample(prompt, 1, params) for i in range(samples)]
        answers = [future.result() for future in futures]
        assert all(len(answer.sequences[0].tokens) == 16 for answer in answers)
        del futures, answers
        figures.append({"seconds": time.monotonic() - started, "client_mb": resident_megabytes()})
        print(json.dumps(figures[-1]), flush=True)
    for service in services:
        service.close("success").result()


main()

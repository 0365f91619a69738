"""A runtime whose model writes what a script says; everything else is the fake runtime of the backend's tests.

The engine file names the model folder (`pretrain`, for the tokenizer) and `script`: a JSON file
`{"turns": [[answer, …], …]}`. A prompt with k earlier answers gets an answer of turn k (the last turn repeats); several
answers of one turn are handed out in rotation, so that the rollouts of a group differ.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib.util
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import yaml

_spec = importlib.util.spec_from_file_location(
    "fake_runtime", Path(__file__).parents[1] / "backend" / "fake_runtime.py"
)
assert _spec and _spec.loader
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


class ScriptedRuntime(fake.FakeRuntime):
    """Answers from a script."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__({})
        from transformers import AutoTokenizer

        self._options = options
        self._tokenizer = AutoTokenizer.from_pretrained(options["pretrain"])
        self._turns: list[list[str]] = json.loads(Path(options["script"]).read_text())["turns"]
        self._handed_out = [0] * len(self._turns)

    def hello(self) -> dict[str, Any]:
        found = super().hello()
        card = fake.ModelCard(
            self._options["model_name"],
            self._options["pretrain"],
            "scripted",
            len(self._tokenizer),
            int(self._options["sequence_length"]),
            self._options["pretrain"],
            eos_token_ids=[self._tokenizer.eos_token_id],
        )
        return {**found, "models": [card]}

    async def sample(self, request: Any) -> Any:
        prompt = request.tokens.tolist()
        scores = None
        if request.prompt_logprobs:
            scores = np.array([np.nan] + [fake.logprob(0.0, token, 0) for token in prompt[1:]], np.float32)
        text = self._tokenizer.decode(prompt)
        turn = min(text.count("<|im_start|>assistant") - 1, len(self._turns) - 1)
        answers = self._turns[turn]
        answer = answers[self._handed_out[turn] % len(answers)]
        if not request.prompt_logprobs:
            self._handed_out[turn] += 1
        tokens = [*self._tokenizer.encode(answer, add_special_tokens=False), self._tokenizer.eos_token_id]
        tokens = tokens[: request.max_tokens or len(tokens)]
        reason = "stop" if tokens[-1] == self._tokenizer.eos_token_id else "length"
        logprobs = np.array([fake.logprob(0.0, token, 0) for token in tokens], np.float32)
        return fake.SampleResult([fake.Sequence(np.array(tokens, np.int32), logprobs, reason)], scores)


def main() -> None:
    """`scripted_runtime.py --engine FILE --endpoint ENDPOINT --parent PID`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine")
    parser.add_argument("--endpoint")
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    options = yaml.safe_load(Path(arguments.engine).read_text())
    asyncio.run(fake.serve(arguments.endpoint, ScriptedRuntime(options)))


if __name__ == "__main__":
    main()

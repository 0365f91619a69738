"""Measures how often a model solves mini tasks in one answer, and how often a group of samples has unequal rewards.

    python examples/tasks/solve_rate.py --model FOLDER --tasks mini/train --per-kind 3 --samples 8

Prompts are those of the agent's profile ``single``; each answer's command runs in a local sandbox with the task's image, and the
task's own test.sh judges. Needs torch and transformers beside rl-rock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rock.harbor.images import ImageBuilder
from rock.harbor.profiles import load_profile
from rock.runtime.local import LocalRoot, NamespaceSandbox, SandboxSpec

CHECK = """
rm -rf /work && cp -a /start /work && cd /work || exit 9
timeout 10 bash -c "$0" >/dev/null 2>&1 </dev/null
bash /tests/test.sh >/dev/null 2>&1
cat /logs/verifier/reward.txt
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--tasks", required=True, type=Path, help="folder of mini tasks")
    parser.add_argument("--per-kind", type=int, default=3)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    policy = Policy(options.model, options.threads)
    rates: dict[str, list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="rock-", dir="/var/tmp") as folder:
        root = LocalRoot(folder)
        for task in sorted(path.parent for path in options.tasks.glob("*/task.toml")):
            kind = re.sub(r"^mini__|-.*$", "", task.name)
            if len(rates[kind]) >= options.per_kind:
                continue
            started = time.monotonic()
            answers = policy.sample(task, options.samples, options.temperature)
            rewards = await judge(root, task, answers)
            rates[kind].append(rewards)
            print(
                f"{task.name}: {sum(rewards):.0f} of {len(rewards)} in {time.monotonic() - started:.1f} s", flush=True
            )
    groups = [group for of_kind in rates.values() for group in of_kind]
    for kind, of_kind in rates.items():
        rewards = [reward for group in of_kind for reward in group]
        unequal = sum(len(set(group)) > 1 for group in of_kind)
        print(f"{kind:8} solved {sum(rewards) / len(rewards):.2f}, unequal groups {unequal} of {len(of_kind)}")
    unequal = sum(len(set(group)) > 1 for group in groups)
    print(
        f"all      solved {sum(map(sum, groups)) / sum(map(len, groups)):.2f}, unequal groups {unequal} of {len(groups)}"
    )


class Policy:
    """A causal language model with a chat template."""

    def __init__(self, folder: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._profile: dict[str, Any] = load_profile("single")

    def sample(self, task: Path, count: int, temperature: float) -> list[str | None]:
        """Commands of ``count`` answers; None where an answer has none."""
        messages = [{"role": "system", "content": self._profile["agent"]["system_template"].strip()}]
        messages += json.loads((task / "environment" / "examples.json").read_text())
        messages += [{"role": "user", "content": (task / "instruction.md").read_text()}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = self._tokenizer(text, return_tensors="pt", add_special_tokens=False)
        with self._torch.inference_mode():
            out = self._model.generate(
                **prompt,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=40,
                num_return_sequences=count,
                pad_token_id=self._tokenizer.eos_token_id,
            )
        found = []
        for row in out:
            answer = self._tokenizer.decode(row[prompt["input_ids"].shape[1] :], skip_special_tokens=True)
            commands = re.findall(self._profile["model"]["action_regex"], answer, re.DOTALL)
            found.append(commands[0].strip() if len(commands) == 1 else None)
        return found


async def judge(root: LocalRoot, task: Path, commands: list[str | None]) -> list[float]:
    """Rewards of the commands, each from the task's first state."""
    image = await ImageBuilder(root).build(task / "environment")
    sandbox = NamespaceSandbox(root, SandboxSpec("judge", layers=image.layers, env=image.env, workdir=image.workdir))
    await sandbox.start()
    try:
        await sandbox.put(task / "tests", "/tests")
        await sandbox.exec("cp -a /work /start && mkdir -p /logs/verifier")
        rewards = []
        for command in commands:
            done = await sandbox.exec(["bash", "-c", CHECK, command or "true"], cwd="/", timeout=30)
            rewards.append(float(done.stdout.strip() or 0))
        return rewards
    finally:
        await sandbox.stop()


if __name__ == "__main__":
    main()

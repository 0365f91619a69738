"""JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """All rows of a JSONL file; empty lines are skipped.

    Raises:
        ConfigurationError: the file cannot be read.
        DataFormatError: a line is not a JSON object.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read as a JSONL file: {error}") from error
    rows = []
    # Not splitlines: JSON strings may hold U+2028 and other separators as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataFormatError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataFormatError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
        rows.append(row)
    return rows

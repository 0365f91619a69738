"""JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import DataFormatError


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """All rows of a JSONL file; empty lines are skipped.

    Raises:
        DataFormatError: a line is not a JSON object.
    """
    rows = []
    for number, line in enumerate(Path(path).expanduser().read_text(encoding="utf-8").splitlines(), start=1):
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

"""The files of a run: one results folder, JSON that is never half-written, and the log of the client."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
# A list of numbers in indented JSON. Text cannot look like one: its line breaks are escaped.
_NUMBERS = re.compile(r"\[(\s+(?:-?[\d.eE+-]+,\n\s+)*-?[\d.eE+-]+\n\s*)\]")


def start_logging() -> None:
    """Log lines on standard output: run.sh writes them to the terminal and to client.log."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stdout,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for noisy in ("httpx", "httpcore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class ResultsFolder:
    """`<run directory>/results/<label>-<time>/`. Creating it prints the `Results dir:` line.

    Args:
        run_dir: the run directory; made when missing.
        label: e.g. the task id.
    """

    def __init__(self, run_dir: Path, label: str) -> None:
        safe = "".join(char if char.isalnum() or char in "._-" else "-" for char in label)
        self.path = run_dir / "results" / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.path.mkdir(parents=True, exist_ok=False)
        log.info("Results dir: %s", self.path)

    def write_json(self, name: str, data: Any) -> Path:
        """Writes data as JSON under a name like `step_000/step_result.json`; a list of numbers stands on one line."""
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
        return self.write_text(name, _NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Writes a text whole or not at all."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".writing-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return target

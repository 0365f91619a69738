"""Files of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinker_cookbook.swe.results import ResultsFolder


def test_lists_of_numbers_stand_on_one_line_and_everything_else_is_indented(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "tokens": list(range(300)),
        "logprobs": [-0.5, 1e-07, 2.0],
        "text": "[\n  1,\n  2\n]",
        "names": ["a", "b"],
        "rows": [[1, 2], [3]],
        "empty": [],
        "one": {"x": [7]},
        "mixed": [1, None, True],
    }
    path = ResultsFolder(tmp_path, "demo").write_json("summary.json", data)
    text = path.read_text()
    assert json.loads(text) == data
    lines = text.splitlines()
    assert f'  "tokens": {json.dumps(data["tokens"])},' in lines and '  "logprobs": [-0.5, 1e-07, 2.0],' in lines
    assert "    [1, 2]," in lines and '    "x": [7]' in lines and '    "a",' in lines

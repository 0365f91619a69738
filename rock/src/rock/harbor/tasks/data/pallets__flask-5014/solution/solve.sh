#!/bin/bash
# Refuses the empty name right before the check for dots.
set -euo pipefail
cd /testbed
python - <<'PY'
from pathlib import Path

path = Path("src/flask/blueprints.py")
text = path.read_text()
mark = '        if "." in name:\n'
assert text.count(mark) == 1, "the check for dots is not where it was"
check = '        if not name:\n            raise ValueError("\'name\' may not be empty.")\n\n'
path.write_text(text.replace(mark, check + mark))
PY
git diff --stat

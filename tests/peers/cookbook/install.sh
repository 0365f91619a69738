#!/usr/bin/env bash
# Makes an environment in which the recipes of the official cookbook run as they are: install.sh FOLDER [VERSION]
# FOLDER/source is the unpacked source release, for PYTHONPATH; FOLDER/bin/python has the packages that its metadata names.
# Does nothing when the environment is there already. TINKER_PEER_TORCH as in ../install.sh.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: install.sh FOLDER [VERSION]" >&2
  exit 2
fi
folder=$1
version=${2:-0.6.1}
sdk=0.38.0
if [ -e "$folder/complete" ]; then
  exit 0
fi
rm -rf "$folder"
mkdir -p "$folder"
base=${TINKER_PEER_BASE_PYTHON:-python3}
"$base" -m venv --without-pip "$folder"
lib=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary tinker-cookbook --dest "$folder/download" "tinker-cookbook==$version"
mkdir "$folder/source"
tar xzf "$folder/download/tinker_cookbook-$version.tar.gz" -C "$folder/source" --strip-components=1
# The names out of the metadata, of the extras math-rl alone; torch only where none is lent, and the SDK at the release it was made for.
# tml-renderers is left out: no release that satisfies the metadata can be had, and the recipes here do without it.
named=$(sed -n 's/^Requires-Dist: //p' "$folder/source/PKG-INFO")
requirements=$({ echo "$named" | grep -v 'extra =='; echo "$named" | sed -n "s/; *extra == 'math-rl'$//p"; } | grep -vE '^(torch|tinker|tml-renderers)[^a-z-]')
{ echo "$requirements"; echo "tinker==$sdk"; } > "$folder/requirements.txt"
if [ -n "${TINKER_PEER_TORCH:-}" ]; then
  # A .pth file adds the folder behind the environment's own, so that only what is missing comes from it.
  echo "$TINKER_PEER_TORCH" > "$lib/lent.pth"
  echo "torch ; python_version < '0'" > "$folder/overrides.txt"
else
  echo torch >> "$folder/requirements.txt"
  : > "$folder/overrides.txt"
fi
if command -v uv > /dev/null; then
  uv pip install --quiet --python "$folder/bin/python" --override "$folder/overrides.txt" -r "$folder/requirements.txt"
else
  "$base" -m pip --python "$folder/bin/python" install --quiet --disable-pip-version-check -r "$folder/requirements.txt"
fi
touch "$folder/complete"

#!/usr/bin/env bash
# Makes the environment of one release of the official SDK: install.sh FOLDER VERSION ("newest" takes the latest).
# Uses uv where it is installed, else venv and pip. Does nothing when the environment is there already.
# TINKER_PEER_TORCH names a site-packages folder that holds torch, which is then lent instead of installed again.
set -euo pipefail
if [ $# -ne 2 ]; then
  echo "usage: install.sh FOLDER VERSION" >&2
  exit 2
fi
folder=$1
version=$2
requirement="tinker==$version"
if [ "$version" = newest ]; then
  requirement=tinker
fi
if [ -e "$folder/complete" ]; then
  # "newest" is made again after a day: a release that came since must not go unnoticed.
  if [ "$version" != newest ] || [ -n "$(find "$folder/complete" -mtime -1)" ]; then
    exit 0
  fi
fi
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
if command -v uv > /dev/null; then
  uv venv --quiet --python "${TINKER_PEER_BASE_PYTHON:-python3}" "$folder"
  uv pip install --quiet --python "$folder/bin/python" "$requirement" numpy
else
  "${TINKER_PEER_BASE_PYTHON:-python3}" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet "$requirement" numpy
fi
if [ -n "${TINKER_PEER_TORCH:-}" ]; then
  # A .pth file adds the folder behind the environment's own, so that only what is missing comes from it.
  echo "$TINKER_PEER_TORCH" > "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
fi
touch "$folder/complete"

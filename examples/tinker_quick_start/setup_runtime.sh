# setup_runtime of setup.sh: the GPU environment. Sourced, not run.
# shellcheck shell=bash

# setup_runtime [--gpu-check]
setup_runtime() {
  local python roll=${ROLL:-$ROCK} check=()
  case ${1:-} in
    '') ;;
    --gpu-check) check=(--gpu-check) ;;
    *) stop "runtime knows the option --gpu-check only (got '$1')" ;;
  esac
  need_task
  [ -f "$roll/requirements_tinker.txt" ] || stop "$roll/requirements_tinker.txt is missing; export ROLL=<checkout that holds it>"
  [ -z "${TINKER_RUNTIME_PYTHON:-}" ] || "$TINKER_RUNTIME_PYTHON" -c 'import torch' 2>/dev/null ||
    stop "TINKER_RUNTIME_PYTHON is '$TINKER_RUNTIME_PYTHON', which does not import torch; choose another Python, or unset it"
  python=$(image_python) ||
    stop "no Python on PATH imports torch, so this is not the GPU image; start it, or set TINKER_RUNTIME_PYTHON to the Python that has torch"
  say "GPU environment: $python ($("$python" -V)) -> $TASK/runtime-venv"
  find_uv "$python"
  if [ ! -x "$TASK/runtime-venv/bin/python" ]; then
    "$UV" venv --quiet --system-site-packages --python "$python" "$TASK/runtime-venv"
  fi
  inherit_environment "$python" "$TASK/runtime-venv"
  uv_sources "$python" || true # a Python without pip has no settings
  "$python" "$QS/runtime_environment.py" --uv "$UV" --image-python "$python" --venv "$TASK/runtime-venv" \
    --requirements "$roll/requirements_tinker.txt" --source "$ROCK/tinker-backend" "${check[@]}" \
    --index-options "${UV_SOURCES[@]}" ||
    stop "the GPU environment is not usable; see the message above"
  say "GPU environment ready: $TASK/runtime-venv/setup-public-runtime.json"
}

# image_python: the first Python on PATH that has torch. One of a virtual environment keeps its name, which is what makes it one.
image_python() {
  local candidate
  for candidate in ${TINKER_RUNTIME_PYTHON:-} python3 python; do
    if "$candidate" -c 'import torch' >/dev/null 2>&1; then
      "$candidate" -c 'import os, sys; print(sys.executable if sys.prefix != sys.base_prefix else os.path.realpath(sys.executable))'
      return
    fi
  done
  return 1
}

# inherit_environment PYTHON VENV: packages of an image that keeps them in a virtual environment, behind those of VENV.
inherit_environment() {
  local folder
  folder=$("$1" -c 'import sys, sysconfig; print(sysconfig.get_path("purelib") if sys.prefix != sys.base_prefix else "")')
  if [ -n "$folder" ]; then
    printf '%s\n' "$folder" >"$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/image.pth"
  fi
}

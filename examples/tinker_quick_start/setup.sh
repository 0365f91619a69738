#!/usr/bin/env bash
# Installs the environments of the quick start into $TASK.
#
#   setup.sh control                 control environment (CPU): client, backend, local sandboxes; builds the three wheels
#   setup.sh runtime [--gpu-check]   GPU environment: inherits the image's packages and adds what is missing
#
# A second run reuses what is there. Downloads follow the pip and uv configuration of the user.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as sh
set -euo pipefail
QS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=checks.sh
source "$QS/checks.sh"
show_help "${1:-}"
[ -d "${ROCK:=$QS/../..}/rock-tinker/local" ] || stop "ROCK is '$ROCK', which is no complete checkout; export ROCK=<this checkout>"
ROCK=$(cd "$ROCK" && pwd)
trap 'exit 130' INT TERM HUP
export UV_PYTHON_DOWNLOADS=${UV_PYTHON_DOWNLOADS:-never} UV_NATIVE_TLS=${UV_NATIVE_TLS:-true} UV_LINK_MODE=${UV_LINK_MODE:-copy} PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }
# uv reads the project file of the folder that it is called in; none is meant.
cd /

# find_uv PYTHON: sets UV; installs uv from the package index into $TASK/tools-venv when there is none that works.
find_uv() {
  local candidate
  for candidate in "${UV:-uv}" "$HOME/.local/bin/uv" "$TASK/tools-venv/bin/uv"; do
    if "$candidate" --version >/dev/null 2>&1; then UV=$candidate && return; fi
  done
  say "no uv here: installing it into $TASK/tools-venv"
  make_venv "$1" "$TASK/tools-venv"
  "$TASK/tools-venv/bin/python" -m pip install --quiet uv 2>"$TASK/logs/uv.log" ||
    stop "pip cannot install uv; check pip's index settings (pip config list), or install uv yourself"
  UV=$TASK/tools-venv/bin/uv
}

# make_venv PYTHON FOLDER: a virtual environment with pip.
make_venv() {
  if [ -x "$2/bin/python" ] && "$2/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  if ! "$1" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      say "$1 has no venv module: installing it with apt-get"
      { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null ||
        stop "apt-get cannot install python3-venv; install it, or set TINKER_PYTHON to a Python that has venv"
    else
      stop "$1 has no venv module; run: sudo apt-get install python3-venv"
    fi
  fi
  rm -rf "$2"
  "$1" -m venv "$2" || stop "$1 -m venv fails; set TINKER_PYTHON to another Python 3.11 to 3.13"
}

# fingerprint FILE|FOLDER…: one hash over contents.
fingerprint() {
  find "$@" -type f -not -path '*/__pycache__/*' -not -path '*/wheelhouse/*' -not -path '*/.git/*' -print0 |
    sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

setup_control() {
  need_task
  local python venv=$TASK/control-venv local=$ROCK/rock-tinker/local
  [ -f "$local/uv.lock" ] || stop "$local/uv.lock is missing; ROCK must name a complete checkout (now '$ROCK')"
  need_python TINKER_PYTHON 3.11 3.12 3.13
  need_python TINKER_HARBOR_PYTHON 3.12 3.13
  python=$(find_python 3.11 3.12 3.13) ||
    stop "no Python 3.11 to 3.13 that works was found; install one (apt-get install python3 python3-venv) or set TINKER_PYTHON"
  say "control environment: $python ($("$python" -V)) -> $venv"
  find_uv "$python"
  local state harbor_python='' # looked for before anything large is downloaded
  if ! harbor_is_ready; then
    harbor_python=$(find_harbor_python) ||
      stop "Harbor needs a Python 3.12 or 3.13: none that works was found, and uv cannot download one; install one, and export TINKER_HARBOR_PYTHON=<its path> if it is not on PATH"
  fi
  state=$(fingerprint "$local/requirements.txt" "$local/uv.lock" "$local/pyproject.toml")
  if [ "$(cat "$venv/.locked" 2>/dev/null)" != "$state" ]; then
    rm -f "$venv/.locked"
    install_locked "$python" "$venv" "$local"
    install_torch "$python" "$venv"
    printf '%s' "$state" >"$venv/.locked"
  fi
  build_wheels "$venv"
  if [ -n "$harbor_python" ]; then setup_harbor "$python" "$harbor_python"; fi
  import_check "$venv"
  say "control environment ready: $venv/import-check.json"
}

# install_locked PYTHON VENV PROJECT: the locked packages. pip fills the wheelhouse and checks every hash; uv installs
# from it and needs no index.
install_locked() {
  local python=$1 venv=$2 project=$3
  make_venv "$python" "$TASK/tools-venv"
  say "downloading the locked packages into $project/wheelhouse"
  mkdir -p "$project/wheelhouse" || stop "$project cannot be written; use a checkout of your own"
  flock "$project/wheelhouse" "$TASK/tools-venv/bin/python" -m pip download --quiet --only-binary :all: --require-hashes \
    --exists-action i -r "$project/requirements.txt" -d "$project/wheelhouse" 2>"$TASK/logs/pip-download.log" ||
    stop "pip cannot download the locked packages ($(tail -1 "$TASK/logs/pip-download.log")); check pip's index settings"
  say "installing them"
  if [ "$(uname -m)" = x86_64 ]; then
    UV_PROJECT_ENVIRONMENT=$venv "$UV" sync --quiet --project "$project" --frozen --group control --no-dev --inexact --python "$python" ||
      stop "uv sync fails; remove $venv and $project/wheelhouse and run this again"
  else # the uv lock lists x86_64 files only; the hash-locked list serves every platform
    "$UV" venv --quiet --clear --python "$python" "$venv"
    "$UV" pip install --quiet --python "$venv/bin/python" --no-index --find-links "$project/wheelhouse" --require-hashes \
      -r "$project/requirements.txt" || stop "uv pip install fails; remove $venv and $project/wheelhouse and run this again"
  fi
}

# install_torch PYTHON VENV: the CPU build: from pip's find-links when they hold one, else from uv's CPU back end.
install_torch() {
  local python=$1 venv=$2 links found tag
  if "$venv/bin/python" -c 'import torch' 2>/dev/null; then return; fi
  tag=cp$("$venv/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  for links in $(pip_setting "$TASK/tools-venv/bin/python" find-links); do
    found=$(find "$links" -maxdepth 1 -name "torch-*+cpu-$tag-*$(uname -m).whl" 2>/dev/null | sort -V | tail -1)
    if [ -n "$found" ]; then
      say "installing torch from pip's find-links: $(basename "$found")"
      "$UV" pip install --quiet --python "$venv/bin/python" --no-deps "$found" && return
    fi
  done
  say "installing the CPU build of torch"
  "$UV" pip install --quiet --python "$venv/bin/python" --torch-backend cpu 'torch>=2.6' 2>"$TASK/logs/torch.log" && return
  if [ "${TINKER_TORCH:-}" ]; then
    "$TASK/tools-venv/bin/python" -m pip --python "$venv/bin/python" install --quiet "$TINKER_TORCH" && return
  fi
  stop "no CPU build of torch for $("$venv/bin/python" -V) can be had ($(tail -1 "$TASK/logs/torch.log" | sed 's/^ *//')); put a wheel into pip's find-links, or set TINKER_TORCH='torch==VERSION' to take your index's build"
}

# build_wheels VENV: the three wheels in $TASK/dist, built only when a source has changed, and installed.
build_wheels() {
  local venv=$1 state package
  state=$(fingerprint "$ROCK"/rock/{pyproject.toml,src} "$ROCK"/rock-tinker/{pyproject.toml,src} "$ROCK"/tinker-backend/{pyproject.toml,src})
  if [ "$(cat "$TASK/dist/.built" 2>/dev/null)" != "$state" ]; then
    say "building the three wheels"
    rm -rf "$TASK/dist" && mkdir -p "$TASK/dist"
    for package in rock rock-tinker tinker-backend; do
      "$UV" build --quiet --wheel --no-build-isolation --python "$venv/bin/python" --out-dir "$TASK/dist" "$ROCK/$package" ||
        stop "the wheel of $ROCK/$package cannot be built; see the message above"
    done
    printf '%s' "$state" >"$TASK/dist/.built"
  fi
  if [ "$(cat "$venv/.wheels" 2>/dev/null)" != "$state" ]; then
    "$UV" pip install --quiet --python "$venv/bin/python" --no-deps --reinstall "$TASK"/dist/*.whl
    printf '%s' "$state" >"$venv/.wheels"
  fi
}

# harbor_is_ready: whether the Harbor environment is the locked one.
harbor_is_ready() {
  [ "$(cat "$TASK/harbor-venv/.locked" 2>/dev/null)" = "$(fingerprint "$ROCK/rock-tinker/local/requirements-harbor.txt")" ]
}

# find_harbor_python: a Python for Harbor, which needs 3.12 or newer: one of this machine, else one that uv downloads.
find_harbor_python() {
  TINKER_PYTHON=${TINKER_HARBOR_PYTHON:-} find_python 3.12 3.13 || fetch_python
}

# setup_harbor PYTHON HARBOR_PYTHON: Harbor and mini-swe-agent with a Python of their own.
setup_harbor() {
  local python=$2 venv=$TASK/harbor-venv local=$ROCK/rock-tinker/local
  say "Harbor environment: $python ($("$python" -V)) -> $venv"
  "$UV" venv --quiet --clear --python "$python" "$venv"
  make_venv "$1" "$TASK/tools-venv"
  uv_sources "$TASK/tools-venv/bin/python"
  "$UV" pip install --quiet --python "$venv/bin/python" --require-hashes "${UV_SOURCES[@]}" -r "$local/requirements-harbor.txt" ||
    stop "the Harbor environment cannot be installed; check the index settings of pip or uv (UV_DEFAULT_INDEX) and run this again"
  printf '%s' "$(fingerprint "$local/requirements-harbor.txt")" >"$venv/.locked"
}

# fetch_python: a Python 3.12 that uv downloads, where the machine has none and the network allows it.
fetch_python() {
  UV_PYTHON_DOWNLOADS=automatic "$UV" python install --quiet 3.12 2>/dev/null && "$UV" python find 3.12
}

# import_check VENV: imports everything once in a fresh interpreter and writes versions and places.
import_check() {
  "$1/bin/python" - "$1/import-check.json" "$TASK/harbor-venv/bin/python" <<'PYTHON'
import importlib, importlib.metadata, json, pathlib, subprocess, sys

target, harbor_python = pathlib.Path(sys.argv[1]), sys.argv[2]
report = {"python": sys.version.split()[0], "modules": {}}
names = {
    "rock": "rl-rock", "tinker": "rock-tinker", "tinker_cookbook": "rock-tinker", "tinker_backend": "tinker-backend",
    "torch": "torch", "transformers": "transformers", "httpx": "httpx", "zmq": "pyzmq",
}
for module, package in names.items():
    place = importlib.import_module(module).__file__
    report["modules"][module] = {"version": importlib.metadata.version(package), "file": place}
report["torch_cuda"] = bool(importlib.import_module("torch").version.cuda)
probe = "import harbor, minisweagent, importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in ('harbor', 'mini-swe-agent')}))"
environment = {"PATH": "/usr/bin:/bin", "HOME": str(pathlib.Path.home()), "MSWEA_SILENT_STARTUP": "1", "HARBOR_TELEMETRY": "off"}
found = subprocess.run([harbor_python, "-c", probe], capture_output=True, text=True, env=environment, timeout=120)
if found.returncode:
    sys.exit(f"setup.sh: the Harbor environment does not import: {found.stderr.strip().splitlines()[-1]}; remove it and run this again")
report["harbor"] = json.loads(found.stdout.strip().splitlines()[-1]) | {"python": harbor_python}
target.write_text(json.dumps(report, indent=2) + "\n")
PYTHON
}

case ${1:-} in
  control) [ $# -eq 1 ] || stop "control takes no option; run: setup.sh control" && setup_control ;;
  runtime) shift && source "$QS/setup_runtime.sh" && setup_runtime "$@" ;;
  *) stop "give one of: control, runtime [--gpu-check]" ;;
esac

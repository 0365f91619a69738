# The environments of the tests, in $TINKER_TEST_CACHE (default: ~/.cache/tinker-tests). Sourced, not run.
# test_environment makes them when something is missing or a lock has changed, and exports
#   TINKER_TEST_PYTHON   Python of the development environment: the three packages, torch, pytest, ruff, mypy
#   ROCK_HARBOR_PYTHON   Python 3.12 or newer with harbor and mini-swe-agent; unset where there is none
#   TINKER_PEER_PYTHON   Python with the official tinker package; unset where it cannot be installed
#   TINKER_PEER_HOME     environments of other people's packages, made by the tests themselves; ROCK_PEER_CACHE likewise
#   TINKER_SCHEMATHESIS  the program schemathesis, unset where it cannot be installed
#   TINKER_TEST_CLUSTER_PYTHON Python with Ray and vLLM for the CPU, unset where they cannot be installed
#   TINKER_TEST_MODEL    folder of SmolLM2-135M-Instruct, unset where its wheel cannot be had
# shellcheck shell=bash

QS=examples/tinker_quick_start
# shellcheck source=../examples/tinker_quick_start/checks.sh
source "$QS/checks.sh"
say() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }

test_environment() {
  local cache=${TINKER_TEST_CACHE:-$HOME/.cache/tinker-tests}
  need_python TINKER_PYTHON 3.11 3.12 3.13
  need_python TINKER_HARBOR_PYTHON 3.12 3.13
  mkdir -p "$cache"
  exec 9>"$cache/.lock" && flock 9
  system_packages
  export UV_NATIVE_TLS=${UV_NATIVE_TLS:-true} UV_PYTHON_DOWNLOADS=${UV_PYTHON_DOWNLOADS:-never}
  development_environment "$cache/dev"
  harbor_environment "$cache/harbor"
  peers_environment "$cache/peers"
  cluster_environment "$cache/cluster"
  program_environment "$cache/schemathesis" schemathesis && export TINKER_SCHEMATHESIS=$cache/schemathesis/bin/schemathesis || true
  export TINKER_PEER_HOME=${TINKER_PEER_HOME:-$cache/peer-releases} ROCK_PEER_CACHE=${ROCK_PEER_CACHE:-$cache/peer-rock}
  small_model
  exec 9>&-
}

# system_packages: programs that the tests call. Installed only when missing and possible; a Docker daemon in CI only.
system_packages() {
  local program missing=()
  declare -A package=([git]=git [unshare]=util-linux [ip]=iproute2 [flock]=util-linux [gcc]=gcc)
  if [ "${CI:-}" = true ]; then package+=([dockerd]=docker.io [debootstrap]=debootstrap [iptables]=iptables); fi
  for program in "${!package[@]}"; do command -v "$program" >/dev/null || missing+=("${package[$program]}"); done
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "not installed: ${missing[*]} (tests that need them are skipped)"
    return
  fi
  say "apt-get install ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    say "apt-get failed; tests that need ${missing[*]} are skipped"
}

# development_environment FOLDER
development_environment() {
  local venv=$1 python state
  TINKER_TEST_PYTHON=$venv/bin/python
  export TINKER_TEST_PYTHON
  state=$(cat tests/requirements.txt | sha256sum | cut -d' ' -f1)
  if [ "$(cat "$venv/.ready" 2>/dev/null)" = "$state" ]; then link_packages "$venv" && return; fi
  python=$(find_python 3.11 3.12 3.13) || stop "no Python 3.11 to 3.13 that works; install one, or set TINKER_PYTHON"
  say "development environment: $("$python" -V) -> $venv"
  "$python" -c 'import ensurepip' 2>/dev/null || python_venv_package
  rm -rf "$venv" && "$python" -m venv "$venv"
  local pip=("$TINKER_TEST_PYTHON" -m pip install --quiet --disable-pip-version-check)
  "${pip[@]}" uv 2>/dev/null || stop "pip cannot install uv; check pip's index settings (pip config list)"
  # pip, and not uv, for torch: pip's find-links and constraints may offer a CPU build.
  "${pip[@]}" "${TINKER_TORCH:-torch==2.13.0}" 2>/dev/null || stop "pip cannot install ${TINKER_TORCH:-torch==2.13.0}; set TINKER_TORCH to a build that your index has"
  uv_sources "$TINKER_TEST_PYTHON"
  "$venv/bin/uv" pip install --quiet --python "$TINKER_TEST_PYTHON" --no-deps --require-hashes "${UV_SOURCES[@]}" -r tests/requirements.txt
  printf '%s' "$state" >"$venv/.ready"
  link_packages "$venv"
}

# link_packages VENV: the three packages of this checkout, editable. One cache serves several checkouts, one at a time.
link_packages() {
  if [ "$(cat "$1/.checkout" 2>/dev/null)" = "$PWD" ]; then return; fi
  "$1/bin/uv" pip install --quiet --python "$1/bin/python" --no-deps --no-build-isolation -e rock -e rock-tinker -e tinker-backend
  printf '%s' "$PWD" >"$1/.checkout"
}

python_venv_package() {
  [ "$(id -u)" = 0 ] || stop "Python has no venv module; run: sudo apt-get install python3-venv"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null ||
    stop "apt-get cannot install python3-venv; install it, or set TINKER_PYTHON to a Python with venv"
}

# harbor_environment FOLDER: needs Python 3.12 or newer; the tests marked harbor are skipped without it.
harbor_environment() {
  local venv=$1 python state
  state=$(sha256sum rock-tinker/local/requirements-harbor.txt | cut -d' ' -f1)
  if [ "$(cat "$venv/.ready" 2>/dev/null)" != "$state" ]; then
    python=$(TINKER_PYTHON=${TINKER_HARBOR_PYTHON:-} find_python 3.12 3.13) || { say "no Python 3.12: tests marked harbor are skipped" && return; }
    say "Harbor environment: $("$python" -V) -> $venv"
    local uv=${TINKER_TEST_PYTHON%/python}/uv
    "$uv" venv --quiet --clear --python "$python" "$venv"
    uv_sources "$TINKER_TEST_PYTHON"
    "$uv" pip install --quiet --python "$venv/bin/python" --require-hashes "${UV_SOURCES[@]}" -r rock-tinker/local/requirements-harbor.txt
    printf '%s' "$state" >"$venv/.ready"
  fi
  printf '%s\n' "$PWD/rock/src" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rock.pth"
  export ROCK_HARBOR_PYTHON=$venv/bin/python
}

# peers_environment FOLDER: the official client, as a black box.
peers_environment() {
  local venv=$1 uv=${TINKER_TEST_PYTHON%/python}/uv
  if [ "$(cat "$venv/.ready" 2>/dev/null)" != tinker-0.38.0 ]; then
    say "environment of the official client -> $venv"
    "$uv" venv --quiet --clear --python "$TINKER_TEST_PYTHON" "$venv"
    uv_sources "$TINKER_TEST_PYTHON"
    "$uv" pip install --quiet --python "$venv/bin/python" "${UV_SOURCES[@]}" tinker==0.38.0 numpy ||
      { say "tinker 0.38.0 cannot be installed: tests marked peers are skipped" && return; }
    printf tinker-0.38.0 >"$venv/.ready"
  fi
  export TINKER_PEER_PYTHON=$venv/bin/python
}

# program_environment FOLDER PACKAGE: an environment with one program. Fails with a line when it cannot be installed.
program_environment() {
  local venv=$1 uv=${TINKER_TEST_PYTHON%/python}/uv
  if [ -x "$venv/bin/$2" ]; then return 0; fi
  say "$2 -> $venv"
  "$uv" venv --quiet --clear --python "$TINKER_TEST_PYTHON" "$venv"
  uv_sources "$TINKER_TEST_PYTHON"
  "$uv" pip install --quiet --python "$venv/bin/python" "${UV_SOURCES[@]}" "$2" || { say "$2 cannot be installed: its tests are skipped" && return 1; }
}

# cluster_environment FOLDER: Ray and vLLM. Left out with a reason where they cannot be installed.
cluster_environment() {
  local python
  [ -x "$1/bin/python" ] || say "environment of the cluster tests -> $1"
  python=$(bash tests/cluster/install.sh "$1") || return 0
  export TINKER_TEST_CLUSTER_PYTHON=$python
}

# small_model: SmolLM2 from its wheel, made once into the shared model cache.
small_model() {
  local folder=${TINKER_TEST_MODEL:-${TINKER_BACKEND_CACHE:-$HOME/.cache/tinker-backend}/models/SmolLM2-135M-Instruct}
  if [ ! -f "$folder/config.json" ]; then
    say "model: $folder"
    "$TINKER_TEST_PYTHON" -m tinker_backend.models.smollm2 --out "$folder" >/dev/null 2>&1 ||
      { say "SmolLM2's wheel cannot be had: tests marked model are skipped" && return; }
  fi
  export TINKER_TEST_MODEL=$folder
}

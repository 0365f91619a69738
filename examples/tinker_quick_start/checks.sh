# Checks that the scripts of this folder share. Sourced, not run.
# shellcheck shell=bash

# stop SENTENCE…: ends the script with one sentence that names the fix.
stop() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

# show_help [WORD]: for -h and --help prints the comment at the head of the script, and ends it.
show_help() {
  case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
}

# need_task: TASK must be an absolute path of a folder; it is made when missing.
need_task() {
  [ -n "${TASK:-}" ] || stop "TASK is not set; export TASK=\"\$HOME/tinker-local\" (a work folder, absolute)"
  case $TASK in /*) ;; *) stop "TASK is '$TASK', which is not absolute; export TASK=\"$PWD/$TASK\"" ;; esac
  case $TASK in *[[:space:]]*) stop "TASK is '$TASK', which holds a space; choose a path without spaces" ;; esac
  [ ! -e "$TASK" ] || [ -d "$TASK" ] || stop "TASK is '$TASK', which is no folder; choose another path"
  mkdir -p "$TASK/logs" 2>/dev/null || stop "$TASK cannot be written; choose another TASK"
}

# python_works PROGRAM MINOR: whether it really runs (shims of version managers may not), is a CPython of that minor
# version (as 3.11) and has the modules that an environment needs.
python_works() {
  "$1" - "$2" >/dev/null 2>&1 <<'PYTHON'
import ctypes, sqlite3, ssl, sys, zlib
sys.exit(not (sys.implementation.name == "cpython" and "%d.%d" % sys.version_info[:2] == sys.argv[1]))
PYTHON
}

# real_python PROGRAM: the interpreter behind a link or shim.
real_python() {
  "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))'
}

# need_python NAME MINOR…: the Python that the variable NAME chooses, if it is set, must work and have one of the versions.
need_python() {
  local name=$1 minor
  shift
  [ -n "${!name:-}" ] || return 0
  for minor in "$@"; do
    if python_works "${!name}" "$minor"; then return 0; fi
  done
  stop "$name is '${!name}', which is no working CPython of version ${*// /, }; choose another one, or unset it"
}

# find_python MINOR…: prints the first interpreter that works, looking for the given minor versions in order.
find_python() {
  local minor candidate
  for minor in "$@"; do
    for candidate in ${TINKER_PYTHON:-} "python$minor" "/usr/bin/python$minor" "/usr/local/bin/python$minor" \
      "${PYENV_ROOT:-$HOME/.pyenv}/versions/$minor".*/bin/python \
      "$HOME/.local/share/uv/python/cpython-$minor".*/bin/python python3; do
      if python_works "$candidate" "$minor"; then
        real_python "$candidate"
        return 0
      fi
    done
  done
  return 1
}

# pip_setting PYTHON NAME: the values of a pip setting (index-url, find-links …), one a line, without duplicates.
pip_setting() {
  "$1" -m pip config list 2>/dev/null | sed -n "s/^\(global\|install\|download\|:env:\)\.$2='\(.*\)'$/\2/p" |
    sed 's/\\n/ /g' | tr ' ' '\n' | sed '/^$/d' | sort -u
}

# uv_sources PYTHON: sets UV_SOURCES to uv options for the index and find-links that pip is configured for. What the user
# has set for uv itself wins.
uv_sources() {
  local value
  UV_SOURCES=()
  for value in $(pip_setting "$1" find-links); do UV_SOURCES+=(--find-links "$value"); done
  if [ -n "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then return; fi
  value=$(pip_setting "$1" index-url | tail -1)
  if [ -n "$value" ]; then UV_SOURCES+=(--default-index "$value"); fi
  for value in $(pip_setting "$1" extra-index-url); do
    case $value in http*) UV_SOURCES+=(--index "$value") ;; esac
  done
}

# port_free HOST PORT: whether nothing listens there.
port_free() {
  "${PY:-python3}" - "$1" "$2" <<'PYTHON'
import socket, sys
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((sys.argv[1], int(sys.argv[2])))
    except OSError:
        sys.exit(1)
PYTHON
}

# free_ports: options for configure.py that name free ports where the default ones are taken.
free_ports() {
  "$PY" - <<'PYTHON'
import socket

defaults = {"admin": 18080, "worker": 22555, "backend": 19210}
held = []
for name, port in defaults.items():
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        probe.bind(("127.0.0.1", 0))
        print(f"--{name}-port {probe.getsockname()[1]}")
    held.append(probe)  # so that no two services get the same one
PYTHON
}

# newest MODE: the last run directory of a mode.
newest() {
  find "$TASK/runs" -mindepth 1 -maxdepth 1 -type d -name "$1-[0-9]*" -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-
}

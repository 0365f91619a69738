#!/usr/bin/env bash
# Local ROCK services in the foreground; Ctrl-C ends them. One terminal each:
#   serve.sh worker    the host's rocklet, which makes sandboxes   (port 22555; $TASK/logs/rock-worker.log)
#   serve.sh admin     the Admin API                               (port 18080; $TASK/logs/rock-admin.log)
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as sh
set -euo pipefail
QS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=checks.sh
source "$QS/checks.sh"
show_help "${1:-}"
role=${1:-}
case $role in worker | admin) [ $# -eq 1 ] || stop "$role takes no option" ;; *) stop "give one of: worker, admin" ;; esac
need_task
PY=${PY:-$TASK/control-venv/bin/python}
config=$TASK/config/admin.yaml
[ -x "$PY" ] || stop "$PY is missing; run setup.sh control first"
[ -f "$config" ] || stop "$config is missing; run configure.py first (a configuration for an existing ROCK cluster needs no serve.sh)"
rock=$(dirname "$PY")/rock
[ -x "$rock" ] || stop "$rock is missing; run setup.sh control again"
address=$("$PY" - "$config" "$role" <<'PYTHON'
import sys, yaml
section = (yaml.safe_load(open(sys.argv[1])) or {}).get(sys.argv[2]) or {}
print(section.get("host", "127.0.0.1"), section.get("port", {"admin": 18080, "worker": 22555}[sys.argv[2]]))
PYTHON
) || stop "$config cannot be read; write it anew with configure.py"
read -r host port <<<"$address"
port_free "$host" "$port" ||
  stop "port $port of $host is taken; end the program that holds it (ss -lntp 'sport = :$port' names it) or change $role.port in $config"
log=$TASK/logs/rock-$role.log
echo "ROCK $role on http://$host:$port (log: $log); Ctrl-C ends it"
exec > >(exec tee -i -a "$log") 2>&1
exec "$rock" "$role" start --config "$config"

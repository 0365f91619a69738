#!/usr/bin/env bash
# Runs one recipe of the cookbook:
#   run.sh rollout [--task-id ID]                          one graded rollout, no training
#   run.sh ppo | ppo-kl | grpo [--learning-rate 1e-6] …    training; run.sh grpo --help lists the options
# Starts the backend for this job and closes it; with a local profile also the local ROCK services, when none run.
# Leaves $TASK/runs/<mode>-<time>/ with client.log, exit-status.json and results/.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as sh
set -euo pipefail
QS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=checks.sh
source "$QS/checks.sh"
show_help "${1:-}"
case ${1:-} in rollout | ppo | ppo-kl | grpo) ;; *) stop "give one of: rollout, ppo, ppo-kl, grpo" ;; esac
need_task
export TASK
PY=${PY:-$TASK/control-venv/bin/python}
[ -x "$PY" ] || stop "$PY is missing; run setup.sh control first (or set PY)"
case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    for name in engine runtime harbor; do
      [ -f "$TASK/config/$name.yaml" ] || stop "$TASK/config/$name.yaml is missing; run configure.py --task-root $TASK first"
    done
    ;;
esac
exec "$PY" "$QS/job.py" "$@"

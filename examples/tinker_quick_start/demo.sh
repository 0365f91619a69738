#!/usr/bin/env bash
# The whole stack on this machine, without GPU, Docker, account or model hub:
#   1. sets up the environments                                   (minutes the first time, seconds afterwards)
#   2. a coding agent works on a SWE-bench problem in a local sandbox; a small model on the CPU answers its calls
#   3. GRPO on a family of mini tasks until one group has unequal returns and a step has trained
#   4. one HTML page with the turns, rewards, advantages and losses
# Everything goes to $TASK (default: ~/tinker-demo). Ctrl-C at any moment leaves nothing running.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as sh
set -euo pipefail
QS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROCK=$(cd "$QS/../.." && pwd)
export ROCK TASK=${TASK:-$HOME/tinker-demo}
# shellcheck source=checks.sh
source "$QS/checks.sh"
show_help "${1:-}"
[ $# -eq 0 ] || stop "takes no argument; export TASK=<folder> to work elsewhere"
TASK_ID=sympy__sympy-19637
need_task
started=$(date +%s)
say() { printf '\n[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }
seconds() { echo $(($(date +%s) - $1)); }

# During set-up Ctrl-C reaches the commands in the foreground. A job runs beside this script, which hands the signal on once
# and waits, because the job has sandboxes and a backend to close.
job=''
interrupted() {
  trap '' INT TERM HUP
  if [ -n "$job" ]; then
    kill -TERM "$job" 2>/dev/null || true
    wait "$job" || true
  fi
  exit "$1"
}
trap 'interrupted 130' INT
trap 'interrupted 143' TERM HUP

# run_job MODE OPTION…: run.sh, with its exit code.
run_job() {
  local code=0
  bash "$QS/run.sh" "$@" 9>&- &
  job=$!
  wait "$job" || code=$?
  job=''
  [ "$code" = 0 ] || stop "run.sh $1 ended with exit code $code; see client.log in the run directory above"
}

# only_one: a second demo in the same TASK would share its ports and files.
exec 9>"$TASK/.demo.lock"
flock -n 9 || stop "a demo runs in $TASK already; wait for it, or export TASK=<another folder>"

say "1/4 set-up (log: $TASK/logs/setup-control.log)"
step=$(date +%s)
bash "$QS/setup.sh" control 9>&- 2>&1 | tee -i "$TASK/logs/setup-control.log"
PY=$TASK/control-venv/bin/python
wheels=("$TASK"/dist/rl_rock-*.whl)
"$PY" "$QS/prepare_sandbox.py" --rock-root "$ROCK" --task "$TASK" --task-id "$TASK_ID" --wheel "${wheels[0]}" \
  --profile local 9>&-
mini=$TASK/assets/mini-tasks
if [ ! -f "$mini/.ready" ]; then
  "$PY" -m rock.harbor.tasks mini --output "$mini" 9>&-
  "$PY" -m rock.harbor.tasks prebuild "$mini/train" --store "$TASK/assets/task-layers" >/dev/null 9>&-
  touch "$mini/.ready"
fi
if [ ! -d "$TASK/config" ]; then
  # shellcheck disable=SC2046
  "$PY" "$QS/configure.py" --profile local --task-root "$TASK" --task-id "$TASK_ID" --model SmolLM2-135M-Instruct \
    $(free_ports) 9>&-
fi
setup_seconds=$(seconds "$step")
say "set-up took $setup_seconds s"

say "2/4 rollout of $TASK_ID"
step=$(date +%s)
run_job rollout --task-id "$TASK_ID"
rollout_seconds=$(seconds "$step")
rollout=$(newest rollout)

say "3/4 GRPO on mini tasks: 8 rollouts a step, until a step has trained"
step=$(date +%s)
run_job grpo --tasks "$mini/train" --group-size 8 --rollout-concurrency 2 --num-steps 12 --stop-after-updates 1 \
  --learning-rate 1e-4 --lora-rank 16
training_seconds=$(seconds "$step")
training=$(newest grpo)
grep -q 'Weights published to sampler' "$training/client.log" ||
  stop "no group had unequal returns in 12 steps, so nothing was trained; run it again (sampling is random)"

say "4/4 report"
"$PY" -m tinker_cookbook.swe.report --rollout "$rollout" --training "$training" --out "$TASK/demo.html" \
  --note "set-up=$setup_seconds s" --note "rollout run=$rollout_seconds s" --note "GRPO run=$training_seconds s" \
  --note "model=SmolLM2-135M-Instruct"
echo "whole demo: $(seconds "$started") s. Open the page: $TASK/demo.html"

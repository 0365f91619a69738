#!/usr/bin/env bash
# Does the cluster runtime work on this machine's GPUs? Starts a server, trains an adapter and all weights, publishes, samples,
# compares the sampler's logprobs with the trainer's, and prints a table of throughputs.
#
#   bash examples/gpu_smoke.sh [MODEL] [FOLDER]
#
# MODEL   a model folder or hub id (default Qwen/Qwen3-0.6B); FOLDER gets the logs (default: a new one in /tmp)
# PY      Python with tinker-backend[vllm] and rock-tinker (default python3)
# GPUS    how many GPUs to use (default: all that are visible). One: torch trains and vLLM samples on the same GPU, taking turns.
#         Two or more: FSDP2 trains on the first half and vLLM samples on the other. 0: the same on the CPU, with a tiny model.
# WIDTH   GPUs a sampling replica, which must divide the other half (default 1)
#
# Ends with 0 when all is well, else with the step that failed: 2 environment, 3 configuration, 4 start of the server,
# 5 training and sampling; the server and all that it started end with the script.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as sh
set -euo pipefail
folder=${2:-}
case $folder in '' | /*) ;; *) folder=$PWD/$folder ;; esac
model=${1:-}
case $model in ./* | ../*) model=$PWD/$model ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")"

# fail STEP TEXT…: one sentence, and the end.
fail() {
  printf 'gpu_smoke.sh: %s\n' "${*:2}" >&2
  exit "$1"
}
children=()
# End of the script, however it ends: what it started is told to end, and waited for.
leave() {
  trap '' INT TERM
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "step 2: environment"
PY=${PY:-python3}
command -v "$PY" >/dev/null || fail 2 "PY is '$PY', which is no program; set it to a Python that has tinker-backend[vllm] and rock-tinker"
missing=$("$PY" -c 'from importlib.util import find_spec
print(*(name for name in ("torch", "ray", "vllm", "tinker", "tinker_backend") if find_spec(name) is None))') ||
  fail 2 "$PY cannot be asked for its packages"
[ -z "$missing" ] || fail 2 "$PY has no $missing; set PY to a Python that has tinker-backend[vllm] and rock-tinker"
case ${GPUS:-0} in *[!0-9]*) fail 2 "GPUS is '$GPUS'; give a number, 0 for the CPU" ;; esac
case ${WIDTH:-1} in *[!0-9]* | 0) fail 2 "WIDTH is '$WIDTH'; give a number of GPUs from 1" ;; esac
seen=$("$PY" -c 'import torch; print(torch.cuda.device_count())') || fail 2 "$PY cannot import torch; its message is above"
gpus=${GPUS:-$seen}
[ -n "${GPUS:-}" ] || [ "$seen" -gt 0 ] ||
  fail 2 "torch of $PY sees no GPU (a CPU build, no driver, or CUDA_VISIBLE_DEVICES hides them); GPUS=0 tries the CPU"
[ "$gpus" -le "$seen" ] || fail 2 "GPUS is $gpus, and torch of $PY sees $seen; lower it, or look at nvidia-smi and CUDA_VISIBLE_DEVICES"
folder=${folder:-$(mktemp -d /tmp/gpu-smoke-XXXXXX)}
mkdir -p "$folder" 2>/dev/null || fail 2 "the folder $folder cannot be made; give another one"

echo "step 3: configuration ($gpus GPUs, files in $folder)"
model=${model:-$([ "$gpus" = 0 ] && echo tiny || echo Qwen/Qwen3-0.6B)}
if [ "$model" = tiny ]; then
  model=$folder/tiny
  # Heads of 64: vLLM has no kernel for smaller ones on a CPU.
  [ -f "$model/config.json" ] || "$PY" -c 'import pathlib, sys; from tinker_backend.models.tiny import make_tiny_model as make
make(pathlib.Path(sys.argv[1]), "llama", hidden_size=128, heads=2, kv_heads=1)' "$model" || fail 3 "the tiny model cannot be made"
fi
"$PY" gpu_smoke_config.py --model "$model" --gpus "$gpus" --width "${WIDTH:-1}" --folder "$folder" ||
  fail 3 "the configuration cannot be written to $folder"
"$PY" -m tinker_backend doctor --config "$folder/runtime.yaml" || fail 3 "the configuration does not fit this machine; see FAIL above"

echo "step 4: start of the server (log: $folder/logs/runtime.log)"
"$PY" -m tinker_backend serve --config "$folder/runtime.yaml" >"$folder/serve.out" 2>&1 &
server=$!
children+=("$server")
for _ in $(seq 1800); do
  if grep -q '^ready on ' "$folder/serve.out"; then break; fi
  kill -0 "$server" 2>/dev/null || {
    tail -n 20 "$folder/serve.out" "$folder/logs/runtime.log" >&2 || true
    fail 4 "the server ended before it was ready; its last lines are above"
  }
  sleep 1
done
url=$(sed -n 's/^ready on //p' "$folder/serve.out" | head -1)
[ -n "$url" ] || fail 4 "the server was not ready within 30 minutes; see $folder/logs/runtime.log"

echo "step 5: training and sampling"
# In the background, so that a signal to this script is heard at once.
exec 3> >(tee "$folder/table.md")
table=$!
"$PY" gpu_smoke_client.py --url "$url" >&3 &
client=$!
children+=("$client")
status=0
wait "$client" || status=$?
exec 3>&-
wait "$table" || true
if [ "$status" != 0 ]; then
  kill -0 "$server" 2>/dev/null || fail 5 "the server ended meanwhile; see $folder/serve.out and $folder/logs/runtime.log"
  fail 5 "the client ended with $status; its message is above, the runtime's log in $folder/logs/runtime.log"
fi

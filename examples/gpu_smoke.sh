#!/usr/bin/env bash
# Does the cluster runtime work on this machine's GPUs? Starts a server, trains an adapter and all weights, publishes, samples,
# compares the sampler's logprobs with the trainer's, and prints a table of throughputs.
#
#   bash examples/gpu_smoke.sh [MODEL] [FOLDER]
#
# MODEL   a model folder or hub id (default Qwen/Qwen3-0.6B); FOLDER gets the logs (default: a new one in /tmp)
# PY      Python with tinker-backend[vllm] and rock-tinker (default python3)
# GPUS    how many GPUs to use (default: all). One: torch trains and vLLM samples on the same GPU, taking turns. Two or more:
#         FSDP2 trains on the first half and vLLM samples on the other. 0: the same on the CPU, with a tiny model.
# WIDTH   GPUs a sampling replica, which must divide the other half (default 1)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
PY=${PY:-python3}
gpus=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l)}
model=${1:-$([ "$gpus" = 0 ] && echo tiny || echo Qwen/Qwen3-0.6B)}
folder=${2:-$(mktemp -d /tmp/gpu-smoke-XXXXXX)}
mkdir -p "$folder"
"$PY" -c 'import sys; from importlib.util import find_spec
sys.exit(any(find_spec(name) is None for name in ("ray", "vllm", "tinker", "tinker_backend")))' || {
  echo "$PY cannot import ray, vllm, tinker and tinker_backend: set PY to a Python that has tinker-backend[vllm] and rock-tinker" >&2
  exit 2
}
if [ "$model" = tiny ]; then
  model=$folder/tiny
  # Heads of 64: vLLM has no kernel for smaller ones on a CPU.
  "$PY" -c 'import pathlib, sys; from tinker_backend.models.tiny import make_tiny_model as make
make(pathlib.Path(sys.argv[1]), "llama", hidden_size=128, heads=2, kv_heads=1)' "$model"
fi
"$PY" gpu_smoke_config.py --model "$model" --gpus "$gpus" --width "${WIDTH:-1}" --folder "$folder"
"$PY" -m tinker_backend doctor --config "$folder/runtime.yaml"

"$PY" -m tinker_backend serve --config "$folder/runtime.yaml" >"$folder/serve.out" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true' EXIT
echo "starting the server (log: $folder/logs/runtime.log)"
for _ in $(seq 1800); do
  if grep -q '^ready on ' "$folder/serve.out"; then break; fi
  kill -0 "$server" 2>/dev/null || { tail -n 20 "$folder/serve.out" "$folder/logs/runtime.log" >&2; exit 1; }
  sleep 1
done
url=$(sed -n 's/^ready on //p' "$folder/serve.out" | head -1)
[ -n "$url" ] || { echo "the server was not ready within 30 minutes; see $folder" >&2; exit 1; }
"$PY" gpu_smoke_client.py --url "$url" | tee "$folder/table.md"

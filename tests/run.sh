#!/usr/bin/env bash
# Runs all tests that this machine can run; arguments go to pytest. Installs what is missing into a cache folder first:
#   bash tests/run.sh                 everything
#   bash tests/run.sh tests/rock -k sandbox
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=environment.sh
source tests/environment.sh
test_environment
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false
exec "$TINKER_TEST_PYTHON" -m pytest --durations=15 -rs "$@"

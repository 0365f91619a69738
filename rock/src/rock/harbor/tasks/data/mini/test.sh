#!/bin/bash
# Compares /work with what must be there and writes report.json and reward.txt to /logs/verifier.
# /tests/checks holds one line a check: KIND NAME, where KIND is file, absent or folder.
set -u
logs=${VERIFIER_LOGS:-/logs/verifier} tests=${TASK_TESTS:-/tests} work=${TASK_WORK:-/work}
mkdir -p "$logs"
rm -f "$logs/reward.txt" "$logs/reward.json" "$logs/report.json"
[ -s "$tests/checks" ] || { echo "cannot evaluate: $tests/checks is missing"; exit 1; }
success=() failure=()
while read -r kind name; do
  case $kind in
    file) [ -f "$work/$name" ] && [ "$(cat "$work/$name")" = "$(cat "$tests/expected/$name")" ] ;;
    absent) [ ! -e "$work/$name" ] ;;
    folder) [ -d "$work/$name" ] ;;
    *) echo "cannot evaluate: check $kind is unknown"; exit 1 ;;
  esac
  if [ $? = 0 ]; then success+=("\"$kind $name\""); else failure+=("\"$kind $name\""); fi
done < "$tests/checks"
join() { local IFS=,; echo "[$*]"; }
resolved=true reward=1
[ ${#failure[@]} = 0 ] || { resolved=false; reward=0; }
empty='{"success": [], "failure": []}'
cat > "$logs/report.json" <<JSON
{"$(cat "$tests/task_id")": {"patch_is_None": false, "patch_exists": true, "patch_successfully_applied": true, "resolved": $resolved,
 "tests_status": {"FAIL_TO_PASS": {"success": $(join "${success[@]}"), "failure": $(join "${failure[@]}")},
  "PASS_TO_PASS": $empty, "FAIL_TO_FAIL": $empty, "PASS_TO_FAIL": $empty}}}
JSON
echo $reward > "$logs/reward.txt"
echo "resolved: $resolved"

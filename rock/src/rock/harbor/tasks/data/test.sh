#!/bin/bash
# Grades /testbed: writes report.json and reward.txt to /logs/verifier.
# Without a reward.txt the tests could not be run, and the solution counts as not evaluated.
set -u
mkdir -p /logs/verifier
rm -f /logs/verifier/reward.txt /logs/verifier/reward.json /logs/verifier/report.json
exec /opt/testbed/bin/python -E /tests/grade.py

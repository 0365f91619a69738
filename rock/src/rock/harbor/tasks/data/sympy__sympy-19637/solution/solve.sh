#!/bin/bash
# Moves the test for the placeholder to where the placeholder exists.
set -euo pipefail
cd /testbed
sed -i 's/^        hit = kern in s$/            hit = kern in s/' sympy/core/sympify.py
git diff --stat

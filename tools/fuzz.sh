#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each (default 30s).
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do
  for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' "$file"); do
    echo "== $(dirname "$file") $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$(dirname "$file")"
  done
done

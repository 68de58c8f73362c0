#!/usr/bin/env bash
# Runs the Python and the Node shop against a running sidecar, each over both APIs, on the same tables, then checks the books.
#   SECONDS_TO_RUN  how long each works (default 10)
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
seconds=${SECONDS_TO_RUN:-10}
grpc=grpc://127.0.0.1:7400 http=http://127.0.0.1:7401
# Where `make run` collects traces, if it does.
if (: </dev/tcp/127.0.0.1/4317) 2>/dev/null; then export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317; fi
ledgers=$(mktemp -d)
trap 'rm -rf "$ledgers"' EXIT
$python examples/python/app.py init --url "$grpc"
$python examples/python/app.py run --url "$grpc" --seconds "$seconds" --ledger "$ledgers/python-grpc.jsonl" & apps=$!
$python examples/python/app.py run --url "$http" --seconds "$seconds" --ledger "$ledgers/python-http.jsonl" & apps="$apps $!"
node examples/node/app.mjs run --url "$grpc" --seconds "$seconds" --ledger "$ledgers/node-grpc.jsonl" & apps="$apps $!"
node examples/node/app.mjs run --url "$http" --seconds "$seconds" --ledger "$ledgers/node-http.jsonl" & apps="$apps $!"
for app in $apps; do wait "$app"; done # stops here if one failed
for url in "$grpc" "$http"; do
  $python examples/python/app.py prices --url "$url"
  node examples/node/app.mjs prices --url "$url"
done
$python examples/python/app.py check --url "$grpc" --ledger "$ledgers/python-grpc.jsonl" --ledger "$ledgers/python-http.jsonl" \
  --ledger "$ledgers/node-grpc.jsonl" --ledger "$ledgers/node-http.jsonl"

#!/usr/bin/env bash
# Runs the development cluster, one sidecar and a place for their traces until Ctrl-C. The sidecar stops first, so that
# it can hand its sessions back.
set -euo pipefail
cd "$(dirname "$0")/.."
stop() {
  trap - INT TERM EXIT
  [ -n "${sidecar:-}" ] && kill -TERM "$sidecar" 2>/dev/null && wait "$sidecar" || true
  [ -n "${cluster:-}" ] && kill -TERM "$cluster" 2>/dev/null && wait "$cluster" || true
  [ -n "${traces:-}" ] && kill -TERM "$traces" 2>/dev/null && wait "$traces" || true
}
trap stop INT TERM EXIT
# In process groups of their own: Ctrl-C must reach this script only, which stops them in order.
set -m
bin/devtrace >/dev/null & traces=$!
export OTEL_EXPORTER_OTLP_ENDPOINT=${OTEL_EXPORTER_OTLP_ENDPOINT:-http://127.0.0.1:4317}
export OTEL_BSP_SCHEDULE_DELAY=500 # ms: a person is waiting to see them
bin/devcluster -nodes 3 -log text & cluster=$!
bin/sidecar serve -ydb grpc://127.0.0.1:2136/local -log text -set 'admin.trace_link=http://127.0.0.1:4318/?trace={trace_id}' -set 'kv.tables=drafts=drafts key=id:Uint64 value=lines:Json' & sidecar=$!
set +m
bin/sidecar wait -deep
cat <<'TXT'

  The sidecar serves: gRPC 127.0.0.1:7400, HTTP 127.0.0.1:7401, admin 127.0.0.1:7402. Paste into another terminal:

    curl -s localhost:7401/v1/query -H 'content-type: application/json' -d '{"sql":"SELECT $a + 1 AS b","params":{"a":41}}'
    make apps        # the Python and the Node app place and process orders on the same tables, then check the books
    .cache/official/bin/python -c 'import ydb; d = ydb.Driver(endpoint="grpc://127.0.0.1:7400", database="/local"); d.wait(5); print(ydb.QuerySessionPool(d).execute_with_retries("SELECT 1")[0].rows)'   # an SDK
    bin/sidecar top          # what the sidecar does and what is wrong; also http://127.0.0.1:7402/ in a browser, which links to traces
    curl -s localhost:4318   # the newest traces, each a tree of spans: request, acquire, hop, node

  Ctrl-C stops all of it.

TXT
wait -n "$sidecar" "$cluster" || true

#!/usr/bin/env bash
# Regenerates the Go code of proto/ with the pinned compiler and plugins.
# Needs the project's Python environment (make gen makes it), which holds protoc.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache/gen
go build -modfile=tools/go.mod -o .cache/gen/ \
  google.golang.org/protobuf/cmd/protoc-gen-go \
  google.golang.org/grpc/cmd/protoc-gen-go-grpc
.venv/bin/python -m grpc_tools.protoc -I proto \
  --plugin=.cache/gen/protoc-gen-go --plugin=.cache/gen/protoc-gen-go-grpc \
  --go_out=proto --go_opt=paths=source_relative \
  --go-grpc_out=proto --go-grpc_opt=paths=source_relative \
  sidecar/v1/sidecar.proto sidecar/v1/kv.proto sidecar/v1/ingest.proto
# The Python app's stubs; the Node app reads the .proto files at run time.
.venv/bin/python -m grpc_tools.protoc -I proto \
  --python_out=examples/python --grpc_python_out=examples/python \
  sidecar/v1/sidecar.proto sidecar/v1/kv.proto sidecar/v1/ingest.proto

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
# The Python client's stubs, which import each other inside of its package. The Node app reads the .proto files at run time.
stubs=clients/python/src/ydb_sidecar/_proto
mkdir -p $stubs
.venv/bin/python -m grpc_tools.protoc -I proto \
  --python_out=$stubs --grpc_python_out=$stubs \
  sidecar/v1/sidecar.proto sidecar/v1/kv.proto sidecar/v1/ingest.proto
sed -i 's/^from sidecar\.v1 import/from ydb_sidecar._proto.sidecar.v1 import/' $stubs/sidecar/v1/*_pb2.py $stubs/sidecar/v1/*_pb2_grpc.py

"""Calls the nodes that xDS names, every 10 ms, until it is stopped. It prints a line once a call went well, and one for each that failed."""

import sys
import time

import grpc
from ydb._grpc.v6 import ydb_query_v1_pb2_grpc
from ydb._grpc.v6.protos import ydb_query_pb2, ydb_status_codes_pb2

channel = grpc.insecure_channel(sys.argv[1])
query = ydb_query_v1_pb2_grpc.QueryServiceStub(channel)
request = ydb_query_pb2.ExecuteQueryRequest(
    exec_mode=ydb_query_pb2.EXEC_MODE_EXECUTE,
    query_content=ydb_query_pb2.QueryContent(syntax=ydb_query_pb2.SYNTAX_YQL_V1, text="SELECT 1"),
)
ready = False
while True:
    try:
        statuses = {part.status for part in query.ExecuteQuery(request, timeout=5, wait_for_ready=not ready)}
        if statuses != {ydb_status_codes_pb2.StatusIds.SUCCESS}:
            print("failed:", statuses, flush=True)
        elif not ready:
            ready = True
            print("ready", flush=True)
    except grpc.RpcError as error:
        print("failed:", error.code(), error.details(), flush=True)
    time.sleep(0.01)

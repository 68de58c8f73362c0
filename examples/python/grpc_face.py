"""The client over gRPC, with the stubs that tools/gen.sh makes of sidecar.proto."""

import grpc
from google.rpc import error_details_pb2, status_pb2
from google.protobuf import json_format

from sidecar.v1 import ingest_pb2, ingest_pb2_grpc
from sidecar.v1 import kv_pb2, kv_pb2_grpc
from sidecar.v1 import sidecar_pb2 as pb
from sidecar.v1 import sidecar_pb2_grpc
from sidecar_client import Client, Result, ResultSet, SidecarError, no_answer
from tracing import traceparent


class GrpcClient(Client):
    """One channel; safe for any number of threads."""

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address, options=[
            ("grpc.max_receive_message_length", 64 << 20),
            # The app's own loop decides what is repeated, see shop.py.
            ("grpc.enable_retries", 0),
        ])
        self._stub = sidecar_pb2_grpc.SidecarStub(self._channel)
        self._ingest = ingest_pb2_grpc.IngestStub(self._channel)
        self._kv = kv_pb2_grpc.KeyValueStub(self._channel)

    def execute(self, sql, params=None, *, mode="", idempotent=False, timeout=None, tx=None):
        request = pb.ExecuteRequest(sql=sql, params=_params(params), mode=mode, idempotent=idempotent)
        if tx is not None:
            request.tx.CopyFrom(json_format.ParseDict(tx, pb.TxSelector()))
        # Inside an open transaction nothing is kept before the commit.
        may_keep = not idempotent and (tx is None or tx.get("commit", False))
        return _result(self._call(self._stub.Execute, request, timeout, may_keep))

    def stream(self, sql, params=None, *, mode="", timeout=None):
        request = pb.ExecuteRequest(sql=sql, params=_params(params), mode=mode)
        names = []
        try:
            for part in self._stub.ExecuteStream(request, timeout=timeout, metadata=_metadata()):
                kind = part.WhichOneof("part")
                if kind == "columns":
                    names = [column.name for column in part.columns.columns]
                elif kind == "rows":
                    for row in part.rows.rows:
                        yield dict(zip(names, map(_value, row.values)))
                elif kind == "end":
                    return
        except grpc.RpcError as error:
            raise _error(error, may_have_run=False) from error
        raise no_answer("the stream ended without its end", sent=True, may_have_run=False)

    def transact(self, statements, *, idempotent=False, timeout=None):
        request = pb.TransactRequest(idempotent=idempotent, statements=[
            pb.Statement(sql=sql, params=_params(params)) for sql, params in statements])
        answer = self._call(self._stub.Transact, request, timeout, not idempotent)
        return [_result(one) for one in answer.results]

    def ingest(self, table, rows, *, offset=0, stream=""):
        call = self._ingest.Ingest(_ingest_requests(table, rows, offset, stream), metadata=_metadata())
        try:
            for part in call:
                kind = part.WhichOneof("part")
                if kind == "ack":
                    yield "ack", part.ack.next
                elif kind == "refused":
                    error = part.refused.error
                    yield "refused", part.refused.offset, SidecarError(error.code, error.message, hint=error.hint)
        except grpc.RpcError as error:
            # What was not acknowledged may be sent again: writing it twice does no harm.
            raise _error(error, may_have_run=False) from error
        finally:
            call.cancel()  # the caller may stop reading

    def get(self, table, key, timeout=None):
        try:
            return self._call(self._kv.Get, kv_pb2.KvGetRequest(table=table, id=_id(key)), timeout, False).value
        except SidecarError as error:
            if error.code == "KEY_NOT_FOUND":
                return None
            raise

    def put(self, table, key, value, timeout=None):
        self._call(self._kv.Put, kv_pb2.KvPutRequest(table=table, id=_id(key), value=value), timeout, False)

    def delete(self, table, key, timeout=None):
        self._call(self._kv.Delete, kv_pb2.KvDeleteRequest(table=table, id=_id(key)), timeout, False)

    def commit(self, tx_id, timeout=None):
        self._call(self._stub.Commit, pb.CommitRequest(id=tx_id), timeout, True)

    def rollback(self, tx_id, timeout=None):
        self._call(self._stub.Rollback, pb.RollbackRequest(id=tx_id), timeout, False)

    def status(self):
        answer = self._call(self._stub.Status, pb.StatusRequest(), 5.0, False)
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)

    def close(self):
        self._channel.close()

    def _call(self, method, request, timeout, may_have_run):
        deadline = None
        if timeout is not None:
            # The sidecar ends the call at `timeout`; the channel waits a little longer, so
            # that its answer, which says what came of the call, is heard.
            deadline = timeout + 1
            if hasattr(request, "timeout"):
                request.timeout = f"{max(1, int(timeout * 1000))}ms"
        try:
            return method(request, timeout=deadline, metadata=_metadata())
        except grpc.RpcError as error:
            raise _error(error, may_have_run) from error


def _ingest_requests(table, rows, offset, stream):
    """The messages of a stream: rows of the same columns go together, 100 at most."""
    yield ingest_pb2.IngestRequest(open=ingest_pb2.IngestOpen(table=table, offset=offset, stream=stream))
    names, part = None, []
    for row in rows:
        if part and (len(part) == 100 or list(row) != names):
            yield ingest_pb2.IngestRequest(rows=ingest_pb2.IngestRows(columns=names, rows=part))
            part = []
        names = list(row)
        part.append(pb.Row(values=map(_pack, row.values())))
    if part:
        yield ingest_pb2.IngestRequest(rows=ingest_pb2.IngestRows(columns=names, rows=part))


def _metadata():
    return (("traceparent", traceparent()),)


def _error(error, may_have_run):
    """What the sidecar said stands in ErrorInfo; without one it was not the sidecar that answered."""
    details = {key: value for key, value in error.trailing_metadata() or ()}
    status = status_pb2.Status.FromString(details.get("grpc-status-details-bin", b""))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        detail.Unpack(info)   # both leave the message alone when the type is another
        detail.Unpack(retry)
    if info.reason:
        said = info.metadata
        return SidecarError(
            info.reason, error.details(),
            safe_to_retry=said.get("safe_to_retry") == "true",
            outcome_unknown=said.get("outcome_unknown") == "true",
            retry_after=retry.retry_delay.ToTimedelta().total_seconds(),
            ydb_status=said.get("ydb_status", ""), trace_id=said.get("trace_id", ""), hint=said.get("hint", ""))
    return no_answer(f"{error.code().name}: {error.details()}", sent=True, may_have_run=may_have_run)


def _id(key):
    return kv_pb2.KvId(columns=[_pack(key)])  # one for each column of the key


def _params(params):
    return {name: _pack(value) for name, value in (params or {}).items()}


def _pack(value):
    if value is None:
        return pb.Value(null_value=True)
    if isinstance(value, bool):  # before int: a bool is one
        return pb.Value(bool_value=value)
    if isinstance(value, int):
        return pb.Value(int64_value=value) if value < 1 << 63 else pb.Value(uint64_value=value)
    if isinstance(value, float):
        return pb.Value(double_value=value)
    if isinstance(value, str):
        return pb.Value(text_value=value)
    if isinstance(value, bytes):
        return pb.Value(bytes_value=value)
    if isinstance(value, dict):
        return pb.Value(struct_value=pb.StructValue(
            fields=[pb.Field(name=name, value=_pack(item)) for name, item in value.items()]))
    if isinstance(value, (list, tuple)):
        return pb.Value(list_value=pb.ListValue(items=map(_pack, value)))
    raise TypeError(f"no YQL value for {type(value).__name__}")


def _value(value):
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "list_value":
        return [_value(item) for item in value.list_value.items]
    if kind == "struct_value":
        return {one.name: _value(one.value) for one in value.struct_value.fields}
    return getattr(value, kind)  # Dict and Variant stay messages: this app has none


def _set(answer):
    names = [column.name for column in answer.columns]
    return ResultSet(names, [dict(zip(names, map(_value, row.values))) for row in answer.rows])


def _result(answer):
    first = _set(answer)
    result = Result(first.columns, first.rows, [_set(one) for one in answer.sets] or [first])
    if isinstance(answer, pb.ExecuteResponse):
        result.info = json_format.MessageToDict(answer.info, preserving_proto_field_name=True)
        result.tx_id = answer.tx.id
    return result

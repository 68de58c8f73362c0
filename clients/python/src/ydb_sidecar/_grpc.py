"""The calls over gRPC: needs `pip install ydb-sidecar[grpc]`."""

from __future__ import annotations

import base64
import inspect
import time
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from ._errors import SidecarError, error_from, make_error, no_answer, not_a_sidecar
from ._net import Address, Runtime
from ._proto.sidecar.v1 import ingest_pb2, ingest_pb2_grpc, kv_pb2, kv_pb2_grpc, sidecar_pb2, sidecar_pb2_grpc
from ._result import Entry, Many, Put
from ._transport import GRACE, Key, Options
from ._values import Typed, Variant, declared_in, parameter, to_text

pb = sidecar_pb2

# Calls by name: the method of the stub, and the message of its request.
_CALLS = {
    "query": ("Execute", pb.ExecuteRequest),
    "tx": ("Transact", pb.TransactRequest),
    "begin": ("Begin", pb.BeginRequest),
    "commit": ("Commit", pb.CommitRequest),
    "rollback": ("Rollback", pb.RollbackRequest),
    "get_transaction": ("GetTransaction", pb.GetTransactionRequest),
    "batch": ("Batch", pb.BatchRequest),
    "bulk": ("BulkUpsert", pb.BulkUpsertRequest),
    "explain": ("Explain", pb.ExplainRequest),
    "describe": ("Describe", pb.DescribeRequest),
    "status": ("Status", pb.StatusRequest),
    "version": ("Version", pb.VersionRequest),
}

# The client sends what api.max_body of the sidecar lets it send, and takes what api.max_bytes lets it get. As over HTTP, http_proxy of the
# environment does not count: the sidecar is near.
_CHANNEL = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]

# How the details of UNAVAILABLE begin when the channel has no connection, so that nothing was sent.
_UNSENT = ("failed to connect to all addresses", "dns resolution", "name resolution", "errors resolving")


class GrpcTransport:
    """Calls the gRPC API over one channel. grpc.aio makes it where the runtime is that of asyncio."""

    def __init__(self, runtime: Runtime, address: Address, asynchronous: bool, credentials: Optional[Any]) -> None:
        self._runtime, self._asynchronous = runtime, asynchronous
        target = f"unix:{address.path}" if address.path else address.authority
        self._target = target
        library: Any = grpc.aio if asynchronous else grpc
        if credentials is not None:
            self._channel = library.secure_channel(target, credentials, options=_CHANNEL)
        else:
            self._channel = library.insecure_channel(target, options=_CHANNEL)
        self._sql = sidecar_pb2_grpc.SidecarStub(self._channel)
        self._rows = kv_pb2_grpc.KeyValueStub(self._channel)
        self._feed = ingest_pb2_grpc.IngestStub(self._channel)

    async def close(self) -> None:
        closed = self._channel.close()
        if inspect.isawaitable(closed):
            await closed

    async def sleep(self, seconds: float) -> None:
        await self._runtime.sleep(seconds)

    async def _unary(self, method: Callable[..., Any], request: Any, options: Options) -> Any:
        if options.timeout is not None and options.timeout <= 0:
            raise make_error("DEADLINE_EXCEEDED", "the time was over before the call", status=504, safe_to_retry=True)
        again = options.repeat or not options.keeps
        deadline, how = options.deadline(), _how(options)
        while True:
            if deadline is not None:
                how["timeout"] = deadline - time.monotonic()  # a second try has what the first one left
            try:
                answer = method(request, **how)
                return await answer if self._asynchronous else answer
            except grpc.RpcError as error:
                failure = _error(error, options, self._target)
                if not again or (failure.code != "SIDECAR_AWAY" and failure.code != "OUTCOME_UNKNOWN"):
                    raise failure from error
                again = False  # the connection broke: once more, over another one

    async def call(self, name: str, body: Dict[str, Any], options: Options) -> Mapping[str, Any]:
        method, message = _CALLS[name]
        request = _message(message, name, body)
        if options.timeout is not None and "timeout" in message.DESCRIPTOR.fields_by_name:
            request.timeout = options.duration()
        return _dict(await self._unary(getattr(self._sql, method), request, options))

    async def stream(self, body: Dict[str, Any], options: Options) -> AsyncIterator[Mapping[str, Any]]:
        request = _message(pb.ExecuteRequest, "query", body)
        request.timeout = options.duration()
        call = self._sql.ExecuteStream(request, **_how(options))
        ended = False
        try:
            while True:
                part = await self._next(call, options)
                if part is None:
                    break
                kind = part.WhichOneof("part")
                if kind == "columns":
                    yield {"set": part.columns.set, "columns": _dict(part.columns).get("columns", [])}
                elif kind == "rows":
                    yield {"rows": [[_plain(value) for value in row.values] for row in part.rows.rows]}
                elif kind == "end":
                    ended = True
                    yield {"end": _dict(part.end)}
            if not ended:
                raise no_answer("the stream was cut", sent=True, keeps=options.keeps, idempotent=options.idempotent)
        finally:
            call.cancel()  # one that was not read to its end: frees its session

    async def ingest(self, table: str, rows: Any, offset: int, name: str, options: Options) -> AsyncIterator[Mapping[str, Any]]:
        opening = ingest_pb2.IngestRequest(open=ingest_pb2.IngestOpen(table=table, offset=offset, stream=name))
        failed: List[BaseException] = []
        requests = _requests_async(opening, rows, failed) if self._asynchronous else _requests(opening, rows, failed)
        call = self._feed.Ingest(requests, **_how(options))
        try:
            while True:
                try:
                    part = await self._next(call, options)
                except SidecarError:
                    if failed:
                        raise failed[0] from None  # the caller's rows failed
                    raise
                if part is None:
                    raise no_answer("the stream was cut", sent=True, keeps=False, idempotent=True)
                yield _dict(part)
                if part.WhichOneof("part") == "end":
                    return
        finally:
            call.cancel()

    async def _next(self, call: Any, options: Options) -> Any:
        """The next message of a stream; None at its end."""
        try:
            if self._asynchronous:
                part = await call.read()
                return None if part is grpc.aio.EOF else part
            return next(call, None)
        except grpc.RpcError as error:
            raise _error(error, options, self._target) from error

    async def kv_get(self, key: Key, options: Options) -> Entry:
        request = kv_pb2.KvGetRequest(
            table=key.table, id=_id(key.id), condition=_condition(key), timeout=options.duration()
        )  # fmt: skip
        got = await self._unary(self._rows.Get, request, options)
        return Entry(got.value if got.HasField("value") else None, got.version, got.content_type, got.not_modified)

    async def kv_put(self, key: Key, value: bytes, options: Options) -> Put:
        request = kv_pb2.KvPutRequest(
            table=key.table, id=_id(key.id), value=value, condition=_condition(key), timeout=options.duration()
        )  # fmt: skip
        done = await self._unary(self._rows.Put, request, options)
        return Put(done.created, done.version)

    async def kv_delete(self, key: Key, options: Options) -> None:
        request = kv_pb2.KvDeleteRequest(table=key.table, id=_id(key.id), condition=_condition(key), timeout=options.duration())
        await self._unary(self._rows.Delete, request, options)

    async def kv_get_many(self, table: str, ids: List[Sequence[Any]], text: bool, options: Options) -> Many:
        request = kv_pb2.KvBatchGetRequest(table=table, ids=[_id(id) for id in ids], timeout=options.duration())
        got = await self._unary(self._rows.BatchGet, request, options)
        items = [Entry(one.value if one.HasField("value") else None, one.version, key=_unpack_id(one.id)) for one in got.items]
        return Many(items, [_unpack_id(id) for id in got.missing])


def _how(options: Options) -> Dict[str, Any]:
    metadata = [(name.lower(), value) for name, value in options.headers.items()]
    return {"timeout": None if options.timeout is None else options.timeout + GRACE, "metadata": metadata}


def _requests(opening: Any, rows: Any, failed: List[BaseException]) -> Iterator[Any]:
    """The messages of a stream of rows. The columns go along when they change."""
    yield opening
    columns: Tuple[str, ...] = ()
    try:
        for row in rows:
            message, columns = _row(row, columns)
            yield message
    except Exception as error:
        failed.append(error)
        raise


async def _requests_async(opening: Any, rows: Any, failed: List[BaseException]) -> AsyncIterator[Any]:
    yield opening
    columns: Tuple[str, ...] = ()
    try:
        if hasattr(rows, "__aiter__"):
            async for row in rows:
                message, columns = _row(row, columns)
                yield message
        else:
            for row in rows:
                message, columns = _row(row, columns)
                yield message
    except Exception as error:
        failed.append(error)
        raise


def _row(row: Mapping[str, Any], before: Tuple[str, ...]) -> Tuple[Any, Tuple[str, ...]]:
    columns = tuple(row)
    part = ingest_pb2.IngestRows(
        columns=() if columns == before else columns, rows=[pb.Row(values=[_pack(value) for value in row.values()])]
    )
    return ingest_pb2.IngestRequest(rows=part), columns


def _error(error: Any, options: Options, target: str) -> SidecarError:
    """What the sidecar said is a message among the details; without one it was not the sidecar that answered."""
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            body = pb.Error()
            if detail.Is(pb.Error.DESCRIPTOR):
                detail.Unpack(body)
                return error_from(_dict(body))
    code = error.code()
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return make_error("LIMIT_EXCEEDED", error.details() or "the message is too long", status=413)
    if code == grpc.StatusCode.UNIMPLEMENTED and "unknown method" in (error.details() or ""):
        return make_error("NO_SUCH_ROUTE", error.details(), status=404, hint="update the sidecar: it is older than this client")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return not_a_sidecar(target, error.details() or "it has no such method", status=404)
    late = code == grpc.StatusCode.DEADLINE_EXCEEDED
    sent = not (code == grpc.StatusCode.UNAVAILABLE and (error.details() or "").lower().startswith(_UNSENT))
    return no_answer(f"{code.name}: {error.details()}", sent=sent, keeps=options.keeps, idempotent=options.idempotent, late=late)


# Messages of dicts, and dicts of messages. The names are the same.


def _message(kind: Any, name: str, body: Dict[str, Any]) -> Any:
    try:
        return _packed(kind, name, body)
    except (DecodeError, RecursionError):
        raise make_error(
            "LIMIT_EXCEEDED",
            "a value nests more deeply than a message may",
            status=413,
            hint="nest less; a document of Json takes any depth as text",
        ) from None


def _packed(kind: Any, name: str, body: Dict[str, Any]) -> Any:
    body = dict(body)
    if name == "bulk":
        body["rows"] = [pb.BulkRow(columns={column: _pack(value) for column, value in row.items()}) for row in body["rows"]]
    elif "statements" in body:
        one = pb.Statement if name == "tx" else pb.BatchStatement
        body["statements"] = [_fill(one, dict(statement)) for statement in body["statements"]]
    return _fill(kind, body)


def _fill(kind: Any, body: Dict[str, Any]) -> Any:
    if "params" in body:
        known = {**declared_in(body["sql"]), **{name.lstrip("$"): one for name, one in (body.get("types") or {}).items()}}
        body["params"] = {name: _parameter(name, value, known) for name, value in (body["params"] or {}).items()}
    if body.get("tx") is not None:
        tx = dict(body["tx"])
        if tx.get("begin") is not None:
            tx["begin"] = pb.BeginTx(**tx["begin"])
        body["tx"] = pb.TxSelector(**tx)
    for name, message in (("limits", pb.Limits), ("expect", pb.Expect)):
        if body.get(name) is not None:
            body[name] = message(**body[name])
    return kind(**{name: value for name, value in body.items() if value is not None})


def _parameter(name: str, value: Any, known: Mapping[str, str]) -> Any:
    kind, value = parameter(name, value, known)
    as_dict = (kind or known.get(name.lstrip("$"), "")).lower().startswith("dict")
    packed = _pack(value, as_dict)
    return pb.Value(typed_value=pb.TypedValue(type=kind, value=packed)) if kind else packed


def _pack(value: Any, as_dict: bool = False) -> Any:
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
    if isinstance(value, (bytes, bytearray, memoryview)):
        return pb.Value(bytes_value=bytes(value))
    if isinstance(value, Typed):
        return _pack(value.value)
    if isinstance(value, Variant):
        where = {"index": value.member} if isinstance(value.member, int) else {"tag": value.member}
        return pb.Value(variant_value=pb.VariantValue(value=_pack(value.value), **where))
    if isinstance(value, Mapping):
        if as_dict or not all(isinstance(key, str) for key in value):
            pairs = [pb.Pair(key=_pack(key), value=_pack(item)) for key, item in value.items()]
            return pb.Value(dict_value=pb.DictValue(pairs=pairs))
        fields = [pb.Field(name=name, value=_pack(item)) for name, item in value.items()]
        return pb.Value(struct_value=pb.StructValue(fields=fields))
    text = to_text(value)
    if text is not None:
        return pb.Value(text_value=text)
    if isinstance(value, (set, frozenset)):
        return pb.Value(dict_value=pb.DictValue(pairs=[pb.Pair(key=_pack(item)) for item in value]))
    if isinstance(value, (list, tuple)):
        return pb.Value(list_value=pb.ListValue(items=[_pack(item) for item in value]))
    raise TypeError(f"no YQL value for {type(value).__name__}")


def _plain(value: Any) -> Any:
    """A value in its JSON form, except that bytes are bytes."""
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.items]
    if kind == "struct_value":
        return {one.name: _plain(one.value) for one in value.struct_value.fields}
    if kind == "dict_value":
        pairs = value.dict_value.pairs
        if pairs and not pairs[0].HasField("value"):
            return [_plain(pair.key) for pair in pairs]
        return [[_plain(pair.key), _plain(pair.value)] for pair in pairs]
    if kind == "variant_value":
        one = value.variant_value
        return {one.tag: _plain(one.value)} if one.tag else {"index": one.index, "value": _plain(one.value)}
    return getattr(value, kind)


def _dict(message: Any) -> Dict[str, Any]:
    """The members of a message that are set."""
    out: Dict[str, Any] = {}
    for one, value in message.ListFields():
        if one.message_type is None:
            out[one.name] = list(value) if one.is_repeated else value
        elif one.message_type.full_name == "sidecar.v1.Row":
            out[one.name] = [[_plain(item) for item in row.values] for row in value]
        elif one.is_repeated:
            out[one.name] = [_dict(item) for item in value]
        else:
            out[one.name] = _dict(value)
    return out


def _id(parts: Sequence[Any]) -> Any:
    return kv_pb2.KvId(columns=[_pack(part) for part in parts])


def _condition(key: Key) -> Any:
    return kv_pb2.KvCondition(match=key.match, none_match=key.none_match)


def _unpack_id(id: Any) -> Any:
    parts = [_plain(part) for part in id.columns]
    parts = [base64.b64encode(part).decode() if isinstance(part, bytes) else part for part in parts]
    return parts[0] if len(parts) == 1 else parts

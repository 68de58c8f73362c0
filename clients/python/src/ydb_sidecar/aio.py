"""The asyncio client: ``db = ydb_sidecar.aio.connect("http://127.0.0.1:7401")``."""

from __future__ import annotations

from typing import (
    Any,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)  # fmt: skip

from ._connect import Settings, options_of, transport_of
from ._errors import NotFound, SidecarError, error_from, make_error
from ._net import Asyncio
from ._result import (
    Ack,
    BatchResult,
    Column,
    Entry,
    Index,
    Info,
    Many,
    Names,
    Plan,
    Put,
    Refused,
    Result,
    Row,
    Statement,
    Table,
    TableColumn,
    TransactionState,
    Version,
    columns_of,
    info_of,
    outcome_of,
    result_of,
)  # fmt: skip
from ._retry import Backoff
from ._transport import Key, Options, Transport

T = TypeVar("T")

__all__ = ["Client", "KeyValue", "Stream", "Transaction", "connect"]


def connect(url: str = "http://127.0.0.1:7401", **settings: Any) -> Client:
    """A client for http://host:port, https://host:port, unix:///path, grpc://host:port, grpcs://host:port or grpc+unix:///path.

    The settings are those of ``ydb_sidecar.connect()``.
    """
    own = Settings(**settings)
    return Client(transport_of(url, Asyncio(), own, asynchronous=True), own)


class Client:
    """The calls of the sidecar. One client serves any number of tasks of one event loop."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self._transport, self._settings = transport, settings

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes idle connections."""
        await self._transport.close()

    async def query(
        self,
        sql: str,
        params: Optional[Mapping[str, Any]] = None,
        *,
        types: Optional[Mapping[str, str]] = None,
        mode: str = "",
        idempotent: bool = False,
        timeout: Optional[float] = None,
        max_rows: int = 0,
        max_bytes: int = 0,
        stats: str = "",
        priority: str = "",
        traceparent: str = "",
        tx: Optional[Mapping[str, Any]] = None,
    ) -> Result:
        """Runs one statement, or several separated by semicolons. ``tx`` is the API's own selector; ``transaction()`` does it for you."""
        body = _statement(sql, params, types, mode, idempotent, max_rows, max_bytes, stats, tx)
        options = options_of(self._settings, timeout, priority, traceparent)
        _fate(options, idempotent, tx, mode)
        answer = await self._transport.call("query", body, options)
        return _decoded(lambda: result_of(answer), options)

    def stream(
        self,
        sql: str,
        params: Optional[Mapping[str, Any]] = None,
        *,
        types: Optional[Mapping[str, str]] = None,
        mode: str = "",
        timeout: Optional[float] = None,
        max_rows: int = 0,
        max_bytes: int = 0,
        stats: str = "",
        priority: str = "",
        traceparent: str = "",
        tx: Optional[Mapping[str, Any]] = None,
    ) -> Stream:
        """Runs a statement and yields its rows as they come. Nothing holds the whole result.

        Without a timeout the stream lasts as long as it moves. ``async with`` frees its session when you leave early.
        """
        body = _statement(sql, params, types, mode, False, max_rows, max_bytes, stats, tx)
        options = options_of(self._settings, timeout, priority, traceparent, default=False)
        _fate(options, False, tx, mode)
        return Stream(self._transport.stream(body, options))

    async def tx(
        self,
        statements: Sequence[Union[str, Statement]],
        *,
        mode: str = "",
        idempotent: bool = False,
        timeout: Optional[float] = None,
        max_rows: int = 0,
        max_bytes: int = 0,
        stats: str = "",
        priority: str = "",
        traceparent: str = "",
        tx: Optional[Mapping[str, Any]] = None,
    ) -> List[Result]:
        """Runs a list of statements as one transaction, which the sidecar repeats as a whole when that is safe."""
        body: Dict[str, Any] = {"statements": [_listed(one) for one in map(_as_statement, statements)]}
        _put(body, mode=mode, idempotent=idempotent, stats=stats, limits=_limits(max_rows, max_bytes))
        if tx is not None:
            body["tx"] = tx
        options = options_of(self._settings, timeout, priority, traceparent)
        _fate(options, idempotent, tx, mode)
        answer = await self._transport.call("tx", body, options)
        return _decoded(lambda: [result_of(one, answer.get("info"), answer.get("tx")) for one in answer.get("results") or ()], options)

    async def batch(
        self,
        statements: Sequence[Union[str, Statement]],
        *,
        timeout: Optional[float] = None,
        priority: str = "",
        traceparent: str = "",
    ) -> List[BatchResult]:
        """Runs independent statements side by side. Each has an outcome of its own."""
        all_statements = [_as_statement(one) for one in statements]
        body = {"statements": [_independent(one) for one in all_statements]}
        options = options_of(self._settings, timeout, priority, traceparent)
        options.idempotent = all(one.idempotent for one in all_statements)
        options.keeps = not all(one.mode.endswith("_ro") or one.idempotent for one in all_statements)
        answer = await self._transport.call("batch", body, options)
        return [outcome_of(one) for one in answer.get("results") or ()]

    async def bulk(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        types: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
        priority: str = "",
        traceparent: str = "",
    ) -> int:
        """Writes rows without a transaction and returns their number. Columns that a row does not name keep their values."""
        options = options_of(self._settings, timeout, priority, traceparent)
        options.keeps, options.idempotent = False, True  # writing the rows again does no harm
        body: Dict[str, Any] = {"table": table, "rows": rows}
        _put(body, types=types)
        return int((await self._transport.call("bulk", body, options)).get("rows", 0))

    async def ingest(
        self,
        table: str,
        rows: Union[Iterable[Mapping[str, Any]], AsyncIterable[Mapping[str, Any]]],
        *,
        offset: int = 0,
        stream: str = "",
        traceparent: str = "",
    ) -> AsyncIterator[Ack]:
        """Writes rows as they come and yields how far it is. It takes rows no faster than the database writes them.

        The first row has the number ``offset``. After an error go on with the rows from the last ``next``, with the same ``stream``.
        """
        options = options_of(self._settings, None, "", traceparent, default=False)
        options.keeps, options.idempotent = False, True
        refused: List[Refused] = []
        parts = self._transport.ingest(table, rows, offset, stream, options)
        try:
            async for part in parts:
                if "refused" in part:
                    refused.append(Refused(int(part["refused"].get("offset", 0)), error_from(part["refused"]["error"])))
                elif "ack" in part:
                    yield Ack(int(part["ack"].get("next", 0)), refused)
                    refused = []
                elif "end" in part:
                    end = part["end"]
                    yield Ack(int(end.get("next", 0)), refused, True, int(end.get("rows", 0)))
        finally:
            await parts.aclose()  # type: ignore[attr-defined]

    def begin(self, *, mode: str = "", timeout: Optional[float] = None, priority: str = "", traceparent: str = "") -> Transaction:
        """An interactive transaction for ``async with``: committed when the block ends, rolled back if it raises.

        The commit is a call of its own and may fail, so nothing is certain before the block is left. ``timeout`` bounds
        the whole transaction, in seconds: its statements, its commit and the time between them. Without it the client's
        counts. Nothing repeats it: ``transaction()`` does.
        """
        return Transaction(self, mode, timeout if timeout is not None else self._settings.timeout, priority, traceparent)

    async def transaction(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        mode: str = "",
        idempotent: bool = False,
        timeout: Optional[float] = None,
        priority: str = "",
        traceparent: str = "",
    ) -> T:
        """Runs ``work(tx)`` in a transaction, commits it and returns what it returned.

        The whole is repeated while an error is ``safe_to_retry``, with growing random pauses, until ``timeout`` is over. After an
        unknown outcome it is repeated only if it is ``idempotent``: it may run twice. Whatever else ``work`` raises rolls back.
        Once ``work`` has committed by itself, nothing is repeated.
        """
        backoff = Backoff(timeout if timeout is not None else self._settings.timeout)
        while True:
            transaction = self.begin(mode=mode, timeout=backoff.left(), priority=priority, traceparent=traceparent)
            try:
                async with transaction:
                    return await work(transaction)
            except SidecarError as error:
                again = idempotent if error.outcome_unknown else error.safe_to_retry
                if transaction._committed or (transaction._unknown and not idempotent):
                    again = False  # what the work did after its commit has failed
                pause = backoff.next(error.retry_after) if again else None
                if pause is None:
                    raise
            await self._transport.sleep(pause)

    def kv(self, table: str, *, text: bool = False) -> KeyValue:
        """A table that ``kv.tables`` of the sidecar opens. With ``text`` values are str: for columns of Utf8, Json and the like."""
        return KeyValue(self, table, text)

    async def explain(self, sql: str, *, types: Optional[Mapping[str, str]] = None, timeout: Optional[float] = None) -> Plan:
        """The plan of a statement."""
        body: Dict[str, Any] = {"sql": sql}
        _put(body, types=types)
        got = await self._read("explain", body, timeout)
        return Plan(got.get("plan", ""), got.get("ast", ""))

    async def describe(self, path: str, *, timeout: Optional[float] = None) -> Table:
        """Columns, key and indexes of a table."""
        got = await self._read("describe", {"path": path}, timeout)
        return Table(
            got["path"],
            [TableColumn(one["name"], one["type"], bool(one.get("not_null", False))) for one in got.get("columns") or ()],
            list(got.get("primary_key") or ()),
            [Index(one["name"], list(one.get("columns") or ()), list(one.get("covered") or ())) for one in got.get("indexes") or ()],
        )

    async def status(self, *, timeout: Optional[float] = None) -> Mapping[str, Any]:
        """The state of the sidecar: nodes, pool, version."""
        return await self._read("status", {}, timeout)

    async def version(self, *, timeout: Optional[float] = None) -> Version:
        """What the sidecar serves."""
        got = await self._read("version", {}, timeout)
        return Version(got.get("api", ""), got.get("version", ""), list(got.get("features") or ()))

    async def _read(self, name: str, body: Dict[str, Any], timeout: Optional[float]) -> Mapping[str, Any]:
        options = options_of(self._settings, timeout, "", "")
        options.keeps = False
        return await self._transport.call(name, body, options)


class Stream:
    """Rows as they come. ``columns`` are those of the current result set, ``set`` is its number; the rest is there at the end."""

    def __init__(self, parts: AsyncIterator[Mapping[str, Any]]) -> None:
        self._parts = parts
        self._ready: List[Row] = []
        self._names = Names(())
        self.set = -1
        self.columns: List[Column] = []
        self.ended = False  # all rows came
        self.count = 0  # rows, by the sidecar
        self.truncated = False
        self.rows_affected: Optional[int] = None
        self.info = Info()
        self.stats: Optional[Mapping[str, Any]] = None
        self.tx_id = ""

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Row:
        while not self._ready:
            self._take(await self._parts.__anext__())
        return self._ready.pop()

    def _take(self, part: Mapping[str, Any]) -> None:
        if "columns" in part:
            self.set = int(part.get("set", 0))
            self.columns = columns_of(part)
            self._names = Names(self.columns)
        elif "row" in part:
            self._ready = [self._names.row(part["row"])]
        elif "rows" in part:
            self._ready = [self._names.row(row) for row in reversed(part["rows"])]
        elif "end" in part:
            end = part["end"]
            self.ended, self.count, self.truncated = True, int(end.get("rows", 0)), bool(end.get("truncated", False))
            self.rows_affected, self.stats = end.get("rows_affected"), end.get("stats")
            self.info, self.tx_id = info_of(end.get("info")), (end.get("tx") or {}).get("id", "")

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leaves the stream. What was not read is not sent, and the session is free."""
        await self._parts.aclose()  # type: ignore[attr-defined]


# A failed statement ends its transaction, except where the call did not reach it, or its answer did not reach the client.
_MAY_BE_OPEN = {"UPSTREAM_LOST", "SIDECAR_AWAY", "STREAM_LEFT", "TX_BUSY", "DEADLINE_EXCEEDED", "ANSWER_UNREADABLE"}

ROLLBACK = 2.0  # seconds for a rollback, whatever is left of the transaction's own time


class Transaction:
    """An interactive transaction. One statement at a time."""

    def __init__(self, client: Client, mode: str, timeout: Optional[float], priority: str, traceparent: str) -> None:
        self._client, self._mode, self._priority, self._traceparent = client, mode, priority, traceparent
        self._time = Backoff(timeout)
        self._seq = 0
        self._failed: Optional[SidecarError] = None  # what ended it
        self._open = True
        self._committed = False
        self._unknown = False  # it may be committed
        self.id = ""  # once the first statement has run

    async def query(
        self,
        sql: str,
        params: Optional[Mapping[str, Any]] = None,
        *,
        types: Optional[Mapping[str, str]] = None,
        max_rows: int = 0,
        max_bytes: int = 0,
        stats: str = "",
        commit: bool = False,
    ) -> Result:
        """Runs a statement. ``commit`` commits with it and saves a round trip."""
        try:
            result = await self._client.query(
                sql, params, types=types, max_rows=max_rows, max_bytes=max_bytes, stats=stats, tx=self._next(commit), timeout=self._left(),
                priority=self._priority, traceparent=self._traceparent,
            )  # fmt: skip
        except SidecarError as error:
            self._fails(error)
            raise
        except (TypeError, ValueError):
            self._seq -= 1  # a parameter has no form in the API: nothing was sent
            raise
        self._goes_on(result.tx_id, commit)
        return result

    async def tx(self, statements: Sequence[Union[str, Statement]], *, commit: bool = False) -> List[Result]:
        """Runs several statements in one call."""
        try:
            results = await self._client.tx(
                statements, tx=self._next(commit), timeout=self._left(), priority=self._priority, traceparent=self._traceparent
            )
        except SidecarError as error:
            self._fails(error)
            raise
        except (TypeError, ValueError):
            self._seq -= 1  # a parameter has no form in the API: nothing was sent
            raise
        self._goes_on(results[0].tx_id if results else "", commit)
        return results

    async def stream(
        self, sql: str, params: Optional[Mapping[str, Any]] = None, *, types: Optional[Mapping[str, str]] = None
    ) -> AsyncIterator[Row]:
        """Runs a statement and yields its rows as they come. Read them to the end: leaving early ends the transaction."""
        rows = self._client.stream(
            sql, params, types=types, tx=self._next(False), timeout=self._left(), priority=self._priority, traceparent=self._traceparent
        )
        try:
            async for row in rows:
                yield row
        except SidecarError as error:
            self._fails(error)
            raise
        finally:
            if not rows.ended and self._failed is None:
                self._fails(make_error("STREAM_LEFT", "a stream of the transaction was not read to its end", status=409))
            await rows.aclose()
        self._goes_on(rows.tx_id, False)

    async def commit(self) -> None:
        """Commits. The end of ``async with`` does it too."""
        if self._failed is not None:
            await self._leave()
            raise self._failed
        if self._open and self.id:
            try:
                options = options_of(self._client._settings, self._left(), self._priority, self._traceparent)
                options.keeps, options.repeat = True, True
                await self._client._transport.call("commit", {"id": self.id}, options)
            except SidecarError as error:
                self._fails(error)
                await self._leave()
                raise
            self._committed = True
        self._open = False

    async def rollback(self) -> None:
        """Rolls back, unless it has ended."""
        if self._open and self.id and self._failed is None:
            options = options_of(self._client._settings, ROLLBACK, self._priority, self._traceparent)
            options.keeps, options.repeat = False, True
            await self._client._transport.call("rollback", {"id": self.id}, options)
        self._open = False

    async def state(self) -> TransactionState:
        """What the sidecar says of it."""
        return await _state(self._client, self.id)

    def _left(self) -> Optional[float]:
        left = self._time.left()
        if left is not None and left <= 0:
            raise make_error(
                "DEADLINE_EXCEEDED",
                "the time of the transaction is over",
                status=504,
                hint="give it a longer timeout: it bounds the whole transaction, with its commit and the time between its statements",
            )
        return left

    def _next(self, commit: bool) -> Dict[str, Any]:
        """The selector of the next statement."""
        if self._failed is not None:
            raise self._failed
        if not self._open:
            raise RuntimeError("the transaction has ended")
        self._seq += 1
        selector: Dict[str, Any] = {"seq": self._seq, "id": self.id} if self.id else {"begin": {"mode": self._mode or "serializable_rw"}}
        if commit:
            selector["commit"] = True
        return selector

    def _goes_on(self, id: str, committed: bool) -> None:
        self.id, self._open, self._committed = id or self.id, not committed, committed

    def _fails(self, error: SidecarError) -> None:
        """Notes that the transaction has ended: any failure of a statement ends it."""
        self._failed = self._failed or error
        self._unknown = self._unknown or error.outcome_unknown

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is None:
            await self.commit()
        else:
            await self._leave()

    async def _leave(self) -> None:
        """Rolls back, unless a failure has ended the transaction: the session is free at once, not after tx.idle."""
        failed, self._failed = self._failed, None
        try:
            if failed is None or failed.code in _MAY_BE_OPEN:
                await self.rollback()
        except SidecarError:
            pass  # its own failure says nothing new
        finally:
            self._failed, self._open = failed, False


async def _state(client: Client, id: str) -> TransactionState:
    got = await client._read("get_transaction", {"id": id}, None)
    return TransactionState(
        got["tx"]["id"], got["tx"].get("expires_ms", 0) / 1000, int(got.get("seq", 0)), got.get("mode", ""), int(got.get("node_id", 0))
    )


Versions = Union[None, str, Sequence[str]]


class KeyValue:
    """Rows of one table by their key: a value, or a tuple with one for each column of the key."""

    def __init__(self, client: Client, table: str, text: bool) -> None:
        self._client, self._table, self._text = client, table, text

    async def get(
        self, key: Any, *, match: Versions = None, none_match: Versions = None, timeout: Optional[float] = None
    ) -> Optional[Entry]:
        """The row; None if there is none."""
        options = options_of(self._client._settings, timeout, "", "")
        options.keeps = False
        try:
            entry = await self._client._transport.kv_get(self._key(key, match, none_match), options)
        except NotFound as error:
            if error.code == "KEY_NOT_FOUND":
                return None
            raise
        return self._decoded(entry)

    async def put(
        self, key: Any, value: Union[bytes, str], *, match: Versions = None, none_match: Versions = None, timeout: Optional[float] = None
    ) -> Put:
        """Writes the row. ``match`` is a version that it must have ("*": any), ``none_match="*"`` means that it must not be there."""
        options = options_of(self._client._settings, timeout, "", "")
        options.idempotent = match is None and none_match is None
        options.keeps = not options.idempotent
        data = value.encode() if isinstance(value, str) else value
        return await self._client._transport.kv_put(self._key(key, match, none_match), data, options)

    async def delete(self, key: Any, *, match: Versions = None, none_match: Versions = None, timeout: Optional[float] = None) -> None:
        """Deletes the row, whether or not it is there."""
        options = options_of(self._client._settings, timeout, "", "")
        options.idempotent = match is None and none_match is None
        options.keeps = not options.idempotent
        await self._client._transport.kv_delete(self._key(key, match, none_match), options)

    async def get_many(self, keys: Sequence[Any], *, timeout: Optional[float] = None) -> Many:
        """Up to 100 rows as they are at one moment."""
        options = options_of(self._client._settings, timeout, "", "")
        options.keeps = False
        got = await self._client._transport.kv_get_many(self._table, [_parts(key) for key in keys], self._text, options)
        return Many([self._decoded(one) for one in got.items], got.missing)

    def _key(self, key: Any, match: Versions, none_match: Versions) -> Key:
        return Key(self._table, _parts(key), _versions(match), _versions(none_match))

    def _decoded(self, entry: Entry) -> Entry:
        return entry._replace(value=entry.value.decode()) if self._text and entry.value is not None else entry


def _parts(key: Any) -> Tuple[Any, ...]:
    return tuple(key) if isinstance(key, (tuple, list)) else (key,)


def _versions(of: Versions) -> Tuple[str, ...]:
    return () if of is None else (of,) if isinstance(of, str) else tuple(of)


def _put(body: Dict[str, Any], **members: Any) -> None:
    """Adds the members that say something."""
    body.update({name: value for name, value in members.items() if value})


def _limits(rows: int, size: int) -> Dict[str, int]:
    limits: Dict[str, int] = {}
    _put(limits, rows=rows, bytes=size)
    return limits


def _statement(
    sql: str,
    params: Optional[Mapping[str, Any]],
    types: Optional[Mapping[str, str]],
    mode: str,
    idempotent: bool,
    max_rows: int,
    max_bytes: int,
    stats: str,
    tx: Optional[Mapping[str, Any]],
) -> Dict[str, Any]:
    body: Dict[str, Any] = {"sql": sql}
    _put(body, params=params, types=types, mode=mode, idempotent=idempotent, limits=_limits(max_rows, max_bytes), stats=stats)
    if tx is not None:
        body["tx"] = tx
    return body


def _as_statement(one: Union[str, Statement]) -> Statement:
    return one if isinstance(one, Statement) else Statement(one)


def _listed(one: Statement) -> Dict[str, Any]:
    """A statement of a list that is one transaction."""
    if one.mode or one.idempotent or one.max_rows or one.max_bytes:
        raise ValueError("mode, idempotent and limits are those of the whole list: give them to tx()")
    body: Dict[str, Any] = {"sql": one.sql}
    _put(body, params=one.params, types=one.types)
    if one.expect is not None:
        body["expect"] = {"rows": one.expect}
    return body


def _independent(one: Statement) -> Dict[str, Any]:
    """A statement of a batch."""
    if one.expect is not None:
        raise ValueError("expect holds for lists that are one transaction: use tx()")
    body: Dict[str, Any] = {"sql": one.sql}
    _put(body, params=one.params, types=one.types, mode=one.mode, idempotent=one.idempotent, limits=_limits(one.max_rows, one.max_bytes))
    return body


def _decoded(make: Callable[[], T], options: Options) -> T:
    """What an answer says in Python's values. It came, so a call that keeps something has run."""
    try:
        return make()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise make_error(
            "ANSWER_UNREADABLE", f"cannot read the answer of the sidecar: {error!r}", outcome_unknown=options.keeps,
            hint="check that the address is that of the sidecar, and that this package is as new as the sidecar",
        ) from error  # fmt: skip


def _fate(options: Options, idempotent: bool, tx: Optional[Mapping[str, Any]], mode: str) -> None:
    """Notes what a lost answer means."""
    options.idempotent = idempotent
    if tx is not None:
        options.keeps = bool(tx.get("commit", False))
        options.repeat = bool(tx.get("id") and tx.get("seq"))  # a repeat gets the stored outcome
    else:
        options.keeps = not mode.endswith("_ro")
        options.repeat = idempotent

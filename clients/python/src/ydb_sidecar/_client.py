"""The blocking client: the calls of ``aio``, run to their end."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, TypeVar, Union

from . import aio
from ._connect import Settings, transport_of
from ._net import Blocking, run
from ._result import (
    Ack,
    BatchResult,
    Column,
    Entry,
    Info,
    Many,
    Plan,
    Put,
    Result,
    Row,
    Statement,
    Table,
    TransactionState,
    Version,
)  # fmt: skip
from .aio import Versions

T = TypeVar("T")


def connect(
    url: str = "http://127.0.0.1:7401",
    *,
    timeout: Optional[float] = 10.0,
    connections: int = 64,
    app: str = "",
    token: str = "",
    priority: str = "",
    traceparent: Optional[Callable[[], str]] = None,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
) -> Client:
    """A client for http://host:port, https://host:port, unix:///path, grpc://host:port, grpcs://host:port or grpc+unix:///path.

    :param timeout: seconds for each call that names none; None leaves it to the sidecar
    :param connections: the most at a time over HTTP; further calls wait for one
    :param app: the name of your app, as the sidecar's settings have it
    :param token: the token that proves it
    :param priority: the class in the queue: system, interactive, normal or batch
    :param traceparent: returns the W3C header of the current span; without it OpenTelemetry is asked, where it is installed
    :param ca_file: certificates to trust, for https and grpcs; ``cert_file`` and ``key_file`` are the client's own
    """
    settings = Settings(timeout, connections, app, token, priority, traceparent, ca_file, cert_file, key_file)
    return Client(aio.Client(transport_of(url, Blocking(), settings, asynchronous=False), settings))


class Client:
    """The calls of the sidecar. One client serves any number of threads."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections."""
        run(self._client.close())

    def query(
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
        return run(
            self._client.query(
                sql, params, types=types, mode=mode, idempotent=idempotent, timeout=timeout, max_rows=max_rows, max_bytes=max_bytes,
                stats=stats, priority=priority, traceparent=traceparent, tx=tx,
            )
        )  # fmt: skip

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

        Without a timeout the stream lasts as long as it moves. ``with`` frees its session when you leave early.
        """
        return Stream(
            self._client.stream(
                sql, params, types=types, mode=mode, timeout=timeout, max_rows=max_rows, max_bytes=max_bytes, stats=stats,
                priority=priority, traceparent=traceparent, tx=tx,
            )
        )  # fmt: skip

    def tx(
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
        return run(
            self._client.tx(
                statements, mode=mode, idempotent=idempotent, timeout=timeout, max_rows=max_rows, max_bytes=max_bytes, stats=stats,
                priority=priority, traceparent=traceparent, tx=tx,
            )
        )  # fmt: skip

    def batch(
        self,
        statements: Sequence[Union[str, Statement]],
        *,
        timeout: Optional[float] = None,
        priority: str = "",
        traceparent: str = "",
    ) -> List[BatchResult]:
        """Runs independent statements side by side. Each has an outcome of its own."""
        return run(self._client.batch(statements, timeout=timeout, priority=priority, traceparent=traceparent))

    def bulk(
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
        return run(self._client.bulk(table, rows, types=types, timeout=timeout, priority=priority, traceparent=traceparent))

    def ingest(
        self, table: str, rows: Iterable[Mapping[str, Any]], *, offset: int = 0, stream: str = "", traceparent: str = ""
    ) -> Iterator[Ack]:
        """Writes rows as they come and yields how far it is. It takes rows no faster than the database writes them.

        The first row has the number ``offset``. After an error go on with the rows from the last ``next``, with the same ``stream``.
        Another thread asks for the rows.
        """
        acks: Any = self._client.ingest(table, rows, offset=offset, stream=stream, traceparent=traceparent)
        try:
            while True:
                try:
                    ack = run(acks.__anext__())
                except StopAsyncIteration:
                    return
                yield ack
        finally:
            run(acks.aclose())

    def begin(self, *, mode: str = "", timeout: Optional[float] = None, priority: str = "", traceparent: str = "") -> Transaction:
        """An interactive transaction for ``with``: committed when the block ends, rolled back if it raises.

        The commit is a call of its own and may fail, so nothing is certain before the block is left. ``timeout`` bounds
        the whole transaction, in seconds: its statements, its commit and the time between them. Without it the client's
        counts. Nothing repeats it: ``transaction()`` does.
        """
        return Transaction(self._client.begin(mode=mode, timeout=timeout, priority=priority, traceparent=traceparent))

    def transaction(
        self,
        work: Callable[[Transaction], T],
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

        async def call(transaction: aio.Transaction) -> T:
            return work(Transaction(transaction))

        return run(
            self._client.transaction(
                call, mode=mode, idempotent=idempotent, timeout=timeout, priority=priority, traceparent=traceparent
            )
        )  # fmt: skip

    def kv(self, table: str, *, text: bool = False) -> KeyValue:
        """A table that ``kv.tables`` of the sidecar opens. With ``text`` values are str: for columns of Utf8, Json and the like."""
        return KeyValue(self._client.kv(table, text=text))

    def explain(self, sql: str, *, types: Optional[Mapping[str, str]] = None, timeout: Optional[float] = None) -> Plan:
        """The plan of a statement."""
        return run(self._client.explain(sql, types=types, timeout=timeout))

    def describe(self, path: str, *, timeout: Optional[float] = None) -> Table:
        """Columns, key and indexes of a table."""
        return run(self._client.describe(path, timeout=timeout))

    def status(self, *, timeout: Optional[float] = None) -> Mapping[str, Any]:
        """The state of the sidecar: nodes, pool, version."""
        return run(self._client.status(timeout=timeout))

    def version(self, *, timeout: Optional[float] = None) -> Version:
        """What the sidecar serves."""
        return run(self._client.version(timeout=timeout))


class Stream:
    """Rows as they come. ``columns`` are those of the current result set, ``set`` is its number; the rest is there at the end."""

    def __init__(self, stream: aio.Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Row:
        try:
            return run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the stream. What was not read is not sent, and the session is free."""
        run(self._stream.aclose())

    @property
    def columns(self) -> List[Column]:
        return self._stream.columns

    @property
    def set(self) -> int:
        return self._stream.set

    @property
    def ended(self) -> bool:
        return self._stream.ended

    @property
    def count(self) -> int:
        return self._stream.count

    @property
    def truncated(self) -> bool:
        return self._stream.truncated

    @property
    def rows_affected(self) -> Optional[int]:
        return self._stream.rows_affected

    @property
    def info(self) -> Info:
        return self._stream.info

    @property
    def stats(self) -> Optional[Mapping[str, Any]]:
        return self._stream.stats

    @property
    def tx_id(self) -> str:
        return self._stream.tx_id


class Transaction:
    """An interactive transaction. Use it from one thread: one statement at a time."""

    def __init__(self, transaction: aio.Transaction) -> None:
        self._transaction = transaction

    @property
    def id(self) -> str:
        return self._transaction.id

    def query(
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
        limits: Dict[str, int] = {"max_rows": max_rows, "max_bytes": max_bytes}
        return run(self._transaction.query(sql, params, types=types, stats=stats, commit=commit, **limits))

    def tx(self, statements: Sequence[Union[str, Statement]], *, commit: bool = False) -> List[Result]:
        """Runs several statements in one call."""
        return run(self._transaction.tx(statements, commit=commit))

    def stream(self, sql: str, params: Optional[Mapping[str, Any]] = None, *, types: Optional[Mapping[str, str]] = None) -> Iterator[Row]:
        """Runs a statement and yields its rows as they come. Read them to the end: leaving early ends the transaction."""
        rows: Any = self._transaction.stream(sql, params, types=types)
        try:
            while True:
                try:
                    row = run(rows.__anext__())
                except StopAsyncIteration:
                    return
                yield row
        finally:
            run(rows.aclose())

    def commit(self) -> None:
        """Commits. The end of ``with`` does it too."""
        run(self._transaction.commit())

    def rollback(self) -> None:
        """Rolls back, unless it has ended."""
        run(self._transaction.rollback())

    def state(self) -> TransactionState:
        """What the sidecar says of it."""
        return run(self._transaction.state())

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        run(self._transaction.__aexit__(kind, error, trace))


class KeyValue:
    """Rows of one table by their key: a value, or a tuple with one for each column of the key."""

    def __init__(self, table: aio.KeyValue) -> None:
        self._table = table

    def get(self, key: Any, *, match: Versions = None, none_match: Versions = None, timeout: Optional[float] = None) -> Optional[Entry]:
        """The row; None if there is none."""
        return run(self._table.get(key, match=match, none_match=none_match, timeout=timeout))

    def put(
        self, key: Any, value: Union[bytes, str], *, match: Versions = None, none_match: Versions = None, timeout: Optional[float] = None
    ) -> Put:
        """Writes the row. ``match`` is a version that it must have ("*": any), ``none_match="*"`` means that it must not be there."""
        return run(self._table.put(key, value, match=match, none_match=none_match, timeout=timeout))

    def delete(self, key: Any, *, match: Versions = None, none_match: Versions = None, timeout: Optional[float] = None) -> None:
        """Deletes the row, whether or not it is there."""
        run(self._table.delete(key, match=match, none_match=none_match, timeout=timeout))

    def get_many(self, keys: Sequence[Any], *, timeout: Optional[float] = None) -> Many:
        """Up to 100 rows as they are at one moment."""
        return run(self._table.get_many(keys, timeout=timeout))

"""What an app sees of ydb-sidecar, the same over gRPC and over HTTP.

    db = connect("grpc://127.0.0.1:7400")        # or "http://127.0.0.1:7401"
    db.execute("SELECT $a + 1 AS b", {"a": 41}, mode="snapshot_ro").rows      # [{"b": 42}]
    with db.begin() as tx:                                # rolled back if the block raises
        tx.execute("UPSERT INTO t (id, v) VALUES (1, 'x')")
        tx.execute("UPSERT INTO t (id, v) VALUES (2, 'y')", commit=True)

Every failure is a SidecarError. Three questions tell the app what to do, in this order:

    error.safe_to_retry     nothing was kept, or it may run twice: do the same work again
    error.outcome_unknown   it may have run: look before repeating it
    neither                 it would fail again: tell the caller

The sidecar has already repeated what could be repeated. What is left to the app is
an interactive transaction, because only the app knows what it read in it.
"""

import random
import time
from dataclasses import dataclass, field


class SidecarError(Exception):
    """A call that failed, in the sidecar's words (docs/reference/api.md lists the codes)."""

    def __init__(self, code, message, *, safe_to_retry=False, outcome_unknown=False,
                 retry_after=0.0, ydb_status="", trace_id="", hint=""):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.safe_to_retry = safe_to_retry      # nothing was kept, or it was marked idempotent
        self.outcome_unknown = outcome_unknown  # it may have run
        self.retry_after = retry_after          # seconds to wait at least; 0: no advice
        self.ydb_status = ydb_status
        self.trace_id = trace_id
        self.hint = hint

    @property
    def tx_lost(self):
        """The transaction is gone and rolled back: begin again."""
        return self.code == "TX_LOST"


def no_answer(what, sent, may_have_run):
    """The error for a call to the sidecar itself that brought no answer, as when it restarts.

    A call that could not be sent did not run. One that was sent may have run, unless it
    is one that keeps nothing by itself: a read, or a statement inside an open transaction.
    """
    unknown = sent and may_have_run
    return SidecarError("OUTCOME_UNKNOWN" if unknown else "SIDECAR_AWAY", what,
                        safe_to_retry=not unknown, outcome_unknown=unknown)


@dataclass
class ResultSet:
    columns: list  # of names
    rows: list     # of dicts


@dataclass
class Result(ResultSet):
    """The first result set; `sets` has all of them."""
    sets: list = field(default_factory=list)
    info: dict = field(default_factory=dict)  # node_id, attempts, queue_ms, acquire_ms, hop_ms, ...
    tx_id: str = ""


class Client:
    """The calls that the apps use. GrpcClient and HttpClient fill in how they travel.

    Timeouts are seconds. Without one a call ends after the sidecar's api.timeout.
    """

    def execute(self, sql, params=None, *, mode="", idempotent=False, timeout=None, tx=None):
        """Runs one request of one or more statements and returns a Result."""
        raise NotImplementedError

    def stream(self, sql, params=None, *, mode="", timeout=None):
        """Yields the rows of a single statement as they come; nothing holds the whole result."""
        raise NotImplementedError

    def transact(self, statements, *, idempotent=False, timeout=None):
        """Runs [(sql, params), ...] as one transaction, which the sidecar repeats as a whole."""
        raise NotImplementedError

    def ingest(self, table, rows, *, offset=0, stream=""):
        """Writes rows (dicts, in order, from `offset` on) and yields what becomes of them:
        ("ack", n) when every row before offset n is written, ("refused", n, error) for a
        row that cannot be. It ends when all are done. After an error that is safe to
        retry, call it again with the rows from the last ack on and the same stream name.
        """
        raise NotImplementedError

    def begin(self, *, mode="", timeout=None):
        """Opens an interactive transaction. Its first statement goes out with the begin."""
        return Transaction(self, mode, timeout)

    def get(self, table, key, timeout=None):
        """The value of a row as bytes; None if there is no such row. table is a name of kv.tables."""
        raise NotImplementedError

    def put(self, table, key, value, timeout=None):
        """Writes a row's value. It may run twice, so the sidecar repeats it by itself."""
        raise NotImplementedError

    def delete(self, table, key, timeout=None):
        """Deletes a row, whether or not it is there."""
        raise NotImplementedError

    def commit(self, tx_id, timeout=None):
        raise NotImplementedError

    def rollback(self, tx_id, timeout=None):
        raise NotImplementedError

    def status(self):
        """The sidecar's view of nodes and pool, as a dict."""
        raise NotImplementedError

    def close(self):
        raise NotImplementedError


class Transaction:
    """An interactive transaction: use it in a `with` block, from one thread."""

    def __init__(self, client, mode, timeout):
        self._client, self._mode, self._timeout = client, mode, timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._id, self._seq, self._open = "", 0, True

    def execute(self, sql, params=None, *, commit=False):
        """Runs a statement; commit=True saves a round trip on the last one."""
        self._seq += 1
        selector = {"seq": self._seq}
        if self._id:
            selector["id"] = self._id
        else:
            selector["begin"] = {"mode": self._mode or "serializable_rw"}
        if commit:
            selector["commit"] = True
        result = self._client.execute(sql, params, tx=selector, timeout=self._left())
        self._id, self._open = result.tx_id or self._id, not commit
        return result

    def commit(self):
        if self._open and self._id:
            self._client.commit(self._id, self._left())
        self._open = False

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        # A failed statement has ended the transaction on the server. The rollback gives the
        # session back at once when it was the app that failed; the sidecar would do so after
        # tx.idle. Its own failure tells nothing new.
        if self._open and self._id:
            try:
                self._client.rollback(self._id, 2.0)
            except SidecarError:
                pass
        self._open = False

    def _left(self):
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SidecarError("DEADLINE_EXCEEDED", "the transaction's time is over", safe_to_retry=True)
        return left


class Backoff:
    """Growing, random pauses within a span of time."""

    def __init__(self, seconds, first=0.01, most=0.5):
        self._end, self._pause, self._most = time.monotonic() + seconds, first, most

    def left(self):
        """Seconds until the time is over."""
        return self._end - time.monotonic()

    def wait(self, at_least=0.0):
        """Pauses; False, at once, when the time would be over after the pause."""
        pause = max(at_least, random.uniform(0, self._pause))
        self._pause = min(2 * self._pause, self._most)
        if pause >= self.left():
            return False
        time.sleep(pause)
        return True


def connect(url):
    """A client for grpc://host:port or http://host:port."""
    scheme, _, address = url.partition("://")
    if scheme == "grpc":
        from grpc_face import GrpcClient
        return GrpcClient(address)
    if scheme == "http":
        from http_face import HttpClient
        return HttpClient(address)
    raise ValueError(f"{url!r}: want grpc://host:port or http://host:port")


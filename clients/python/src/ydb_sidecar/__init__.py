"""A client of ydb-sidecar: SQL on YDB for apps that know nothing of sessions, nodes and retries.

    import ydb_sidecar

    db = ydb_sidecar.connect("http://127.0.0.1:7401")
    db.query("SELECT $a + 1 AS b", {"a": 41}).first().b      # 42

``ydb_sidecar.aio.connect()`` has the same calls for asyncio.
"""

from . import aio
from ._client import Client, KeyValue, Stream, Transaction, connect
from ._errors import (
    AccessDenied,
    BadRequest,
    ConditionFailed,
    Conflict,
    DeadlineExceeded,
    ExpectationFailed,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    SidecarError,
    TransactionLost,
    Unavailable,
)  # fmt: skip
from ._result import (
    Ack,
    BatchResult,
    Column,
    Entry,
    Index,
    Info,
    Many,
    Plan,
    Put,
    Refused,
    Result,
    ResultSet,
    Row,
    Statement,
    Table,
    TableColumn,
    TransactionState,
    Version,
)  # fmt: skip
from ._retry import Backoff
from ._values import Json, Typed, Variant
from ._version import __version__

__all__ = [
    "AccessDenied", "Ack", "Backoff", "BadRequest", "BatchResult", "Client", "Column", "ConditionFailed", "Conflict", "DeadlineExceeded",
    "Entry", "ExpectationFailed", "Index", "Info", "Json", "KeyValue", "Many", "NotFound", "OutcomeUnknown", "Overloaded", "Plan", "Put",
    "Refused", "Result", "ResultSet", "Row", "SidecarError", "Statement", "Stream", "Table", "TableColumn", "Transaction",
    "TransactionLost", "TransactionState", "Typed", "Unavailable", "Variant", "Version", "__version__", "aio", "connect",
]  # fmt: skip

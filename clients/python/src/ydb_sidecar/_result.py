"""What calls return."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Type, TypeVar

from ._errors import SidecarError, error_from
from ._values import Convert, converter

T = TypeVar("T")


class Row(Dict[str, Any]):
    """A row: a dict by column name, whose columns are attributes as well: ``row["id"]``, ``row.id``.

    A column with the name of a method of dict, such as ``items``, is ``row["items"]`` only.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the row has no column {name!r}; it has {', '.join(self)}") from None


class Column(NamedTuple):
    """A column of a result."""

    name: str
    type: str  # YQL type


@dataclass
class Info:
    """Where the time of a call went, and what it cost."""

    node_id: int = 0
    attempts: int = 0
    queue_ms: float = 0.0
    acquire_ms: float = 0.0
    hop_ms: float = 0.0
    server_ms: float = 0.0
    trace_id: str = ""
    consumed_units: Optional[int] = None


@dataclass
class ResultSet:
    """The rows of one SELECT."""

    columns: List[Column] = field(default_factory=list)
    rows: List[Row] = field(default_factory=list)
    truncated: bool = False  # a limit cut rows off

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def first(self) -> Optional[Row]:
        """The first row; None if there is none."""
        return self.rows[0] if self.rows else None


@dataclass
class Result(ResultSet):
    """The answer to a statement: its first result set. ``sets`` has all of them."""

    sets: List[ResultSet] = field(default_factory=list)
    rows_affected: Optional[int] = None  # None: the text only reads, or the count comes with the commit
    info: Info = field(default_factory=Info)
    stats: Optional[Dict[str, Any]] = None
    tx_id: str = ""  # of the transaction, while it is open
    tx_expires: float = 0.0  # seconds

    def __bool__(self) -> bool:
        return True


@dataclass
class BatchResult:
    """The outcome of one statement of a batch: a result or an error."""

    result: Optional[Result] = None
    error: Optional[SidecarError] = None


class Statement(NamedTuple):
    """A statement of ``tx()`` or ``batch()``. ``expect`` counts in ``tx()``; mode, idempotent and limits in ``batch()``."""

    sql: str
    params: Optional[Mapping[str, Any]] = None
    types: Optional[Mapping[str, str]] = None
    expect: Optional[int] = None  # rows that it must return; otherwise the whole list is rolled back
    mode: str = ""
    idempotent: bool = False
    max_rows: int = 0
    max_bytes: int = 0


class Entry(NamedTuple):
    """A row of the key-value API."""

    value: Any  # bytes, or str of a table that was opened with text=True; None: NULL
    version: str = ""  # the ETag; "": the table has none
    content_type: str = ""
    not_modified: bool = False  # it still has a version of none_match
    key: Any = None  # of get_many: as in rows; a list if the key has several columns


class Many(NamedTuple):
    """Rows of the key-value API as they are at one moment."""

    items: List[Entry]  # in the order of the keys
    missing: List[Any]  # keys without a row


class Put(NamedTuple):
    """What became of a ``put()``."""

    created: bool  # this call made the row; False: it was there, or a plain put did not look
    version: str = ""


class Refused(NamedTuple):
    """A row of ``ingest()`` that cannot be written."""

    offset: int
    error: SidecarError


class Ack(NamedTuple):
    """How far ``ingest()`` is: every row before ``next`` is written, or was refused by name."""

    next: int
    refused: List[Refused]  # since the last one
    done: bool = False  # the last one
    rows: int = 0  # written in all; of the last one


class TableColumn(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    not_null: bool


class Index(NamedTuple):
    """An index of a table."""

    name: str
    columns: List[str]
    covered: List[str]


class Table(NamedTuple):
    """A table as ``describe()`` returns it."""

    path: str
    columns: List[TableColumn]
    primary_key: List[str]
    indexes: List[Index]


class Plan(NamedTuple):
    """A plan as ``explain()`` returns it."""

    plan: str  # JSON, as the server wrote it
    ast: str


class Version(NamedTuple):
    """What a sidecar serves."""

    api: str
    version: str  # of the sidecar
    features: List[str]


class TransactionState(NamedTuple):
    """An open transaction."""

    id: str
    expires: float  # seconds, if nothing is sent
    seq: int  # the last statement that ran
    mode: str
    node_id: int


class Names:
    """The keys of the rows of one result set, and what makes their values."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.keys = _keys([column.name for column in columns])
        self._convert: List[Convert] = [converter(column.type) for column in columns]
        self._plain = not any(self._convert)

    def row(self, values: Sequence[Any]) -> Row:
        if self._plain:
            return Row(zip(self.keys, values))
        return Row(zip(self.keys, [value if make is None or value is None else make(value) for make, value in zip(self._convert, values)]))


def _keys(names: Sequence[str]) -> List[str]:
    """A second column of one name has the key name_2, and so on, unless another column has that name."""
    if len(set(names)) == len(names):
        return list(names)
    taken, keys = set(names), []
    for name in names:
        key, number = name, 2
        if name in keys:
            while (key := f"{name}_{number}") in taken:
                number += 1
            taken.add(key)
        keys.append(key)
    return keys


def columns_of(body: Mapping[str, Any]) -> List[Column]:
    return [Column(one["name"], one["type"]) for one in body.get("columns") or ()]


def set_of(body: Mapping[str, Any]) -> ResultSet:
    columns = columns_of(body)
    names = Names(columns)
    return ResultSet(columns, [names.row(row) for row in body.get("rows") or ()], bool(body.get("truncated", False)))


def info_of(body: Optional[Mapping[str, Any]]) -> Info:
    return _members(Info, body or {})


def result_of(body: Mapping[str, Any], info: Optional[Mapping[str, Any]] = None, tx: Optional[Mapping[str, Any]] = None) -> Result:
    """The result of a statement; a list has info and tx of its own."""
    first, tx = set_of(body), body.get("tx") or tx or {}
    return Result(
        first.columns,
        first.rows,
        first.truncated,
        sets=[set_of(one) for one in body.get("sets") or ()] or [first],
        rows_affected=body.get("rows_affected"),
        info=info_of(body.get("info") or info),
        stats=body.get("stats"),
        tx_id=tx.get("id", ""),
        tx_expires=tx.get("expires_ms", 0) / 1000,
    )


def outcome_of(body: Mapping[str, Any]) -> BatchResult:
    error = body.get("error")
    return BatchResult(error=error_from(error)) if error else BatchResult(result=result_of(body))


def _members(kind: Type[T], body: Mapping[str, Any]) -> T:
    """A dataclass of the members that it knows: a newer sidecar may send more."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in body.items() if name in known})

"""What the HTTP and the gRPC transport have in common."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence

from ._result import Entry, Many, Put

# The sidecar ends a call at its timeout. The client waits this much longer, in seconds, so that it hears the
# answer, which says what came of the call.
GRACE = 1.0


@dataclass
class Options:
    """How one call is made."""

    timeout: Optional[float] = None  # seconds; None: none
    headers: Dict[str, str] = field(default_factory=dict)
    keeps: bool = True  # it may leave something behind if it runs
    repeat: bool = False  # it may be sent a second time when its answer is lost
    idempotent: bool = False

    def deadline(self) -> Optional[float]:
        return None if self.timeout is None else time.monotonic() + self.timeout + GRACE

    def duration(self) -> str:
        """The timeout as the API takes it; "": none."""
        return "" if self.timeout is None else f"{max(1, round(self.timeout * 1e9))}ns"


class Key(NamedTuple):
    """Which row of the key-value API a call is about, and in which state it has to be."""

    table: str
    id: Sequence[Any]  # a value for each column of the key
    match: Sequence[str] = ()
    none_match: Sequence[str] = ()


class Transport(Protocol):
    """One API of the sidecar. Bodies have the names of the API's fields, and parameters as Python values."""

    async def call(self, name: str, body: Dict[str, Any], options: Options) -> Mapping[str, Any]: ...

    def stream(self, body: Dict[str, Any], options: Options) -> AsyncIterator[Mapping[str, Any]]: ...

    def ingest(self, table: str, rows: Any, offset: int, name: str, options: Options) -> AsyncIterator[Mapping[str, Any]]: ...

    async def kv_get(self, key: Key, options: Options) -> Entry: ...

    async def kv_put(self, key: Key, value: bytes, options: Options) -> Put: ...

    async def kv_delete(self, key: Key, options: Options) -> None: ...

    async def kv_get_many(self, table: str, ids: List[Sequence[Any]], text: bool, options: Options) -> Many: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...

"""Connections, and the two ways to wait for them: blocking and asyncio.

Every call of this package is written once, as a coroutine. The asyncio client awaits it. The blocking client
runs it with ``run()``: its connections, pauses and semaphores block inside coroutines that never suspend.
"""

from __future__ import annotations

import asyncio
import collections
import os
import select
import socket
import ssl
import threading
import time
from typing import Any, Awaitable, Coroutine, Deque, NamedTuple, Optional, Protocol, TypeVar

T = TypeVar("T")

READ = 64 * 1024  # bytes that are read at a time


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine whose waiting blocks, and which therefore never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a call of the blocking client was about to wait in an event loop")


class Address(NamedTuple):
    """Where the sidecar listens."""

    host: str
    port: int
    path: str  # of a Unix socket; "": TCP
    tls: Optional[ssl.SSLContext]

    @property
    def authority(self) -> str:
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Late(Exception):
    """The deadline of a connection has come."""


class Connection:
    """A stream of bytes both ways with a deadline for reading. Subclasses wait in their way."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.deadline: Optional[float] = None  # by time.monotonic
        self.used = False  # it has served a call
        self.where = ""  # its other end, for messages

    async def send(self, data: bytes) -> None:
        raise NotImplementedError

    async def receive(self) -> bytes:
        """Some bytes; none at the end."""
        raise NotImplementedError

    def stale(self) -> bool:
        """Reports whether an idle connection was closed by its other end, or has bytes that nobody asked for."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def left(self) -> Optional[float]:
        """Seconds until the deadline."""
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Late
        return left

    async def _more(self) -> None:
        data = await self.receive()
        if not data:
            raise EOFError("the connection was closed")
        self._buffer += data

    async def line(self) -> bytes:
        """The next line without its end."""
        at, seen = -1, 0
        while (at := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            await self._more()
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return line.rstrip(b"\r")

    async def begins(self, start: bytes) -> bool:
        """Reports whether the next bytes are these. They stay to be read."""
        while len(self._buffer) < len(start) and start.startswith(self._buffer):
            await self._more()
        return self._buffer.startswith(start)

    async def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def some(self, most: int) -> bytes:
        """Bytes that are there, at most so many; waits for the first one."""
        if not self._buffer:
            await self._more()
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        return data


class Slots(Protocol):
    """A semaphore."""

    async def take(self, seconds: Optional[float]) -> bool: ...

    def give(self) -> None: ...


class Task(Protocol):
    """Work beside that of the caller."""

    def cancel(self) -> object: ...


class Runtime(Protocol):
    """A way to wait."""

    async def connect(self, address: Address, seconds: Optional[float]) -> Connection: ...

    def slots(self, count: int) -> Slots: ...

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task: ...


# Blocking.


class _Socket(Connection):
    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock

    async def send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self.left())
            self._socket.sendall(data)
        except (socket.timeout, TimeoutError):
            raise Late from None

    async def receive(self) -> bytes:
        try:
            self._socket.settimeout(self.left())
            return self._socket.recv(READ)
        except (socket.timeout, TimeoutError):
            raise Late from None

    def stale(self) -> bool:
        if self._buffer:
            return True
        try:
            poll = select.poll()  # select() takes no descriptor beyond 1023
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(0))
        except (AttributeError, ValueError, OSError):
            return True

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that sends
        except OSError:
            pass
        self._socket.close()


class _Semaphore:
    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)

    async def take(self, seconds: Optional[float]) -> bool:
        return self._semaphore.acquire(timeout=seconds)

    def give(self) -> None:
        self._semaphore.release()


class _Thread:
    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        threading.Thread(target=run, args=(work,), daemon=True, name="ydb-sidecar ingest").start()

    def cancel(self) -> None:
        """The thread ends when its connection is closed."""


class Blocking:
    """Waits as threads do."""

    async def connect(self, address: Address, seconds: Optional[float]) -> Connection:
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(seconds)
                sock.connect(address.path)
            except BaseException:
                sock.close()
                raise
            return _Socket(sock)
        sock = socket.create_connection((address.host, address.port), timeout=seconds)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if address.tls is not None:
                sock = address.tls.wrap_socket(sock, server_hostname=address.host)
        except BaseException:
            sock.close()
            raise
        return _Socket(sock)

    def slots(self, count: int) -> Slots:
        return _Semaphore(count)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task:
        return _Thread(work)


# Asyncio.


class _Stream(Connection):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader, self._writer = reader, writer

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            left = self.left()
            return await (work if left is None else asyncio.wait_for(work, left))
        except asyncio.TimeoutError:
            raise Late from None

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._within(self._writer.drain())

    async def receive(self) -> bytes:
        return await self._within(self._reader.read(READ))

    def stale(self) -> bool:
        return bool(self._buffer) or self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()


class _AsyncSemaphore:
    def __init__(self, count: int) -> None:
        self._count = count
        self._semaphore: Optional[asyncio.Semaphore] = None  # made in the loop that uses it

    async def take(self, seconds: Optional[float]) -> bool:
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self._count)
        if not self._semaphore.locked():
            return await self._semaphore.acquire()
        try:
            return await asyncio.wait_for(self._semaphore.acquire(), seconds)
        except asyncio.TimeoutError:
            return False

    def give(self) -> None:
        assert self._semaphore is not None
        self._semaphore.release()


class Asyncio:
    """Waits in the running event loop."""

    async def connect(self, address: Address, seconds: Optional[float]) -> Connection:
        if address.path:
            opening: Coroutine[Any, Any, Any] = asyncio.open_unix_connection(address.path)
        else:
            name = address.host if address.tls else None
            opening = asyncio.open_connection(address.host, address.port, ssl=address.tls, server_hostname=name)
        reader, writer = await asyncio.wait_for(opening, seconds)
        return _Stream(reader, writer)

    def slots(self, count: int) -> Slots:
        return _AsyncSemaphore(count)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task:
        return asyncio.ensure_future(work)


class Pool:
    """Connections that are kept between calls, at most so many at a time."""

    def __init__(self, runtime: Runtime, address: Address, size: int) -> None:
        self._runtime, self._address, self._size = runtime, address, size
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._slots = self._runtime.slots(self._size)
        self._idle: Deque[Connection] = collections.deque()

    async def take(self, deadline: Optional[float], connect: float, fresh: bool = False) -> Connection:
        """An idle connection, or a new one. Raises Late, or OSError."""
        if self._process != os.getpid():
            self._begin()  # after a fork the connections are those of the parent
        if not await self._slots.take(_left(deadline)):
            raise Late
        try:
            while not fresh and self._idle:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    break  # another thread took it
                if not connection.stale():
                    connection.deadline = deadline
                    return connection
                connection.close()
            left = _left(deadline)
            try:
                connection = await self._runtime.connect(self._address, connect if left is None else min(connect, left))
            except (socket.timeout, asyncio.TimeoutError, TimeoutError):
                raise OSError(f"no connection to {self._address.path or self._address.authority} in time") from None
            connection.deadline = deadline
            connection.where = self._address.path or self._address.authority
            return connection
        except BaseException:
            self._slots.give()
            raise

    def give(self, connection: Connection, reusable: bool) -> None:
        if reusable and self._process == os.getpid():
            connection.used = True
            self._idle.append(connection)
        else:
            connection.close()
        self._slots.give()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _left(deadline: Optional[float]) -> Optional[float]:
    if deadline is None:
        return None
    return max(0.0, deadline - time.monotonic())

"""The calls over HTTP/1.1 and JSON, with nothing but the standard library."""

from __future__ import annotations

import json
import ssl
from base64 import b64decode
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote, quote_from_bytes

from ._errors import SidecarError, error_from, make_error, no_answer, not_a_sidecar
from ._net import Address, Connection, Late, Pool, Runtime
from ._result import Entry, Many, Put
from ._transport import Key, Options
from ._values import declared_in, parameter, to_json, to_text

CONNECT = 5.0  # seconds for a connection
MOST_HEAD = 64 * 1024  # bytes of the head of an answer

_ROUTES = {
    "query": ("POST", "/v1/query"),
    "tx": ("POST", "/v1/tx"),
    "begin": ("POST", "/v1/tx/begin"),
    "commit": ("POST", "/v1/tx/{id}/commit"),
    "rollback": ("POST", "/v1/tx/{id}/rollback"),
    "get_transaction": ("GET", "/v1/tx/{id}"),
    "batch": ("POST", "/v1/batch"),
    "bulk": ("POST", "/v1/bulk"),
    "explain": ("POST", "/v1/explain"),
    "describe": ("GET", "/v1/schema/{path}"),
    "status": ("GET", "/v1/status"),
    "version": ("GET", "/v1"),
}

# A member that each answer of success has, by call; none is asked of those that are not here.
_MEMBERS = {
    "query": "columns",
    "tx": "results",
    "batch": "results",
    "begin": "tx",
    "get_transaction": "tx",
    "describe": "columns",
    "status": "nodes",
    "version": "api",
}

# Rows are asked for as lists, whose keys the columns give, and 64-bit integers as numbers, which Python reads whole.
_JSON = {"Content-Type": "application/json", "X-Ydb-Rows": "arrays", "X-Ydb-Ints": "number"}

_BROKEN = (OSError, EOFError, ValueError, Late)


class Response:
    """An answer whose head was read."""

    def __init__(self, connection: Connection, status: int, headers: Dict[str, str]) -> None:
        self._connection, self.status, self.headers = connection, status, headers
        self.where = connection.where
        self.foreign = status == 200 and headers.get("content-type", "").startswith("text/html")  # no answer of the sidecar is a page
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        self._left: Optional[int] = None if self._chunked or length is None else int(length)
        if status in (204, 304):
            self._chunked, self._left = False, 0
        self.complete = self._left == 0  # the body was read
        self.reusable = headers.get("connection", "").lower() != "close" and (self._chunked or self._left is not None)

    async def chunk(self) -> bytes:
        """The next bytes of the body; none at its end."""
        if self.complete:
            return b""
        if self._chunked:
            size = int((await self._connection.line()).split(b";")[0], 16)
            data = await self._connection.exactly(size)
            if size:
                await self._connection.line()
            else:
                while await self._connection.line():  # trailers
                    pass
                self.complete = True
            return data
        if self._left is None:  # until the connection ends
            try:
                return await self._connection.some(1 << 20)
            except EOFError:
                self.complete = True
                return b""
        data = await self._connection.some(self._left)
        self._left -= len(data)
        self.complete = self._left == 0
        return data

    async def body(self) -> bytes:
        parts = []
        while not self.complete:
            parts.append(await self.chunk())
        return b"".join(parts)

    async def lines(self) -> AsyncIterator[bytes]:
        rest = b""
        while not self.complete:
            *whole, rest = (rest + await self.chunk()).split(b"\n")
            for line in whole:
                yield line
        if rest:
            yield rest

    def error(self, body: bytes, options: Options) -> SidecarError:
        """The exception for an answer that is none of success."""
        problem = _json(body) if "json" in self.headers.get("content-type", "") else None
        if isinstance(problem, dict) and isinstance(problem.get("code"), str):
            try:
                return error_from(problem, self.status)
            except (TypeError, ValueError):
                pass  # its members are not those of the sidecar
        if self.status >= 500:
            # A proxy passed the call on, or tried to, and has no answer.
            message = f"the answer is not the sidecar's: {self._said(body)}"
            return no_answer(message, sent=True, keeps=options.keeps, idempotent=options.idempotent, late=self.status == 504)
        return not_a_sidecar(self.where, self._said(body), self.status)

    def _said(self, body: bytes) -> str:
        return f"HTTP {self.status}, {body[:200].decode('utf-8', 'replace')!r}"

    def json(self, body: bytes, member: str, what: str, options: Options) -> Dict[str, Any]:
        """The object of an answer of success, which has this member."""
        answer = _json(body)
        if isinstance(answer, dict) and (not member or member in answer):
            return answer
        if answer is None and "json" in self.headers.get("content-type", ""):  # it may be the sidecar's, and broken on its way
            raise _lost(what, ValueError("the answer is no JSON object"), options)
        raise not_a_sidecar(self.where, self._said(body), self.status)


async def _head(connection: Connection) -> Response:
    """Reads the head of an answer, after those that only say that one will come."""
    while True:
        if not await connection.begins(b"HTTP/1."):
            raise not_a_sidecar(connection.where, "its answer is not HTTP/1.1")
        words = (await connection.line()).split(None, 2)
        if len(words) < 2:
            raise ValueError("the answer is not HTTP/1.1")
        headers: Dict[str, str] = {}
        size = 0
        while line := await connection.line():
            size += len(line)
            if size > MOST_HEAD:
                raise ValueError("the head of the answer is too long")
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if int(words[1]) >= 200:
            return Response(connection, int(words[1]), headers)


class HttpTransport:
    """Calls the HTTP API over a pool of connections."""

    def __init__(self, runtime: Runtime, address: Address, connections: int) -> None:
        self._runtime, self._address = runtime, address
        self._pool = Pool(runtime, address, connections)

    async def close(self) -> None:
        self._pool.close()

    async def sleep(self, seconds: float) -> None:
        await self._runtime.sleep(seconds)

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: Optional[bytes], options: Options) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._address.authority}"]
        if options.timeout is not None:
            lines.append(f"Request-Timeout: {options.duration()}")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        for name, value in (*headers.items(), *options.headers.items()):
            if "\r" in value or "\n" in value:
                raise ValueError(f"the header {name} has a line end")
            lines.append(f"{name}: {value}")
        return "\r\n".join((*lines, "", "")).encode("latin-1") + (body or b"")

    async def _exchange(self, request: bytes, what: str, options: Options) -> Tuple[Connection, Response]:
        """Sends a request and reads the head of its answer. The connection is the caller's to give back."""
        deadline, fresh = options.deadline(), False
        if options.timeout is not None and options.timeout <= 0:
            raise make_error("DEADLINE_EXCEEDED", "the time was over before the call", status=504, safe_to_retry=True)
        while True:
            try:
                connection = await self._pool.take(deadline, CONNECT, fresh)
            except Late:
                raise no_answer(f"{what}: no connection came free", sent=False, keeps=False, idempotent=True, late=True) from None
            except (OSError, ssl.SSLError) as error:
                raise no_answer(f"{what}: {error}", sent=False, keeps=False, idempotent=True) from error
            try:
                try:
                    await connection.send(request)
                except OSError as error:
                    # A call that is refused early has its answer before all of it is sent.
                    try:
                        return connection, await _head(connection)
                    except _BROKEN:
                        raise error from None
                return connection, await _head(connection)
            except _BROKEN as error:
                self._pool.give(connection, False)
                # An idle connection may end just when it is used. What may be repeated goes out once more.
                if connection.used and not fresh and not isinstance(error, Late) and (options.repeat or not options.keeps):
                    fresh = True
                    continue
                raise _lost(what, error, options) from error
            except BaseException:
                self._pool.give(connection, False)
                raise

    async def _whole(self, method: str, target: str, headers: Mapping[str, str], body: Optional[bytes], options: Options) -> Any:
        """One call with its whole answer: response and body."""
        what = f"{method} {target.partition('?')[0]}"
        connection, response = await self._exchange(self._request(method, target, headers, body, options), what, options)
        try:
            text = await response.body()
            return response, text
        except _BROKEN as error:
            raise _lost(what, error, options) from error
        finally:
            self._pool.give(connection, response.complete and response.reusable)

    async def call(self, name: str, body: Dict[str, Any], options: Options) -> Mapping[str, Any]:
        method, path = _ROUTES[name]
        if "{" in path:
            path = path.format(**{key: quote(str(value), safe="") for key, value in body.items()})
            body = {}
        headers, data = {"Accept": "application/json"}, None
        if method == "POST":
            headers.update(_JSON)
            data = _dump(_encode(name, body))
        response, text = await self._whole(method, path, headers, data, options)
        if response.status != 200:
            raise response.error(text, options)
        answer: Dict[str, Any] = response.json(text, _MEMBERS.get(name, ""), f"{method} {path}", options)
        return answer

    async def stream(self, body: Dict[str, Any], options: Options) -> AsyncIterator[Mapping[str, Any]]:
        headers = {"Accept": "application/x-ndjson", **_JSON}
        request = self._request("POST", "/v1/query", headers, _dump(_encode("query", body)), options)
        connection, response = await self._exchange(request, "stream", options)
        try:
            if response.status != 200 or response.foreign:
                raise response.error(await response.body(), options)
            async for line in response.lines():
                part = _json(line)
                if not isinstance(part, dict):
                    raise ValueError("a line of the stream is no JSON object")
                if "error" in part:
                    raise error_from(part["error"])
                yield part
                if "end" in part:
                    await response.body()
                    return
            raise EOFError("the stream was cut")
        except _BROKEN as error:
            raise _lost("stream", error, options) from error
        finally:
            # One that was not read to its end is closed, which frees its session.
            self._pool.give(connection, response.complete and response.reusable)

    async def ingest(self, table: str, rows: Any, offset: int, name: str, options: Options) -> AsyncIterator[Mapping[str, Any]]:
        headers = {"Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"}
        target = f"/v1/ingest/{quote(table, safe='')}?offset={offset}&stream={quote(name, safe='')}"
        connection, response = await self._exchange(self._request("POST", target, headers, None, options), "ingest", options)
        failed: List[BaseException] = []
        try:
            if response.status != 200:
                raise response.error(await response.body(), options)
            sending = self._runtime.spawn(_send_rows(connection, rows, failed))
            try:
                async for line in response.lines():
                    part = _json(line)
                    if not isinstance(part, dict):
                        raise ValueError("a line of the stream is no JSON object")
                    if "error" in part:
                        raise error_from(part["error"])
                    yield part
                    if "end" in part:
                        return
                raise EOFError("the stream was cut")
            finally:
                sending.cancel()
        except _BROKEN as error:
            if failed and not isinstance(failed[0], OSError):
                raise failed[0] from None  # the caller's rows failed
            raise _lost("ingest", error, options) from error
        finally:
            self._pool.give(connection, False)  # ends the sender

    async def _kv(self, method: str, key: Key, value: Optional[bytes], options: Options) -> Any:
        target = f"/v1/kv/{quote(key.table, safe='')}?" + "&".join("id=" + _key(part) for part in key.id)
        headers = {}
        for name, tags in (("If-Match", key.match), ("If-None-Match", key.none_match)):
            if tags:
                headers[name] = ", ".join(tag if tag == "*" else f'"{tag}"' for tag in tags)
        response, text = await self._whole(method, target, headers, value, options)
        if response.status not in (200, 201, 204, 304) or response.foreign:
            raise response.error(text, options)
        return response, text

    async def kv_get(self, key: Key, options: Options) -> Entry:
        response, text = await self._kv("GET", key, None, options)
        return Entry(
            text if response.status == 200 else None, _version(response), response.headers.get("content-type", ""), response.status == 304
        )

    async def kv_put(self, key: Key, value: bytes, options: Options) -> Put:
        response, _ = await self._kv("PUT", key, value, options)
        return Put(response.status == 201, _version(response))

    async def kv_delete(self, key: Key, options: Options) -> None:
        await self._kv("DELETE", key, None, options)

    async def kv_get_many(self, table: str, ids: List[Sequence[Any]], text: bool, options: Options) -> Many:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        body = _dump({"ids": [to_json(id[0] if len(id) == 1 else list(id)) for id in ids]})
        response, raw = await self._whole("POST", f"/v1/kv/{quote(table, safe='')}:batchGet", headers, body, options)
        if response.status != 200:
            raise response.error(raw, options)
        answer = response.json(raw, "items", "batchGet", options)
        try:
            items = []
            for one in answer["items"]:
                value: Union[str, bytes, None] = one.get("value")
                if isinstance(value, str):
                    value = value.encode() if text else b64decode(value)
                items.append(Entry(value, one.get("version", ""), key=one["id"]))
            return Many(items, list(answer["missing"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise make_error("ANSWER_UNREADABLE", f"cannot read the answer of the sidecar: {error!r}") from error


async def _send_rows(connection: Connection, rows: Any, failed: List[BaseException]) -> None:
    """Sends rows as they come, each as a chunk: when the sidecar takes no more, sending waits. What fails closes the connection."""

    async def send(row: Mapping[str, Any]) -> None:
        line = _dump(to_json(row)) + b"\n"
        await connection.send(b"%x\r\n%b\r\n" % (len(line), line))

    try:
        if hasattr(rows, "__aiter__"):
            async for row in rows:
                await send(row)
        else:
            for row in rows:
                await send(row)
        await connection.send(b"0\r\n\r\n")
    except Exception as error:
        failed.append(error)
        connection.close()


def _lost(what: str, error: BaseException, options: Options) -> SidecarError:
    late = isinstance(error, Late)
    message = f"{what}: no answer in time" if late else f"{what}: {error or type(error).__name__}"
    return no_answer(message, sent=True, keeps=options.keeps, idempotent=options.idempotent, late=late)


def _encode(name: str, body: Dict[str, Any]) -> Dict[str, Any]:
    """A body with its parameters in JSON."""
    body = dict(body)
    if name == "query":
        _encode_statement(body)
    elif name in ("tx", "batch"):
        body["statements"] = [dict(one) for one in body["statements"]]
        for one in body["statements"]:
            _encode_statement(one)
    elif name == "bulk":
        body["rows"] = [to_json(row) for row in body["rows"]]
    return body


def _encode_statement(statement: Dict[str, Any]) -> None:
    if not statement.get("params"):
        return
    known = {**declared_in(statement["sql"]), **{name.lstrip("$"): kind for name, kind in (statement.get("types") or {}).items()}}
    out = {}
    for name, value in statement["params"].items():
        kind, value = parameter(name, value, known)
        out[name] = {"type": kind, "value": to_json(value)} if kind else to_json(value)
    statement["params"] = out


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _key(part: Any) -> str:
    """One column of a key as the query of a URL has it."""
    if isinstance(part, bytes):
        return quote_from_bytes(part, safe="")
    if isinstance(part, bool):
        return "true" if part else "false"
    return quote(to_text(part) or str(part), safe="")


def _version(response: Response) -> str:
    return response.headers.get("etag", "").strip('"')

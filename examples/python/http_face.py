"""The client over HTTP/JSON, with nothing but the standard library."""

import http.client
import json
import threading

from base64 import b64encode
from itertools import islice
from urllib.parse import quote, urlencode

from sidecar_client import Client, Result, ResultSet, SidecarError, no_answer
from tracing import traceparent


class HttpClient(Client):
    """One kept-alive connection for each thread that calls."""

    def __init__(self, address):
        self._address = address
        self._local = threading.local()

    def execute(self, sql, params=None, *, mode="", idempotent=False, timeout=None, tx=None):
        # ints: a Python int has no limit, so 64-bit numbers may come as numbers.
        body = {"sql": sql, "params": params or {}, "ints": "number"}
        if mode:
            body["mode"] = mode
        if idempotent:
            body["idempotent"] = True
        if tx is not None:
            body["tx"] = tx
        may_keep = not idempotent and (tx is None or tx.get("commit", False))
        return _result(self._post("/v1/query", body, timeout, may_keep))

    def stream(self, sql, params=None, *, mode="", timeout=None):
        body = {"sql": sql, "params": params or {}, "ints": "number", "rows": "objects"}
        if mode:
            body["mode"] = mode
        try:
            answer = self._send("POST", "/v1/query", body, timeout, accept="application/x-ndjson")
            if answer.status != 200:
                raise _error(answer.status, answer.read())
            for line in answer:
                part = json.loads(line)
                if "row" in part:
                    yield part["row"]
                elif "error" in part:
                    raise _problem(part["error"])
                elif "end" in part:
                    answer.read()  # leaves the connection ready for the next call
                    return
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._drop()
            raise no_answer(f"stream: {error!r}", sent=True, may_have_run=False) from error
        except GeneratorExit:
            self._drop()  # the caller stopped reading: the rest must not meet the next call
            raise
        self._drop()
        raise no_answer("the stream ended without its end", sent=True, may_have_run=False)

    def transact(self, statements, *, idempotent=False, timeout=None):
        body = {"statements": [{"sql": sql, "params": params or {}} for sql, params in statements],
                "ints": "number", "idempotent": idempotent}
        answer = self._post("/v1/tx", body, timeout, not idempotent)
        return [_result(one) for one in answer["results"]]

    def ingest(self, table, rows, *, offset=0, stream=""):
        # Both directions at a time: a thread sends while this one reads, over a connection of their own.
        connection = http.client.HTTPConnection(self._address)
        try:
            connection.putrequest("POST", f"/v1/ingest/{quote(table)}?offset={offset}&stream={quote(stream)}")
            for name, value in (("Content-Type", "application/x-ndjson"), ("Transfer-Encoding", "chunked"), ("traceparent", traceparent())):
                connection.putheader(name, value)
            connection.endheaders()
            sender = threading.Thread(target=_send_lines, args=(connection.sock, rows), daemon=True)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _error(answer.status, answer.read())
            sender.start()
            for line in answer:
                part = json.loads(line)
                if "ack" in part:
                    yield "ack", part["ack"]["next"]
                elif "refused" in part:
                    yield "refused", part["refused"]["offset"], _problem(part["refused"]["error"])
                elif "error" in part:
                    raise _problem(part["error"])
                elif "end" in part:
                    return
        except (OSError, http.client.HTTPException, ValueError) as error:
            # What was not acknowledged may be sent again: writing it twice does no harm.
            raise no_answer(f"ingest: {error!r}", sent=True, may_have_run=False) from error
        finally:
            connection.close()  # ends the sender too
        raise no_answer("the stream ended without its end", sent=True, may_have_run=False)

    def get(self, table, key, timeout=None):
        try:
            return self._value("GET", table, key, None, timeout)
        except SidecarError as error:
            if error.code == "KEY_NOT_FOUND":
                return None
            raise

    def put(self, table, key, value, timeout=None):
        self._value("PUT", table, key, value, timeout)

    def delete(self, table, key, timeout=None):
        self._value("DELETE", table, key, None, timeout)

    def commit(self, tx_id, timeout=None):
        self._post(f"/v1/tx/{tx_id}/commit", {}, timeout, True)

    def rollback(self, tx_id, timeout=None):
        self._post(f"/v1/tx/{tx_id}/rollback", {}, timeout, False)

    def status(self):
        return self._call("GET", "/v1/status", None, 5.0, False)

    def close(self):
        self._drop()  # of this thread; the others' close with their threads

    def _value(self, method, table, key, value, timeout):
        """A call of the key-value face: the value is the body, with nothing around it."""
        sent = False
        try:
            self._connect(timeout)
            sent = True
            answer = self._send(method, f"/v1/kv/{table}?{urlencode({'id': key})}", value, timeout)
            body = answer.read()
            if answer.status >= 400:
                raise _error(answer.status, body)
            return body
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise no_answer(f"{method} {table}: {error!r}", sent, may_have_run=False) from error

    def _post(self, path, body, timeout, may_have_run):
        return self._call("POST", path, body, timeout, may_have_run)

    def _call(self, method, path, body, timeout, may_have_run):
        sent = False
        try:
            self._connect(timeout)
            sent = True
            answer = self._send(method, path, body, timeout)
            text = answer.read()
            if answer.status != 200:
                raise _error(answer.status, text)
            return json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._drop()
            raise no_answer(f"{method} {path}: {error!r}", sent, may_have_run) from error

    def _connect(self, timeout):
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self._address)
        # The sidecar ends the call at `timeout`; the socket waits a little longer, so that
        # its answer, which says what came of the call, is heard.
        connection.timeout = None if timeout is None else timeout + 1
        if connection.sock is None:
            connection.connect()
        else:
            connection.sock.settimeout(connection.timeout)
        return connection

    def _send(self, method, path, body, timeout, accept="application/json"):
        connection = self._connect(timeout)
        headers = {"Content-Type": "application/json", "Accept": accept, "traceparent": traceparent()}
        if timeout is not None:
            headers["Request-Timeout"] = f"{max(1, int(timeout * 1000))}ms"
        data = body
        if body is None:
            del headers["Content-Type"]
        elif isinstance(body, bytes):
            headers["Content-Type"] = "application/octet-stream"
        else:
            data = json.dumps(body, default=_bytes)
        connection.request(method, path, data, headers)
        return connection.getresponse()

    def _drop(self):
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def _send_lines(sock, rows):
    """Sends rows as lines of a chunked body, 100 at a time."""
    try:
        rows = iter(rows)
        while part := list(islice(rows, 100)):
            data = "".join(json.dumps(row, default=_bytes) + "\n" for row in part).encode()
            sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))
        sock.sendall(b"0\r\n\r\n")
    except OSError:
        pass  # the answer says why


def _bytes(value):
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"no YQL value for {type(value).__name__}")


def _error(status, text):
    try:
        return _problem(json.loads(text))
    except (ValueError, KeyError, TypeError):
        return SidecarError("BAD_ANSWER", f"HTTP {status}: {text[:200]!r}", outcome_unknown=status >= 500)


def _problem(problem):
    return SidecarError(
        problem["code"], problem.get("detail") or problem.get("message") or problem.get("title", ""),
        safe_to_retry=problem.get("safe_to_retry", False), outcome_unknown=problem.get("outcome_unknown", False),
        retry_after=problem.get("retry_after_ms", 0) / 1000,
        ydb_status=problem.get("ydb_status", ""), trace_id=problem.get("trace_id", ""), hint=problem.get("hint", ""))


def _set(answer):
    return ResultSet([column["name"] for column in answer.get("columns", [])], answer.get("rows", []))


def _result(answer):
    first = _set(answer)
    return Result(first.columns, first.rows, [_set(one) for one in answer.get("sets", [])] or [first],
                  answer.get("info", {}), answer.get("tx", {}).get("id", ""))

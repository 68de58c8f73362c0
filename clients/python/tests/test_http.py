"""The HTTP transport and the retry rules against a server that answers as it is told."""

import asyncio
import json
import socket
import threading
import time
import unittest

import ydb_sidecar
from ydb_sidecar import Conflict, DeadlineExceeded, OutcomeUnknown, Overloaded, SidecarError, Unavailable, aio

DRAINED = object()  # what ends a connection without an answer


def answer(body, status=200, kind="application/json", extra=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
    return head.encode() + data


def problem(code, status, **members):
    return answer({"code": code, "status": status, "message": "m", "hint": "h", **members}, status, "application/problem+json")


def rows(*values):
    return answer({"columns": [{"name": "n", "type": "Int64"}], "rows": [[value] for value in values], "tx": {"id": "tx_1"}})


UNREADABLE = answer({"columns": [{"name": "id", "type": "Uuid"}], "rows": [["no uuid"]], "tx": {"id": "tx_1"}})


class Server:
    """Gives each request the next answer, and notes what was asked. An answer may be a function of the request."""

    def __init__(self, *answers):
        self.answers, self.requests, self.connections = list(answers), [], 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection, connection.makefile("rb") as reader:
            while True:
                line = reader.readline().decode()
                if not line:
                    return
                headers = {}
                while (header := reader.readline().decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = reader.read(int(headers.get("content-length", 0)))
                method, target, _ = line.split()
                request = {"method": method, "target": target, "headers": headers, "body": json.loads(body) if body else None}
                self.requests.append(request)
                reply = self.answers.pop(0)
                if callable(reply):
                    reply = reply(request)
                if reply is DRAINED:
                    return
                connection.sendall(reply)

    @property
    def targets(self):
        return [request["target"] for request in self.requests]


class Transport(unittest.TestCase):
    def test_one_connection_is_kept(self):
        with Server(*[rows(n) for n in range(5)]) as server, ydb_sidecar.connect(server.url) as db:
            self.assertEqual([db.query("SELECT").first().n for _ in range(5)], list(range(5)))
            self.assertEqual(server.connections, 1)

    def test_connections_are_bounded(self):
        gate = threading.Event()

        def slow(_):
            gate.wait(5)
            return rows(1)

        with Server(*[slow] * 6) as server, ydb_sidecar.connect(server.url, connections=2) as db:
            threads = [threading.Thread(target=db.query, args=("SELECT",)) for _ in range(6)]
            for thread in threads:
                thread.start()
            while len(server.requests) < 2:
                time.sleep(0.01)
            gate.set()
            for thread in threads:
                thread.join()
            self.assertEqual(server.connections, 2)

    def test_waiting_for_a_connection_ends(self):
        with Server(lambda _: time.sleep(3) or rows(1)) as server, ydb_sidecar.connect(server.url, connections=1) as db:
            threading.Thread(target=db.query, args=("SELECT",), daemon=True).start()
            while not server.requests:
                time.sleep(0.01)
            with self.assertRaises(DeadlineExceeded) as caught:
                db.query("SELECT", timeout=0.01)
            self.assertEqual((caught.exception.safe_to_retry, caught.exception.outcome_unknown), (True, False))

    def test_what_a_request_says(self):
        with Server(rows(1)) as server:
            settings = {"app": "shop", "token": "secret", "priority": "batch", "traceparent": lambda: "00-1-2-01"}
            with ydb_sidecar.connect(server.url, **settings) as db:
                db.query(
                    "SELECT $a", {"a": b"x", "$b": 1}, mode="snapshot_ro", idempotent=True, timeout=0.8, max_rows=5, types={"b": "Uint8"}
                )
            request = server.requests[0]
            self.assertEqual(
                request["body"],
                {
                    "sql": "SELECT $a", "params": {"a": {"type": "String", "value": {"base64": "eA=="}}, "$b": 1}, "types": {"b": "Uint8"},
                    "mode": "snapshot_ro", "idempotent": True, "limits": {"rows": 5},
                },
            )  # fmt: skip
            for name, value in (
                ("request-timeout", "800000000ns"), ("x-sidecar-app", "shop"), ("authorization", "Bearer secret"),
                ("x-ydb-priority", "batch"),
                ("traceparent", "00-1-2-01"), ("x-ydb-ints", "number"), ("x-ydb-rows", "arrays"),
            ):  # fmt: skip
                self.assertEqual(request["headers"].get(name), value, name)

    def test_a_connection_that_was_closed_while_idle_is_not_used(self):
        closing = answer({"columns": [], "rows": []}, extra="Connection: close\r\n")
        with Server(closing, rows(1), rows(2)) as server, ydb_sidecar.connect(server.url) as db:
            for _ in range(3):
                db.query("UPSERT")
            self.assertEqual(server.connections, 2)

    def test_a_read_is_sent_again_when_its_kept_connection_breaks(self):
        with Server(rows(1), DRAINED, rows(2)) as server, ydb_sidecar.connect(server.url) as db:
            db.query("SELECT")
            self.assertEqual(db.query("SELECT", mode="snapshot_ro").first().n, 2)

    def test_a_write_without_an_answer_is_unknown(self):
        for given, safe, unknown in (({}, False, True), ({"idempotent": True}, True, True), ({"mode": "snapshot_ro"}, True, False)):
            with self.subTest(given), Server(DRAINED, DRAINED) as server, ydb_sidecar.connect(server.url) as db:
                with self.assertRaises(OutcomeUnknown if unknown else Unavailable) as caught:
                    db.query("UPSERT", **given)
                self.assertEqual((caught.exception.safe_to_retry, caught.exception.outcome_unknown), (safe, unknown))
                self.assertEqual(len(server.requests), 1)

    def test_no_sidecar(self):
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with ydb_sidecar.connect(url) as db, self.assertRaises(Unavailable) as caught:
            db.query("UPSERT")
        self.assertEqual((caught.exception.code, caught.exception.safe_to_retry), ("SIDECAR_AWAY", True))

    def test_an_answer_that_comes_before_the_request_is_sent(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def refuse():
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(problem("LIMIT_EXCEEDED", 413).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                    time.sleep(0.2)  # and then the connection ends, with bytes that nobody read

            threading.Thread(target=refuse, daemon=True).start()
            with ydb_sidecar.connect(f"http://127.0.0.1:{listener.getsockname()[1]}") as db:
                with self.assertRaises(ydb_sidecar.BadRequest) as caught:
                    db.bulk("t", [{"id": n, "text": "x" * 1000} for n in range(20_000)])
                self.assertEqual(caught.exception.code, "LIMIT_EXCEEDED")

    def test_a_sidecar_that_says_nothing(self):
        with Server(lambda _: time.sleep(3) or DRAINED) as server, ydb_sidecar.connect(server.url) as db:
            begun = time.monotonic()
            with self.assertRaises(OutcomeUnknown) as caught:
                db.query("UPSERT", timeout=0.05)
            self.assertEqual(caught.exception.code, "DEADLINE_EXCEEDED")
            self.assertLess(time.monotonic() - begun, 2.5)

    def test_what_is_no_sidecar(self):
        calls = {
            "query": lambda db: db.query("UPSERT"),
            "list": lambda db: db.tx(["UPSERT"]),
            "get_many": lambda db: db.kv("t").get_many([1]),
            "status": lambda db: db.status(),
        }
        pages = [answer(b"<html>", 404, "text/html"), answer(b"<html>", 200, "text/html"), answer({"a": 1}), answer([1])]
        pages.append(b"\0\0\6\4\0\0\0\0\0\0\5\0\0@\0")  # HTTP/2, as the gRPC API has it
        for page in pages:
            for name, call in calls.items():
                with self.subTest(name, page=page), Server(page) as server, ydb_sidecar.connect(server.url) as db:
                    with self.assertRaises(Unavailable) as caught:
                        call(db)
                    error = caught.exception
                    self.assertEqual((error.code, error.safe_to_retry, error.outcome_unknown), ("NOT_A_SIDECAR", False, False))
                    self.assertIn(server.url[len("http://") :], error.message)
                    self.assertIn("gRPC API", error.hint)

    def test_rows_by_key_that_cannot_be_read(self):
        for body in ({"items": [1], "missing": []}, {"items": [{"value": "?"}], "missing": []}, {"items": []}, {"items": None}):
            with self.subTest(body), Server(answer(body)) as server, ydb_sidecar.connect(server.url) as db:
                with self.assertRaises(SidecarError) as caught:
                    db.kv("t").get_many([1])
                self.assertEqual(caught.exception.code, "ANSWER_UNREADABLE")

    def test_a_proxy_that_answers_for_the_sidecar(self):
        for status, given, code, safe, unknown in (
            (307, {}, "NOT_A_SIDECAR", False, False),
            (502, {}, "OUTCOME_UNKNOWN", False, True),
            (503, {"idempotent": True}, "OUTCOME_UNKNOWN", True, True),
            (503, {"mode": "snapshot_ro"}, "SIDECAR_AWAY", True, False),
            (504, {}, "DEADLINE_EXCEEDED", False, True),
        ):
            for page in (answer(b"<html>", status, "text/html"), answer({"code": 14, "status": "down"}, status)):
                with self.subTest(status, page=page), Server(page) as server, ydb_sidecar.connect(server.url) as db:
                    with self.assertRaises(SidecarError) as caught:
                        db.query("UPSERT", **given)
                    error = caught.exception
                    self.assertEqual((error.code, error.safe_to_retry, error.outcome_unknown), (code, safe, unknown))
                    self.assertRegex(error.message, "not the sidecar's|no sidecar")

    def test_a_problem_whose_members_are_not_the_sidecars(self):
        with (
            Server(answer({"code": "X", "status": "down"}, 502)) as server,
            ydb_sidecar.connect(server.url) as db,
            self.assertRaises(OutcomeUnknown),
        ):
            db.query("UPSERT")

    def test_a_redirect_writes_no_row(self):
        for status in (202, 307):
            moved = answer(b"", status, "text/html", "Location: http://127.0.0.1:1/\r\n")
            with self.subTest(status), Server(moved, moved, moved) as server, ydb_sidecar.connect(server.url) as db:
                for call in (lambda kv: kv.put(1, b"1"), lambda kv: kv.get(1), lambda kv: kv.delete(1)):
                    with self.assertRaises(SidecarError) as caught:
                        call(db.kv("t"))
                    self.assertEqual(caught.exception.code, "NOT_A_SIDECAR")

    def test_an_answer_that_cannot_be_read(self):
        for given, unknown in (({}, True), ({"mode": "snapshot_ro"}, False)):
            with self.subTest(given), Server(UNREADABLE) as server, ydb_sidecar.connect(server.url) as db:
                with self.assertRaises(SidecarError) as caught:
                    db.query("UPSERT", **given)
                self.assertEqual((caught.exception.code, caught.exception.outcome_unknown), ("ANSWER_UNREADABLE", unknown))

    def test_errors_have_classes(self):
        for code, status, members, kind in (
            ("YDB_ABORTED", 409, {"safe_to_retry": True}, Conflict),
            ("QUEUE_FULL", 429, {"safe_to_retry": True, "retry_after_ms": 250}, Overloaded),
            ("TX_LOST", 410, {"safe_to_retry": True}, ydb_sidecar.TransactionLost),
            ("TX_LOST", 410, {"outcome_unknown": True}, OutcomeUnknown),
            ("EXPECTATION_FAILED", 409, {}, ydb_sidecar.ExpectationFailed),
            ("A_NEW_CODE", 503, {"safe_to_retry": True}, Unavailable),
            ("A_NEWER_CODE", 418, {}, SidecarError),
        ):
            with self.subTest(code), Server(problem(code, status, **members)) as server, ydb_sidecar.connect(server.url) as db:
                with self.assertRaises(SidecarError) as caught:
                    db.query("SELECT")
                error = caught.exception
                self.assertIs(type(error), kind)
                self.assertEqual((error.code, error.hint, error.retry_after), (code, "h", members.get("retry_after_ms", 0) / 1000))

    def test_a_body_in_chunks(self):
        head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        text = b'{"columns":[{"name":"n","type":"Int64"}]}\n{"row":[1]}\n{"row":[2]}\n{"end":{"rows":2}}\n'
        chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in (text[:7], text[7:60], text[60:]))
        whole = head + chunks + b"0\r\nTrailer: x\r\n\r\n"
        with Server(whole, rows(5)) as server, ydb_sidecar.connect(server.url) as db:
            stream = db.stream("SELECT")
            self.assertEqual([row.n for row in stream], [1, 2])
            self.assertEqual((stream.ended, stream.count), (True, 2))
            self.assertEqual(db.query("SELECT").first().n, 5)
            self.assertEqual(server.connections, 1)

    def test_a_stream_that_is_cut(self):
        text = b'{"columns":[{"name":"n","type":"Int64"}]}\n{"row":[1]}\n'
        with Server(answer(text, kind="application/x-ndjson")) as server, ydb_sidecar.connect(server.url) as db:
            stream = db.stream("SELECT", mode="snapshot_ro")
            self.assertEqual(next(stream).n, 1)
            with self.assertRaises(Unavailable) as caught:
                next(stream)
            self.assertTrue(caught.exception.safe_to_retry)

    def test_addresses(self):
        for bad in ("127.0.0.1:7401", "http:/x", "unix://host/x", "ftp://x", "http://host/path"):
            with self.subTest(bad), self.assertRaises(ValueError):
                ydb_sidecar.connect(bad)
        with self.assertRaises(TypeError):
            ydb_sidecar.connect().query("SELECT 1", timeout="soon")


class Transactions(unittest.TestCase):
    ABORTED = problem("YDB_ABORTED", 409, safe_to_retry=True)
    UNKNOWN = problem("OUTCOME_UNKNOWN", 500, outcome_unknown=True)

    def run_in(self, answers, work, **given):
        with Server(*answers) as server, ydb_sidecar.connect(server.url) as db:
            try:
                return db.transaction(work, **given), server
            except Exception as error:
                return error, server

    def work(self, tx):
        tx.query("SELECT")
        return tx.query("UPDATE").first().n

    def test_commits(self):
        got, server = self.run_in([rows(1), rows(2), answer({})], self.work)
        self.assertEqual(got, 2)
        self.assertEqual(server.targets, ["/v1/query", "/v1/query", "/v1/tx/tx_1/commit"])
        self.assertEqual(server.requests[0]["body"]["tx"], {"begin": {"mode": "serializable_rw"}})
        self.assertEqual(server.requests[1]["body"]["tx"], {"id": "tx_1", "seq": 2})

    def test_is_repeated_as_a_whole(self):
        for name, answers in (
            ("a statement fails", [rows(1), self.ABORTED, rows(1), rows(2), answer({})]),
            ("the commit fails", [rows(1), rows(2), self.ABORTED, rows(1), rows(2), answer({})]),
        ):
            with self.subTest(name):
                got, server = self.run_in(answers, self.work)
                self.assertEqual((got, len(server.requests)), (2, len(answers)))

    def test_is_not_repeated_when_the_outcome_is_unknown(self):
        got, server = self.run_in([rows(1), rows(2), self.UNKNOWN], self.work)
        self.assertIsInstance(got, OutcomeUnknown)
        self.assertEqual(len(server.requests), 3)
        got, server = self.run_in([rows(1), rows(2), self.UNKNOWN, rows(1), rows(2), answer({})], self.work, idempotent=True)
        self.assertEqual((got, len(server.requests)), (2, 6))

    def test_a_commit_without_an_answer_is_sent_again(self):
        got, server = self.run_in([rows(1), rows(2), DRAINED, answer({})], self.work)
        self.assertEqual((got, server.targets[-2:]), (2, ["/v1/tx/tx_1/commit"] * 2))

    def test_is_not_repeated_in_vain(self):
        got, server = self.run_in([problem("YDB_GENERIC_ERROR", 400)], self.work)
        self.assertIsInstance(got, ydb_sidecar.BadRequest)
        self.assertEqual(len(server.requests), 1)

    def test_is_rolled_back_when_the_work_fails(self):
        def work(tx):
            tx.query("SELECT")
            raise KeyError("mine")

        got, server = self.run_in([rows(1), answer({})], work)
        self.assertIsInstance(got, KeyError)
        self.assertEqual(server.targets[-1], "/v1/tx/tx_1/rollback")

    def test_an_error_that_the_work_swallows_is_no_success(self):
        def work(tx):
            try:
                tx.query("SELECT")
            except SidecarError:
                pass
            return 5

        got, _ = self.run_in([problem("YDB_GENERIC_ERROR", 400)], work)
        self.assertIsInstance(got, ydb_sidecar.BadRequest)

    def test_is_not_repeated_once_it_is_committed(self):
        def fail():
            raise Conflict("YDB_ABORTED", "m", safe_to_retry=True)

        def with_the_statement(tx):
            tx.query("UPDATE", commit=True)
            fail()

        def with_the_list(tx):
            tx.tx(["UPDATE"], commit=True)
            fail()

        def by_itself(tx):
            tx.query("UPDATE")
            tx.commit()
            tx.rollback()  # does nothing
            fail()

        def unknown(tx):
            try:
                tx.query("UPDATE", commit=True)
            except OutcomeUnknown:
                fail()

        listed = answer({"results": [{"columns": [], "rows": []}]})
        for work, answers in (
            (with_the_statement, [rows(1)]), (with_the_list, [listed]), (by_itself, [rows(1), answer({})]), (unknown, [self.UNKNOWN]),
        ):  # fmt: skip
            for idempotent in (False,) if work is unknown else (False, True):
                with self.subTest(work.__name__, idempotent=idempotent):
                    got, server = self.run_in(answers + [rows(1)] * 4, work, idempotent=idempotent, timeout=1)
                    self.assertIsInstance(got, Conflict)
                    self.assertEqual(len(server.requests), len(answers))

    def test_is_rolled_back_when_its_time_is_over(self):
        def late_statement(tx):
            tx.query("SELECT")
            time.sleep(0.3)
            tx.query("SELECT")

        def late_commit(tx):
            tx.query("SELECT")
            time.sleep(0.3)

        def swallowed(tx):
            tx.query("SELECT")
            time.sleep(0.3)
            try:
                tx.query("SELECT")
            except DeadlineExceeded:
                pass

        for work in (late_statement, late_commit, swallowed):
            with self.subTest(work.__name__):
                got, server = self.run_in([rows(1), answer({})], work, timeout=0.2)
                self.assertIsInstance(got, DeadlineExceeded)
                self.assertIn("longer timeout", got.hint)
                self.assertEqual(server.targets, ["/v1/query", "/v1/tx/tx_1/rollback"])
                self.assertEqual(server.requests[-1]["headers"]["request-timeout"], "2000000000ns")

    def test_is_rolled_back_when_a_statement_has_no_answer_in_time(self):
        got, server = self.run_in([rows(1), lambda _: time.sleep(2) or DRAINED, answer({})], self.work, timeout=0.2)
        self.assertIsInstance(got, DeadlineExceeded)
        self.assertEqual(server.targets[-1], "/v1/tx/tx_1/rollback")

    def test_a_parameter_that_cannot_be_sent_has_no_number(self):
        def work(tx):
            tx.query("SELECT")
            with self.assertRaises(TypeError):
                tx.query("SELECT $a", {"a": object()})
            with self.assertRaises(TypeError):
                tx.tx([ydb_sidecar.Statement("SELECT $a", {"a": object()})])
            tx.query("SELECT")

        _, server = self.run_in([rows(1), rows(2), answer({})], work)
        self.assertEqual(server.requests[1]["body"]["tx"], {"id": "tx_1", "seq": 2})
        self.assertEqual(len(server.requests), 3)

    def test_an_answer_that_cannot_be_read_fails_it(self):
        def work(tx):
            tx.query("SELECT")
            try:
                tx.query("SELECT")
            except Exception:
                pass
            return 5

        got, server = self.run_in([rows(1), UNREADABLE, answer({})], work)
        self.assertIsInstance(got, SidecarError)
        self.assertEqual(got.code, "ANSWER_UNREADABLE")
        self.assertEqual(server.targets, ["/v1/query", "/v1/query", "/v1/tx/tx_1/rollback"])

    def test_ends_with_its_time(self):
        begun = time.monotonic()
        got, server = self.run_in([self.ABORTED] * 1000, self.work, timeout=0.3)
        self.assertIsInstance(got, Conflict)
        self.assertGreater(len(server.requests), 2)
        self.assertLess(time.monotonic() - begun, 1)

    def test_waits_as_long_as_it_is_told(self):
        busy = problem("QUEUE_FULL", 429, safe_to_retry=True, retry_after_ms=200)
        begun = time.monotonic()
        got, _ = self.run_in([busy, rows(1), rows(2), answer({})], self.work)
        self.assertEqual(got, 2)
        self.assertGreater(time.monotonic() - begun, 0.2)

    def test_nothing_is_sent_where_nothing_is_done(self):
        got, server = self.run_in([], lambda tx: 7)
        self.assertEqual((got, server.requests), (7, []))


class Asyncio(unittest.TestCase):
    def test_many_calls_share_few_connections(self):
        async def main(url):
            async with aio.connect(url, connections=3) as db:
                results = await asyncio.gather(*(db.query("SELECT") for _ in range(20)))
                return sum(result.first().n for result in results)

        with Server(*[rows(1)] * 20) as server:
            self.assertEqual(asyncio.run(main(server.url)), 20)
            self.assertLessEqual(server.connections, 3)

    def test_a_cancelled_call_leaves_no_connection_behind(self):
        async def main(url):
            async with aio.connect(url, connections=1) as db:
                call = asyncio.ensure_future(db.query("SELECT"))
                await asyncio.sleep(0.1)
                call.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await call
                return (await db.query("SELECT")).first().n

        with Server(lambda _: time.sleep(1) or rows(1), rows(2)) as server:
            self.assertEqual(asyncio.run(main(server.url)), 2)

    def test_a_transaction_is_repeated(self):
        async def work(tx):
            return (await tx.query("SELECT")).first().n

        async def main(url):
            async with aio.connect(url) as db:
                return await db.transaction(work)

        with Server(Transactions.ABORTED, rows(3), answer({})) as server:
            self.assertEqual(asyncio.run(main(server.url)), 3)


if __name__ == "__main__":
    unittest.main()

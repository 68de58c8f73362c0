"""Takes one of the Python clients through the steps of package sdktest.

CLIENT says which one, YDB_URL (grpc://host:port/database) where, YDB_TOKEN with which ticket ("": none), TABLES in which
directory ("" or "name/"), ROWS how many rows the large table has, and KILL, where a POST kills a node; without it none is. Each step prints
one line, without anything that differs from run to run.
"""

import os
import re
import threading
import traceback
import urllib.parse
import urllib.request

ROWS = int(os.environ["ROWS"])
BATCH = ROWS // 20
WRITERS, LOAD_ROWS = 4, 25
TEXT = "x" * (20 * 1024 * 1024 // ROWS)

_url = urllib.parse.urlsplit(os.environ["YDB_URL"])
ENDPOINT, HOST, PORT, DATABASE = f"grpc://{_url.netloc}", _url.hostname, _url.port, _url.path
TOKEN, TABLES = os.environ["YDB_TOKEN"], os.environ.get("TABLES", "")

# The statements by name. All numbers are Uint64.
SQL = {
    "create few": "CREATE TABLE few (id Uint64, n Uint64, PRIMARY KEY (id))",
    "create big": "CREATE TABLE big (id Uint64, text Utf8, PRIMARY KEY (id))",
    "upsert": "DECLARE $id AS Uint64; DECLARE $n AS Uint64; UPSERT INTO few (id, n) VALUES ($id, $n)",
    "insert": "DECLARE $id AS Uint64; DECLARE $n AS Uint64; INSERT INTO few (id, n) VALUES ($id, $n)",
    "few": "SELECT id, n FROM few WHERE id < 100ul ORDER BY id",
    "one": "DECLARE $id AS Uint64; SELECT n FROM few WHERE id = $id",
    "count few": "SELECT COUNT(*) AS n FROM few WHERE id < 100ul",
    "count load": "SELECT COUNT(*) AS n FROM few WHERE id >= 100ul",
    "count big": "SELECT COUNT(*) AS n FROM big",
    "big": "SELECT id, text FROM big",
    "delete few": "DELETE FROM few",
    "drop few": "DROP TABLE few",
    "drop big": "DROP TABLE big",
}
SQL = {name: re.sub(r"\b(few|big)\b", rf"`{TABLES}\1`", sql) for name, sql in SQL.items()}


class Undo(Exception):
    """Is raised in a transaction that shall be rolled back."""


class Client:
    """What a client must do, told that all of it is safe to repeat.

    A body of a transaction is a function that makes a generator. It yields statements, (name,
    parameters), and gets their rows, or functions to call where waiting does no harm.
    """

    def scheme(self, name):
        """Creates or drops a table."""

    def run(self, name, **params):
        """Runs a statement on its own and returns its rows."""

    def bulk(self, rows):
        """Writes rows of table big."""

    def stream(self, begin, each):
        """Streams table big: begin() for each try, each(id) for each row."""

    def tx(self, body):
        """Runs a transaction."""

    def prepared(self, ids):
        """Reads n of rows by one prepared statement; without such: one by one."""
        return [self.run("one", id=i)[0][0] for i in ids]

    def cancel(self):
        """Gives up a stream of table big in the middle; returns how many rows came."""

    def close(self):
        """Leaves nothing behind."""

    def status(self, err):
        """The name of YDB's status in an error."""
        return err.status.name


def say(step, *outcome):
    print(f"{step}:", *outcome, flush=True)


class Steps:
    def __init__(self, client):
        self.client = client

    def attempt(self, work):
        """Returns what work returns and ok, or nothing and what is wrong."""
        try:
            return work(), "ok"
        except Exception as err:  # what it is, is told
            traceback.print_exception(err)
            try:
                return None, self.client.status(err)
            except Exception:
                return None, repr(err)

    def count(self, name):
        found, wrong = self.attempt(lambda: self.client.run(name)[0][0])
        return wrong if found is None else found

    def main(self):
        c = self.client
        say("connect", "ok")
        for name in ("create few", "create big"):
            say("create", self.attempt(lambda: c.scheme(name))[1])
        self.all()
        self.load()
        if os.environ.get("KILL"):
            say("clean", self.attempt(lambda: c.run("delete few"))[1])
            self.all()
        for name in ("drop few", "drop big"):
            say("drop", self.attempt(lambda: c.scheme(name))[1])
        say("close", self.attempt(c.close)[1])

    def all(self):
        c = self.client
        say("write", self.attempt(lambda: [c.run("upsert", id=i, n=0) for i in (1, 2, 3)])[1])
        rows, ok = self.attempt(lambda: c.run("few"))
        say("read", text(rows), ok)
        _, ok = self.attempt(lambda: [c.bulk(range(i, min(i + BATCH, ROWS))) for i in range(0, ROWS, BATCH)])
        say("bulk", self.count("count big"), "rows", ok)
        say("stream", self.whole())
        self.transactions()
        self.conflict()
        found, ok = self.attempt(lambda: c.prepared([1, 2, 4]))
        say("prepared", "[" + " ".join(str(n) for n in found or []) + "]", ok)
        seen, ok = self.attempt(c.cancel)
        say("cancel in the middle", "true" if seen and seen < ROWS else ok, "then", self.count("count few"), "rows")

    def whole(self):
        seen = [0, 0]

        def begin():
            seen[:] = [0, 0]

        def each(i):
            seen[0] += 1
            seen[1] += i
        _, ok = self.attempt(lambda: self.client.stream(begin, each))
        return f"{seen[0]} rows sum {seen[1]}" if ok == "ok" else ok

    def transactions(self):
        def write(row, end):
            inside = []

            def body():
                yield "upsert", {"id": row, "n": 0}
                inside[:] = (yield "count few", {})[0]
                if end:
                    raise end
            try:
                self.client.tx(body)
                return inside[0], "ok"
            except Undo:
                return inside[0], "true"
            except Exception as err:
                traceback.print_exception(err)
                return inside, self.client.status(err)
        inside, ok = write(4, None)
        say("commit", inside, "inside", self.count("count few"), "after", ok)
        inside, ok = write(5, Undo())
        say("rollback", inside, "inside", self.count("count few"), "after", ok)

        def wrong():
            yield "upsert", {"id": 6, "n": 0}
            yield "insert", {"id": 1, "n": 0}
        try:
            self.client.tx(wrong)
            status = "none"
        except Exception as err:
            status = self.client.status(err)
        say("error inside", status, self.count("count few"), "after")

    def conflict(self):
        """Two transactions read the same row before either writes it."""
        both, tries, errors = threading.Barrier(2, timeout=60), [], []

        def add():
            first = [True]

            def body():
                tries.append(1)
                n = (yield "one", {"id": 1})[0][0]
                if first[0]:
                    first[0] = False
                    yield both.wait
                yield "upsert", {"id": 1, "n": n + 1}
            ok = self.attempt(lambda: self.client.tx(body))[1]
            if ok != "ok":
                errors.append(ok)
        together([add, add])
        rows, ok = self.attempt(lambda: self.client.run("one", id=1))
        say("conflict", text(rows), "retried", "true" if len(tries) > 2 else "false", errors[0] if errors else ok)

    def load(self):
        """Rows are written, each on its own and in transactions, and streamed beside that."""
        lock, done, errors = threading.Lock(), [0], []

        def write(writer):
            for i in range(LOAD_ROWS):
                row = 100 + writer * LOAD_ROWS + i

                def body():
                    yield "upsert", {"id": row, "n": row}
                    yield "one", {"id": row}
                if writer % 2 == 0:
                    ok = self.attempt(lambda: self.client.run("upsert", id=row, n=row))[1]
                else:
                    ok = self.attempt(lambda: self.client.tx(body))[1]
                if ok != "ok":
                    errors.append(ok)
                with lock:
                    done[0] += 1
                    half = done[0] == WRITERS * LOAD_ROWS // 2
                if half:
                    kill()

        def read():
            written = False
            while not written:
                written = done[0] == WRITERS * LOAD_ROWS  # one more after the last row
                got = self.whole()
                if got != f"{ROWS} rows sum {ROWS * (ROWS - 1) // 2}":
                    errors.append(f"a stream has {got}")
        together([lambda w=w: write(w) for w in range(WRITERS)] + [read])
        say("load", self.count("count load"), "rows", errors[0] if errors else "ok streams whole")


def text(rows):
    """Rows as every script prints them."""
    return "[" + " ".join("[" + " ".join(str(v) for v in row) + "]" for row in rows or []) + "]"


def together(work):
    threads = [threading.Thread(target=w) for w in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def kill():
    if os.environ.get("KILL"):
        urllib.request.urlopen(urllib.request.Request(os.environ["KILL"], method="POST"), timeout=30).close()


def drive(body, run):
    """Runs the body of a transaction; run(name, params) runs a statement of it."""
    steps = body()
    step = next(steps, None)
    while step is not None:
        try:
            step = steps.send(step() if callable(step) else run(*step))
        except StopIteration:
            return


async def drive_async(body, run):
    import asyncio
    steps = body()
    step = next(steps, None)
    while step is not None:
        got = await (asyncio.to_thread(step) if callable(step) else run(*step))
        try:
            step = steps.send(got)
        except StopIteration:
            return

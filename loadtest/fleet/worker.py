"""One worker process of a service, as gunicorn and the like start a dozen of: threads that answer requests by a point read.

It is started by `loadtest fleet`, which tells it by the environment where to go: YDB_URL (grpc://host:port/database),
POOL (1: the SDK's pool; 0: a session for each query), RATE (requests a second, evenly spaced), BURST (requests that
come at once every two seconds), OFFSET (0 to 1: when in these two seconds). Requests come whatever becomes of those
before them; one that finds no thread waits, and its latency counts from the instant at which it was due.

Four times a second it prints a line of JSON: the calls that ended ([due, seconds, error or ""]), and the
instant up to which it has told all. SIGTERM ends it.
"""

import collections
import json
import os
import queue
import signal
import sys
import threading
import time
import urllib.parse

import ydb

URL = urllib.parse.urlsplit(os.environ["YDB_URL"])
POOLED, RATE, BURST, OFFSET = os.environ["POOL"] == "1", float(os.environ["RATE"]), int(os.environ["BURST"]), float(os.environ["OFFSET"])
PERIOD, THREADS, ROWS = 2.0, 8, 1000
SQL = "DECLARE $id AS Uint64; SELECT id, payload FROM bench WHERE id = $id"
# The SDK's own retries, told that a read may be repeated; each try gets three seconds.
RETRY = ydb.RetrySettings(idempotent=True)
SETTINGS = ydb.BaseRequestSettings().with_timeout(3)


class Worker:
    def __init__(self):
        self.driver = ydb.Driver(ydb.DriverConfig(f"grpc://{URL.netloc}", URL.path))
        self.driver.wait(timeout=20, fail_fast=True)
        self.pool = ydb.QuerySessionPool(self.driver) if POOLED else None
        self.requests = queue.SimpleQueue()
        self.lock = threading.Lock()  # guards done and open
        self.done, self.open = [], collections.Counter()  # the calls that ended; the instants at which others were due
        self.stop = threading.Event()

    def read(self, key):
        """Reads a row over the pool, or over a session of its own."""
        params = {"$id": (key, ydb.PrimitiveType.Uint64)}
        if self.pool:
            return self.pool.execute_with_retries(SQL, params, retry_settings=RETRY, settings=SETTINGS)

        def once():
            session = ydb.QuerySession(self.driver).create(SETTINGS)
            try:
                with session.execute(SQL, params, settings=SETTINGS) as parts:
                    return list(parts)
            finally:
                session.delete(SETTINGS)
        return ydb.retry_operation_sync(once, RETRY)

    def call(self, due):
        """Answers one request, and says how it ended."""
        key = int(due * 1e6) % ROWS
        try:
            rows = [row for part in self.read(key) for row in part.rows]
            error = "" if len(rows) == 1 and rows[0].id == key and rows[0].payload == "x" * 100 else "WRONG"
        except Exception as err:  # whatever it is, the request has failed
            status = getattr(err, "status", None)
            error = status.name if status is not None else type(err).__name__
        with self.lock:
            self.done.append((due, round(time.time() - due, 6), error))
            self.open[due] -= 1
            if not self.open[due]:
                del self.open[due]

    def serve(self):
        while True:
            due = self.requests.get()
            if due is None:
                return
            self.call(due)

    def arrivals(self):
        """Yields the instants at which requests are due, in their order."""
        begun = time.time()
        burst, single, n = begun + PERIOD * OFFSET, begun + OFFSET / RATE, 0
        while True:
            at = single + n / RATE
            while burst <= at:
                yield from [burst] * BURST
                burst += PERIOD
            yield at
            n += 1

    def tell(self):
        with self.lock:
            done, self.done = self.done, []
            told = min(self.open, default=time.time())
        print(json.dumps({"calls": done, "told": told}, separators=(",", ":")), flush=True)

    def main(self):
        now = time.time()
        self.open[now] = 1
        self.call(now)
        if self.done[0][2]:
            sys.exit(f"the first call failed: {self.done[0][2]}")
        self.done.clear()
        threads = [threading.Thread(target=self.serve) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        print(json.dumps({"ready": True}), flush=True)
        next_line = time.time()
        for due in self.arrivals():
            while time.time() < due and not self.stop.is_set():
                if time.time() >= next_line:
                    self.tell()
                    next_line = time.time() + 0.25
                self.stop.wait(max(0, min(due, next_line) - time.time()))
            if self.stop.is_set():
                break
            with self.lock:
                self.open[due] += 1
            self.requests.put(due)
        for _ in threads:
            self.requests.put(None)
        for thread in threads:
            thread.join()
        self.tell()
        if self.pool:
            self.pool.stop()
        self.driver.stop(timeout=10)


if __name__ == "__main__":
    worker = Worker()
    signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
    worker.main()

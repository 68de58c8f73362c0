"""A Python app that reads rows by their key, with YDB's SDK or through a sidecar: one of the apps of `loadtest sdks`.

    .cache/official/bin/python loadtest/sdks/read.py --way sdk --address grpc://127.0.0.1:2136/local --in-flight 16 --warm 1 --window 2
    .venv/bin/python loadtest/sdks/read.py --way plain --address grpc://127.0.0.1:7400 ...     # or http://127.0.0.1:7401

Each call in flight has a thread of its own. The app warms up, prints {"ready": true}, measures one window for each SIGUSR2
and prints the window as JSON on one line: calls, failed calls, the first failure, the length in seconds, p50 and p99 in
microseconds, and the CPU seconds of all threads of this process. SIGTERM ends the app.
"""

import argparse
import json
import random
import signal
import sys
import threading
import time

ROWS = 1000
SQL = "DECLARE $id AS Uint64; SELECT id, payload FROM bench WHERE id = $id"
SIGNALS = {signal.SIGUSR2, signal.SIGTERM}


def sdk(address, in_flight):
    """Reads with YDB's SDK: a pool with a session for each thread. The server chooses the transaction mode."""
    import ydb

    endpoint, _, database = address.rpartition("/")
    driver = ydb.Driver(ydb.DriverConfig(endpoint, "/" + database))
    driver.wait(timeout=20, fail_fast=True)
    pool = ydb.QuerySessionPool(driver, size=in_flight)
    retry = ydb.RetrySettings(idempotent=True)

    def read(key):
        sets = pool.execute_with_retries(SQL, {"$id": (key, ydb.PrimitiveType.Uint64)}, retry_settings=retry)
        return [(row.id, row.payload) for row in sets[0].rows]

    def close():
        pool.stop()
        driver.stop(timeout=10)
    return read, close


def plain(address, _):
    """Reads through the sidecar with its client for Python, over gRPC or HTTP as the address says."""
    from ydb_sidecar import connect

    client = connect(address)

    def read(key):
        return [(row["id"], row["payload"]) for row in client.query(SQL, {"id": key}).rows]
    return read, client.close


class Load:
    """Threads that wait for a window and then read until its end."""

    def __init__(self, read, in_flight):
        self.read = read
        self.begin, self.end = threading.Barrier(in_flight + 1), threading.Barrier(in_flight + 1)
        self.lock = threading.Lock()  # guards took, failed and first
        self.took, self.failed, self.first, self.until = [], 0, "", 0.0
        for _ in range(in_flight):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            self.begin.wait()
            took, failed, first = [], 0, ""
            while (start := time.perf_counter()) < self.until:
                key = random.randrange(ROWS)
                try:
                    rows = self.read(key)
                    error = "" if rows == [(key, "x" * 100)] else f"row {key}: got {rows}"
                except Exception as err:  # whatever it is, the call has failed
                    error = f"{type(err).__name__}: {err}"
                took.append(time.perf_counter() - start)
                if error:
                    failed, first = failed + 1, first or error
            with self.lock:
                self.took += took
                self.failed, self.first = self.failed + failed, self.first or first
            self.end.wait()

    def window(self, seconds):
        self.took, self.failed, self.first = [], 0, ""
        cpu, begun = time.process_time(), time.perf_counter()
        self.until = begun + seconds
        self.begin.wait()
        self.end.wait()
        lasted, cpu = time.perf_counter() - begun, time.process_time() - cpu
        self.took.sort()
        return {"calls": len(self.took), "failed": self.failed, "first": self.first[:300], "seconds": lasted, "cpu_seconds": cpu,
                "p50_us": self.took[len(self.took) // 2] * 1e6, "p99_us": self.took[len(self.took) * 99 // 100] * 1e6}


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--way", choices=["sdk", "plain"], required=True)
    flags.add_argument("--address", required=True)
    flags.add_argument("--in-flight", type=int, default=1)
    flags.add_argument("--warm", type=float, default=1)
    flags.add_argument("--window", type=float, default=2)
    args = flags.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # in every thread: only sigwait takes them
    read, close = {"sdk": sdk, "plain": plain}[args.way](args.address, args.in_flight)
    load = Load(read, args.in_flight)
    warm = load.window(args.warm)
    if warm["failed"]:
        sys.exit(f"{warm['failed']} of {warm['calls']} calls of the warm-up failed: {warm['first']}")
    print(json.dumps({"ready": True}), flush=True)
    while signal.sigwait(SIGNALS) == signal.SIGUSR2:
        print(json.dumps(load.window(args.window)), flush=True)
    close()


if __name__ == "__main__":
    main()

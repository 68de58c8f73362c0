"""Calls that are safe to repeat, by YDB's official Python client, until SIGTERM comes.

YDB_URL says where. Each success is counted in the file YDB_COUNT, one byte each, and
the last line of the output is JSON: how many there were, and what went wrong.
"""

import json
import os
import signal
import threading
import time

import ydb

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())


def main():
    config = ydb.DriverConfig(os.environ["YDB_URL"], "/local")
    done, failed, longest = 0, [], 0.0
    lock = threading.Lock()
    with ydb.Driver(config) as driver, open(os.environ["YDB_COUNT"], "ab", buffering=0) as count:
        driver.wait(timeout=20, fail_fast=True)
        with ydb.QuerySessionPool(driver, size=8) as pool:
            def work():
                nonlocal done, longest
                while not stop.is_set():
                    start = time.monotonic()
                    try:
                        rows = pool.execute_with_retries("SELECT 1 AS one", retry_settings=ydb.RetrySettings(idempotent=True))[0].rows
                        assert rows[0]["one"] == 1
                    except Exception as err:  # what it is, is told
                        # A client that finds its channel broken closes it, which cancels the calls under way on it, and does not repeat them.
                        if isinstance(err, ydb.issues.Cancelled) and "Channel closed" in str(err):
                            continue
                        with lock:
                            failed.append(repr(err))
                        continue
                    with lock:
                        done += 1
                        longest = max(longest, time.monotonic() - start)
                    count.write(b".")
                    time.sleep(0.01)

            threads = [threading.Thread(target=work) for _ in range(6)]
            for thread in threads:
                thread.start()
            stop.wait()
            for thread in threads:
                thread.join()
    print(json.dumps({"done": done, "failed": failed[:10], "longest": longest}))


main()

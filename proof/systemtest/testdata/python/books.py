"""Rows that are written once each, by YDB's official Python client, until SIGTERM comes.

YDB_URL says where, YDB_WRITER the number of the first of the writers: each inserts rows
with ids of its own and counts them in a row of its own, in one transaction. The client is
told that the work may be repeated, because a row is inserted and not put: what had been
written though nobody said so is found out. Each row is counted in the file YDB_COUNT, one byte
each. The last line of the output is JSON: the ids that are written ("told"), those of which nobody
can tell ("doubt"), and what went wrong.
"""

import json
import os
import signal
import threading

import ydb

WRITERS = 3
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

DECLARE = "DECLARE $writer AS Uint64; DECLARE $id AS Uint64; "


def main():
    first = int(os.environ["YDB_WRITER"])
    config = ydb.DriverConfig(os.environ["YDB_URL"], "/local")
    told, doubt, failed = [], [], []
    lock = threading.Lock()
    with ydb.Driver(config) as driver, open(os.environ["YDB_COUNT"], "ab", buffering=0) as count:
        driver.wait(timeout=20, fail_fast=True)
        with ydb.QuerySessionPool(driver, size=WRITERS) as pool:
            def write(writer, row):
                parameters = {"$writer": (writer, ydb.PrimitiveType.Uint64), "$id": (row, ydb.PrimitiveType.Uint64)}

                def run(tx, sql):
                    with tx.execute(DECLARE + sql, parameters) as sets:
                        return [r for s in sets for r in s.rows]

                def work(tx):
                    n = run(tx, "SELECT n FROM counters WHERE id = $writer AND $id > 0ul")[0]["n"]
                    run(tx, "INSERT INTO written (id, writer) VALUES ($id, $writer)")
                    own = run(tx, "SELECT id FROM written WHERE id = $id AND writer = $writer")
                    assert len(own) == 1, own
                    parameters["$n"] = (n + 1, ydb.PrimitiveType.Uint64)
                    run(tx, "DECLARE $n AS Uint64; UPDATE counters SET n = $n WHERE id = $writer AND $id > 0ul")
                    del parameters["$n"]

                try:
                    pool.retry_tx_sync(work, retry_settings=ydb.RetrySettings(idempotent=True, max_retries=100))
                except ydb.issues.PreconditionFailed:
                    pass  # an earlier try had written it

            def keep_writing(writer):
                n = 0
                while not stop.is_set():
                    n += 1
                    row = writer << 32 | n
                    try:
                        write(writer, row)
                    except Exception as err:  # what it is, is told
                        with lock:
                            doubt.append(row)
                            # A client that closes its channel cancels the calls under way on it, and does not repeat them.
                            if not isinstance(err, ydb.issues.Cancelled):
                                failed.append(repr(err))
                        stop.wait(0.1)
                        continue
                    with lock:
                        told.append(row)
                    count.write(b".")
                    stop.wait(0.02)

            threads = [threading.Thread(target=keep_writing, args=(first + i,)) for i in range(WRITERS)]
            for thread in threads:
                thread.start()
            stop.wait()
            for thread in threads:
                thread.join()
    print(json.dumps({"told": told, "doubt": doubt, "failed": failed[:10]}))


main()

"""The package against a running sidecar: YDB_SIDECAR_URLS has its addresses, separated by spaces. Without it these tests are skipped."""

import asyncio
import os
import threading
import time
import unittest

import ydb_sidecar
from ydb_sidecar import Conflict, DeadlineExceeded, OutcomeUnknown, SidecarError, aio

URLS = os.environ.get("YDB_SIDECAR_URLS", "").split()


def everywhere(test):
    """Runs a test at each address."""

    def run(self):
        for number, url in enumerate(URLS):
            with self.subTest(url), ydb_sidecar.connect(url) as db:
                self.url, self.table = url, f"{test.__name__}_{number}"
                db.query(f"CREATE TABLE {self.table} (id Uint64, n Int64, note Utf8, PRIMARY KEY (id))")
                test(self, db)
                db.query(f"DROP TABLE {self.table}")

    return run


@unittest.skipUnless(URLS, "YDB_SIDECAR_URLS names no sidecar")
class Live(unittest.TestCase):
    @everywhere
    def test_transactions_that_conflict_lose_nothing(self, db):
        db.query(f"UPSERT INTO {self.table} (id, n) VALUES (1, 0)", idempotent=True)

        def add(tx):
            n = tx.query(f"SELECT n FROM {self.table} WHERE id = 1").first().n
            tx.query(f"DECLARE $n AS Int64; UPDATE {self.table} SET n = $n WHERE id = 1", {"n": n + 1})

        def work():
            for _ in range(5):
                db.transaction(add, timeout=30)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(db.query(f"SELECT n FROM {self.table}").first().n, 20)

    @everywhere
    def test_begin(self, db):
        with db.begin() as tx:
            tx.query(f"UPSERT INTO {self.table} (id, n) VALUES (1, 1)")
            self.assertEqual([row.id for row in tx.stream(f"SELECT id FROM {self.table}")], [1])
            self.assertEqual(tx.state().seq, 2)
        with self.assertRaises(KeyError), db.begin() as tx:
            tx.query(f"UPSERT INTO {self.table} (id, n) VALUES (2, 2)")
            raise KeyError
        with db.begin() as tx:
            tx.tx([f"UPSERT INTO {self.table} (id, n) VALUES (3, 3)", "SELECT 1"], commit=True)
        self.assertEqual([row.id for row in db.query(f"SELECT id FROM {self.table} ORDER BY id")], [1, 3])
        self.assertEqual(db.status().get("open_transactions", 0), 0)

    @everywhere
    def test_a_stream_that_is_left_frees_its_session(self, db):
        for n in range(10):
            db.bulk(self.table, [{"id": 1000 * n + i, "note": "x" * 1000} for i in range(1000)])
        for _ in range(20):
            with db.stream(f"SELECT id, note FROM {self.table}", mode="snapshot_ro") as rows:
                next(rows)
        for _ in range(1000):
            if not db.status()["pool"].get("busy", 0):
                break
            time.sleep(0.01)
        else:
            self.fail("sessions stay in use")

    @everywhere
    def test_a_deadline(self, db):
        with self.assertRaises(SidecarError) as caught:
            db.query("SELECT 1", mode="snapshot_ro", timeout=1e-9)
        self.assertTrue(caught.exception.safe_to_retry)
        with self.assertRaises(DeadlineExceeded):
            db.query("SELECT 1", timeout=0)

    @everywhere
    def test_ingest(self, db):
        rows = ({"id": n % 500, "n": "no number" if n == 700 else n} for n in range(5000))
        acks = list(db.ingest(self.table, rows, offset=10, stream="live"))
        self.assertEqual((acks[-1].next, acks[-1].rows, acks[-1].done), (5010, 4999, True))
        self.assertEqual([one.offset for ack in acks for one in ack.refused], [710])
        self.assertEqual(db.query(f"SELECT n FROM {self.table} WHERE id = 7").first().n, 4507)

    @everywhere
    def test_ingest_takes_rows_as_they_come(self, db):
        seen = threading.Event()

        def rows():
            yield {"id": 1}
            if not seen.wait(10):
                raise AssertionError("the first row was not acknowledged while the second one was awaited")
            yield {"id": 2}

        written = 0
        for ack in db.ingest(self.table, rows()):
            seen.set()
            written = ack.rows
        self.assertEqual(written, 2)

    @everywhere
    def test_ingest_of_rows_that_fail(self, db):
        def rows():
            yield {"id": 1}
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            list(db.ingest(self.table, rows()))

    @everywhere
    def test_the_trace_goes_on(self, db):
        trace = "0af7651916cd43dd8448eb211c80319c"
        result = db.query("SELECT 1", traceparent=f"00-{trace}-b7ad6b7169203331-01")
        self.assertIn(result.info.trace_id, (trace, ""))  # "" where the sidecar traces nothing

    @everywhere
    def test_errors(self, db):
        db.query(f"INSERT INTO {self.table} (id) VALUES (1)")
        with self.assertRaises(Conflict) as caught:
            db.query(f"INSERT INTO {self.table} (id) VALUES (1)")
        error = caught.exception
        self.assertEqual((error.status, error.ydb_status, error.safe_to_retry), (409, "PRECONDITION_FAILED", False))
        self.assertTrue(error.hint and error.issues)
        self.assertNotIsInstance(error, OutcomeUnknown)

    @everywhere
    def test_asyncio(self, db):
        async def rows():
            for n in range(100):
                yield {"id": n, "n": n}

        async def add(tx):
            n = (await tx.query(f"SELECT n FROM {self.table} WHERE id = 0")).first().n
            await tx.query(f"DECLARE $n AS Int64; UPDATE {self.table} SET n = $n WHERE id = 0", {"n": n + 1})

        async def main():
            async with aio.connect(self.url) as db:
                acks = [ack async for ack in db.ingest(self.table, rows())]
                self.assertEqual(acks[-1].rows, 100)
                await asyncio.gather(*(db.transaction(add, timeout=30) for _ in range(5)))
                async with db.stream(f"SELECT n FROM {self.table} ORDER BY id", mode="snapshot_ro") as stream:
                    self.assertEqual((await stream.__anext__()).n, 5)
                self.assertEqual(len(await db.batch(["SELECT 1", "SELECT 2"])), 2)
                self.assertEqual((await db.describe(self.table)).primary_key, ["id"])
                self.assertEqual((await db.version()).api, "v1")

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()

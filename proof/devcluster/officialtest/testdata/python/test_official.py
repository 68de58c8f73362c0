"""Drives a development cluster with YDB's official Python client.

The Go test starts the cluster and says where it is: YDB_ENDPOINT (host:port),
YDB_CONTROL (host:port of the control API), YDB_USER and YDB_PASSWORD. With
YDB_SIDECAR=1 the endpoint is a sidecar in front of the cluster, which names itself
alone as an endpoint; all else must be the same.
"""

import asyncio
import concurrent.futures
import json
import os
import time
import unittest
import urllib.request
import uuid

import ydb
import ydb.aio

ENDPOINT = "grpc://" + os.environ["YDB_ENDPOINT"]
DATABASE = "/local"
PATIENCE = 20
VIRTUAL = os.environ.get("YDB_SIDECAR") == "virtual"
SIDECAR = VIRTUAL or os.environ.get("YDB_SIDECAR") == "1"


def control(path):
    with urllib.request.urlopen(f"http://{os.environ['YDB_CONTROL']}{path}", timeout=PATIENCE) as answer:
        return json.load(answer)


def counters(name):
    return sum(node["counters"][name] for node in control("/nodes")["nodes"])


def sessions():
    every = control("/sessions")["sessions"]
    if VIRTUAL:  # those of the pool stay, at rest
        return [s for s in every if s["state"] == "busy" or s["transactions"] > 0]
    return every


def eventually(what, ok):
    deadline = time.monotonic() + PATIENCE
    while not ok():
        if time.monotonic() > deadline:
            raise AssertionError("never: " + what)
        time.sleep(0.005)


def config():
    c = ydb.DriverConfig(ENDPOINT, DATABASE)
    c.credentials = ydb.StaticCredentials(c, os.environ["YDB_USER"], os.environ["YDB_PASSWORD"])
    return c


class Official(unittest.TestCase):
    def setUp(self):
        self.driver = ydb.Driver(config())
        self.driver.wait(timeout=PATIENCE, fail_fast=True)
        self.table = "t" + uuid.uuid4().hex

    def tearDown(self):
        self.driver.stop(timeout=PATIENCE)

    def test_rule_03_unsupported_is_not_retried_as_a_connection_error(self):
        start = time.monotonic()
        with self.assertRaises(ydb.issues.Unsupported):
            self.driver.coordination_client.create_node("/local/node")
        self.assertEqual(ydb.ScriptingClient(self.driver).execute_yql("SELECT 1").result_sets[0].rows[0][0], 1)
        self.assertLess(time.monotonic() - start, 5)

    def test_topics(self):
        topics = self.driver.topic_client
        topics.create_topic(self.table, min_active_partitions=2, consumers=["c"])
        with topics.writer(self.table, producer_id="p") as writer:
            writer.write([f"m{i}" for i in range(10)])
        with topics.reader(self.table, "c") as reader:
            for i in range(10):
                message = reader.receive_message(timeout=PATIENCE)
                self.assertEqual(message.data.decode(), f"m{i}")
                reader.commit_with_ack(message)
        self.assertEqual(sum(p.partition_stats.partition_end for p in topics.describe_topic(self.table, include_stats=True).partitions), 10)
        with ydb.QuerySessionPool(self.driver) as pool:
            def write(tx):
                topics.tx_writer(tx, self.table).write("in a transaction")
            pool.retry_tx_sync(write)

            class Stop(Exception):
                pass

            def undo(tx):
                topics.tx_writer(tx, self.table).write("undone")
                raise Stop
            with self.assertRaises(Stop):
                pool.retry_tx_sync(undo)
            with topics.reader(self.table, "c") as reader:
                def read(tx):
                    return [m.data.decode() for m in reader.receive_batch_with_tx(tx, timeout=PATIENCE).messages]
                self.assertEqual(pool.retry_tx_sync(read), ["in a transaction"])
        topics.drop_topic(self.table)
        with self.assertRaises(ydb.issues.SchemeError):
            topics.drop_topic(self.table)

    def test_rules_04_to_06_endpoints(self):
        found = ydb.resolver.DiscoveryEndpointsResolver(config()).resolve()
        nodes = control("/nodes")["nodes"]
        if SIDECAR:
            self.assertEqual([e.endpoint for e in found.endpoints], [os.environ["YDB_ENDPOINT"]])
            self.assertNotIn(found.endpoints[0].node_id, [0] + [n["id"] for n in nodes])
        else:
            self.assertEqual(sorted((e.node_id, e.endpoint) for e in found.endpoints),
                             sorted((n["id"], n["address"]) for n in nodes))
        for e in found.endpoints:
            self.assertFalse(e.ssl)
            # One connection to each endpoint: none for an IP besides its address.
            self.assertEqual([address for address, _ in e.endpoints_with_options()], [e.endpoint])

    def test_rule_07_affinity_on_nine_nodes(self):
        self.assertEqual(len(control("/nodes")["nodes"]), 9)
        endpoints = 1 if SIDECAR else 9
        eventually("the client is connected to all endpoints", lambda: len(self.driver._store.connections) == endpoints)
        forwarded = counters("forwarded")
        with ydb.QuerySessionPool(self.driver, size=30) as pool:
            held = [pool.acquire(timeout=PATIENCE) for _ in range(30)]
            for session in held:
                self.assertEqual(list(session.execute("SELECT 1"))[0].rows[0][0], 1)
            # The sidecar draws nodes by their load, which need not come to an even spread.
            nodes = len({s.node_id for s in held})
            if VIRTUAL:
                self.assertEqual(nodes, 1)
            else:
                self.assertGreaterEqual(nodes, 5 if SIDECAR else 9)
            for session in held:
                pool.release(session)
        self.assertEqual(counters("forwarded"), forwarded)

    def test_rules_09_to_12_sessions_end(self):
        # Stopping cancels the attach streams at about the time of DeleteSession.
        before = len(sessions())
        for _ in range(5):
            with ydb.QuerySessionPool(self.driver, size=10) as pool:
                held = [pool.acquire(timeout=PATIENCE) for _ in range(10)]
                for session in held:
                    list(session.execute("SELECT 1"))
                    pool.release(session)
        eventually("all sessions are deleted", lambda: len(sessions()) == before)

    def test_rules_11_and_12_aio_cancels_before_delete(self):
        async def use():
            driver = ydb.aio.Driver(ydb.DriverConfig(ENDPOINT, DATABASE, credentials=ydb.AccessTokenCredentials("fixed")))
            await driver.wait(timeout=PATIENCE, fail_fast=True)
            async with ydb.aio.QuerySessionPool(driver, size=10) as pool:
                async def one():
                    sets = await pool.execute_with_retries("SELECT 1")
                    return sets[0].rows[0][0]
                self.assertEqual(await asyncio.gather(*[one() for _ in range(30)]), [1] * 30)

                async def interactive(tx):
                    async with await tx.execute("SELECT 2") as parts:
                        return [row[0] async for part in parts for row in part.rows]
                self.assertEqual(await pool.retry_tx_async(interactive), [2])
            await driver.stop(timeout=PATIENCE)

        before = len(sessions())
        asyncio.run(use())
        eventually("all sessions are deleted", lambda: len(sessions()) == before)

    def test_rules_13_and_14_statements_and_transactions(self):
        with ydb.QuerySessionPool(self.driver) as pool:
            self.assertEqual(pool.execute_with_retries(
                f"CREATE TABLE {self.table} (id Uint64, v Utf8, PRIMARY KEY (id))"), [])

            def write(tx):
                with tx.execute(
                        f"DECLARE $id AS Uint64; UPSERT INTO {self.table} (id, v) VALUES ($id, 'a'u)",
                        {"$id": (1, ydb.PrimitiveType.Uint64)}):
                    pass
                with tx.execute(f"SELECT v FROM {self.table} WHERE id = 1ul") as parts:
                    return [row["v"] for part in parts for row in part.rows]
            for mode in (ydb.QuerySerializableReadWrite(), ydb.QuerySnapshotReadWrite()):
                self.assertEqual(pool.retry_tx_sync(write, tx_mode=mode), ["a"])

            class Stop(Exception):
                pass

            def undo(tx):
                with tx.execute(f"UPSERT INTO {self.table} (id, v) VALUES (2ul, 'b'u)"):
                    pass
                raise Stop
            with self.assertRaises(Stop):
                pool.retry_tx_sync(undo)
            with pool.checkout() as session:
                with session.transaction() as tx:
                    with tx.execute(f"UPSERT INTO {self.table} (id) VALUES (3ul)", commit_tx=True):
                        pass
            for mode in (ydb.QuerySnapshotReadOnly(), ydb.QueryStaleReadOnly(), ydb.QueryOnlineReadOnly()):
                with pool.checkout() as session:
                    with session.transaction(mode).execute(
                            f"SELECT id, v FROM {self.table} ORDER BY id", commit_tx=True) as parts:
                        self.assertEqual([(r["id"], r["v"]) for p in parts for r in p.rows], [(1, "a"), (3, None)])
            sets = pool.execute_with_retries("SELECT 1; SELECT 2u AS b, 'x' AS c")
            self.assertEqual([[tuple(r.values()) for r in s.rows] for s in sets], [[(1,)], [(2, b"x")]])
            plan = pool.explain_with_retries(f"SELECT * FROM {self.table}")
            self.assertTrue(json.loads(plan))
            with self.assertRaises(ydb.issues.GenericError):
                pool.execute_with_retries("SELEKT 1")
            with self.assertRaises((ydb.issues.SchemeError, ydb.issues.GenericError)):
                pool.execute_with_retries("SELECT * FROM missing")
            with self.assertRaises(ydb.issues.PreconditionFailed):
                pool.execute_with_retries(f"INSERT INTO {self.table} (id) VALUES (1ul)")

    def test_rules_15_and_16_table_client(self):
        # This client stays at the endpoint that made the session and ignores the id's node.
        path = f"{DATABASE}/{self.table}"
        with ydb.SessionPool(self.driver, size=5) as pool:
            def use(session):
                session.create_table(path, ydb.TableDescription()
                                     .with_column(ydb.Column("id", ydb.PrimitiveType.Uint64))
                                     .with_column(ydb.Column("v", ydb.OptionalType(ydb.PrimitiveType.Utf8)))
                                     .with_primary_key("id"))
                prepared = session.prepare(f"DECLARE $id AS Uint64; UPSERT INTO `{path}` (id, v) VALUES ($id, 'a'u)")
                tx = session.transaction(ydb.SerializableReadWrite())
                tx.execute(prepared, {"$id": 7})
                tx.commit()
                sets = session.transaction(ydb.OnlineReadOnly()).execute(
                    f"SELECT id, v FROM `{path}`", commit_tx=True)
                self.assertEqual([(r.id, r.v) for r in sets[0].rows], [(7, "a")])
                self.assertEqual([c.name for c in session.describe_table(path).columns], ["id", "v"])
                rows = [r for part in session.read_table(path) for r in part.rows]
                self.assertEqual([(r.id, r.v) for r in rows], [(7, "a")])
                self.assertTrue(session.explain(f"SELECT * FROM `{path}`").query_plan)
                self.assertIn("ydb://session/3?node_id=", session.session_id)
                session.keep_alive()
                session.drop_table(path)
            pool.retry_operation_sync(use)

    def test_rule_18_scheme_and_bulk_upsert(self):
        directory = f"{DATABASE}/d{self.table}"
        scheme = self.driver.scheme_client
        scheme.make_directory(directory)
        scheme.make_directory(directory)
        self.assertTrue(scheme.describe_path(directory).is_directory())
        self.assertIn("d" + self.table, [c.name for c in scheme.list_directory(DATABASE).children])
        with ydb.QuerySessionPool(self.driver) as pool:
            pool.execute_with_retries(f"CREATE TABLE `{directory}/t` (id Uint64, v Utf8, PRIMARY KEY (id))")
            types = (ydb.BulkUpsertColumns().add_column("id", ydb.PrimitiveType.Uint64)
                     .add_column("v", ydb.OptionalType(ydb.PrimitiveType.Utf8)))
            self.driver.table_client.bulk_upsert(f"{directory}/t", [{"id": i, "v": str(i)} for i in range(2500)], types)
            self.assertEqual(pool.execute_with_retries(f"SELECT COUNT(*) AS n FROM `{directory}/t`")[0].rows[0]["n"], 2500)
            pool.execute_with_retries(f"DROP TABLE `{directory}/t`")
        scheme.remove_directory(directory)
        with self.assertRaises(ydb.issues.SchemeError):
            scheme.describe_path(directory)

    def test_rule_19_wrong_password(self):
        c = ydb.DriverConfig(ENDPOINT, DATABASE)
        c.credentials = ydb.StaticCredentials(c, os.environ["YDB_USER"], "wrong")
        with ydb.Driver(c) as driver:
            with self.assertRaises((ydb.issues.Unauthorized, ydb.issues.ConnectionError, concurrent.futures.TimeoutError, TimeoutError)):
                driver.wait(timeout=3, fail_fast=True)
            eventually("the client knows why", lambda: "Invalid user name or password" in driver.discovery_debug_details())

    def test_conflicting_writes_are_retried(self):
        with ydb.QuerySessionPool(self.driver, size=8) as pool:
            pool.execute_with_retries(f"CREATE TABLE {self.table} (id Uint64, n Int64, PRIMARY KEY (id))")
            pool.execute_with_retries(f"UPSERT INTO {self.table} (id, n) VALUES (1ul, 0l)")

            def add(tx):
                with tx.execute(f"SELECT n FROM {self.table} WHERE id = 1ul") as parts:
                    n = [row["n"] for part in parts for row in part.rows][0]
                with tx.execute(f"DECLARE $n AS Int64; UPDATE {self.table} SET n = $n WHERE id = 1ul",
                                {"$n": (n + 1, ydb.PrimitiveType.Int64)}):
                    pass
            settings = ydb.RetrySettings(max_retries=100)
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                for done in [threads.submit(pool.retry_tx_sync, add, retry_settings=settings) for _ in range(80)]:
                    done.result(timeout=PATIENCE)
            self.assertEqual(pool.execute_with_retries(f"SELECT n FROM {self.table}")[0].rows[0]["n"], 80)


if __name__ == "__main__":
    unittest.main()

"""The synchronous clients of PyPI's ydb: query sessions, and table sessions."""

import ydb

from steps import DATABASE, ENDPOINT, SQL, TABLES, TEXT, TOKEN, Client, drive

CREDENTIALS = ydb.AccessTokenCredentials(TOKEN) if TOKEN else ydb.AnonymousCredentials()
U = ydb.PrimitiveType.Uint64
RETRY = ydb.RetrySettings(idempotent=True, max_retries=30, slow_backoff_settings=ydb.BackoffSettings(ceiling=4, slot_duration=0.05))
COLUMNS = ydb.BulkUpsertColumns().add_column("id", U).add_column("text", ydb.PrimitiveType.Utf8)
TYPED = {name: ydb.DataQuery(sql, {"$" + p: U for p in ("id", "n") if f"DECLARE ${p} " in sql}) for name, sql in SQL.items()}


def connect():
    driver = ydb.Driver(ydb.DriverConfig(ENDPOINT, DATABASE, credentials=CREDENTIALS))
    driver.wait(timeout=20, fail_fast=True)
    return driver


def dollars(params):
    return {"$" + k: v for k, v in params.items()}


def typed(params):
    return {"$" + k: (v, U) for k, v in params.items()}


def numbers(sets):
    return [list(row.values()) for s in sets for row in s.rows]


def big_rows(ids):
    return [{"id": i, "text": TEXT} for i in ids]


class Query(Client):
    def __init__(self):
        self.driver = connect()
        self.pool = ydb.QuerySessionPool(self.driver, size=10)

    def scheme(self, name):
        self.pool.execute_with_retries(SQL[name], retry_settings=RETRY)

    def run(self, name, **params):
        return numbers(self.pool.execute_with_retries(SQL[name], typed(params), retry_settings=RETRY))

    def bulk(self, ids):
        ydb.retry_operation_sync(lambda: self.driver.table_client.bulk_upsert(f"{DATABASE}/{TABLES}big", big_rows(ids), COLUMNS), RETRY)

    def stream(self, begin, each):
        def read(session):
            begin()
            with session.execute(SQL["big"]) as parts:
                for part in parts:
                    for row in part.rows:
                        each(row.id)
        self.pool.retry_operation_sync(read, RETRY)

    def tx(self, body):
        def run(tx):
            def statement(name, params):
                with tx.execute(SQL[name], typed(params)) as parts:
                    return numbers(parts)
            drive(body, statement)
        self.pool.retry_tx_sync(run, retry_settings=RETRY)

    def cancel(self):
        with self.pool.checkout() as session:
            parts = session.execute(SQL["big"])
            seen = len(next(parts).rows)
            parts.cancel()
            return seen

    def close(self):
        self.pool.stop()
        self.driver.stop(timeout=20)


class Table(Query):
    def __init__(self):
        self.driver = connect()
        self.pool = ydb.SessionPool(self.driver, size=10)

    def scheme(self, name):
        self.pool.retry_operation_sync(lambda session: session.execute_scheme(SQL[name]), RETRY)

    def run(self, name, **params):
        return self.pool.retry_operation_sync(
            lambda session: numbers(session.transaction(ydb.SerializableReadWrite()).execute(TYPED[name], dollars(params), commit_tx=True)), RETRY)

    def stream(self, begin, each):
        def read():
            begin()
            for part in self.driver.table_client.scan_query(SQL["big"]):
                for row in part.result_set.rows:
                    each(row.id)
        ydb.retry_operation_sync(read, RETRY)

    def tx(self, body):
        def run(session):
            # Not "with": it hides why a commit failed behind another error.
            tx = session.transaction(ydb.SerializableReadWrite()).begin()
            try:
                drive(body, lambda name, params: numbers(tx.execute(TYPED[name], dollars(params))))
            except ydb.Error:
                raise  # it has ended the transaction
            except BaseException:
                tx.rollback()
                raise
            tx.commit()
        self.pool.retry_operation_sync(run, RETRY)

    def prepared(self, ids):
        def run(session):
            statement = session.prepare(SQL["one"])
            return [numbers(session.transaction().execute(statement, {"$id": i}, commit_tx=True))[0][0] for i in ids]
        return self.pool.retry_operation_sync(run, RETRY)

    def cancel(self):
        parts = self.driver.table_client.scan_query(SQL["big"])
        seen = len(next(parts).result_set.rows)
        parts.cancel()
        return seen

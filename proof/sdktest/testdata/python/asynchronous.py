"""The asyncio clients of PyPI's ydb: query sessions, and table sessions. A loop in a thread of its own runs them."""

import asyncio
import threading

import ydb
import ydb.aio

from steps import DATABASE, ENDPOINT, SQL, TABLES, Client, drive_async
from sync import COLUMNS, CREDENTIALS, RETRY, TYPED, big_rows, dollars, numbers, typed


class Query(Client):
    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.wait(self.open())

    def wait(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def open(self):
        self.driver = ydb.aio.Driver(ydb.DriverConfig(ENDPOINT, DATABASE, credentials=CREDENTIALS))
        await self.driver.wait(timeout=20, fail_fast=True)
        self.pool = self.new_pool()

    def new_pool(self):
        return ydb.aio.QuerySessionPool(self.driver, size=10)

    def scheme(self, name):
        self.wait(self.pool.execute_with_retries(SQL[name], retry_settings=RETRY))

    def run(self, name, **params):
        return numbers(self.wait(self.pool.execute_with_retries(SQL[name], typed(params), retry_settings=RETRY)))

    def bulk(self, ids):
        self.wait(ydb.retry_operation_async(lambda: self.driver.table_client.bulk_upsert(f"{DATABASE}/{TABLES}big", big_rows(ids), COLUMNS), RETRY))

    def stream(self, begin, each):
        async def read(session):
            begin()
            async with await session.execute(SQL["big"]) as parts:
                async for part in parts:
                    for row in part.rows:
                        each(row.id)
        self.wait(self.pool.retry_operation_async(read, RETRY))

    def tx(self, body):
        async def run(tx):
            async def statement(name, params):
                async with await tx.execute(SQL[name], typed(params)) as parts:
                    return numbers([part async for part in parts])
            await drive_async(body, statement)
        self.wait(self.pool.retry_tx_async(run, retry_settings=RETRY))

    def cancel(self):
        async def run():
            async with self.pool.checkout() as session:
                parts = await session.execute(SQL["big"])
                seen = len((await parts.next()).rows)
                parts.cancel()
                return seen
        return self.wait(run())

    def close(self):
        async def run():
            await self.pool.stop()
            await self.driver.stop(timeout=20)
        self.wait(run())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Table(Query):
    def new_pool(self):
        return ydb.aio.SessionPool(self.driver, size=10)

    def retry(self, work):
        return self.wait(self.pool.retry_operation(work, retry_settings=RETRY))

    def scheme(self, name):
        self.retry(lambda session: session.execute_scheme(SQL[name]))

    def run(self, name, **params):
        return numbers(self.retry(lambda session: session.transaction(ydb.SerializableReadWrite()).execute(TYPED[name], dollars(params), commit_tx=True)))

    def stream(self, begin, each):
        async def read():
            begin()
            async for part in await self.driver.table_client.scan_query(SQL["big"]):
                for row in part.result_set.rows:
                    each(row.id)
        self.wait(ydb.retry_operation_async(read, RETRY))

    def tx(self, body):
        async def run(session):
            # Not "async with": it hides why a commit failed behind another error.
            tx = session.transaction(ydb.SerializableReadWrite())
            await tx.begin()

            async def statement(name, params):
                return numbers(await tx.execute(TYPED[name], dollars(params)))
            try:
                await drive_async(body, statement)
            except ydb.Error:
                raise  # it has ended the transaction
            except BaseException:
                await tx.rollback()
                raise
            await tx.commit()
        self.retry(run)

    def prepared(self, ids):
        async def run(session):
            statement = await session.prepare(SQL["one"])
            return [numbers(await session.transaction().execute(statement, {"$id": i}, commit_tx=True))[0][0] for i in ids]
        return self.retry(run)

    def cancel(self):
        async def run():
            parts = await self.driver.table_client.scan_query(SQL["big"])
            seen = len((await parts.next()).result_set.rows)
            parts.cancel()
            return seen
        return self.wait(run())

"""A transaction of YDB's official Python client that is begun, written in, and never ended.

YDB_URL says where, YDB_SERVICE by which service: query or table. If YDB_APPLICATION names the application
that the session is made for, nothing is begun: a statement is run, and the session is held.
"""

import os
import time

import ydb

SQL = "UPSERT INTO held (id) VALUES (1ul)"


def main():
    config = ydb.DriverConfig(os.environ["YDB_URL"], "/local")
    driver = ydb.Driver(config)
    driver.wait(timeout=20, fail_fast=True)
    if "YDB_APPLICATION" in os.environ:
        settings = ydb.BaseRequestSettings().with_header("x-ydb-application-name", os.environ["YDB_APPLICATION"])
        session = ydb.QuerySession(driver).create(settings)
        with session.execute("SELECT 1") as sets:
            list(sets)
    elif os.environ["YDB_SERVICE"] == "query":
        session = ydb.QuerySession(driver).create()
        tx = session.transaction(ydb.QuerySerializableReadWrite()).begin()
        with tx.execute(SQL) as sets:
            list(sets)
    else:
        session = driver.table_client.session().create()
        tx = session.transaction(ydb.SerializableReadWrite()).begin()
        tx.execute(SQL)
    print("ready", flush=True)
    time.sleep(600)


main()

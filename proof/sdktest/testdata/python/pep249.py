"""What is built on PyPI's ydb: ydb-dbapi, and ydb-sqlalchemy on that. Both read a result whole before they give its first row."""

import threading

import sqlalchemy as sa
import ydb
import ydb_dbapi
from ydb_sqlalchemy import sqlalchemy as ydb_sa

from steps import DATABASE, HOST, PORT, SQL, TABLES, TOKEN, Client, drive
from sync import COLUMNS, RETRY, big_rows, typed

TICKET = {"token": TOKEN} if TOKEN else None
SHORT = ydb.BaseRequestSettings().with_timeout(0.1)  # seconds
LONG = f"{SQL['big']};" * 20  # takes far longer


class DBAPI(Client):
    """A connection for each thread, as their documentation says."""

    def __init__(self):
        self.local, self.all = threading.local(), []
        self.connection()

    def connection(self):
        if not hasattr(self.local, "connection"):
            self.local.connection = ydb_dbapi.connect(host=HOST, port=PORT, database=DATABASE, credentials=TICKET)
            self.local.connection.set_ydb_retry_settings(RETRY)
            self.all.append(self.local.connection)
        return self.local.connection

    def status(self, err):
        return getattr(err, "original_error", err).status.name

    def retry(self, work):
        def unwrapped():
            try:
                return work(self.connection())
            except ydb_dbapi.Error as err:
                raise err.original_error or err
        return ydb.retry_operation_sync(unwrapped, RETRY)

    def scheme(self, name):
        with self.connection().cursor() as cursor:
            cursor.execute_scheme(SQL[name])

    def run(self, name, **params):
        with self.connection().cursor() as cursor:
            cursor.execute(SQL[name], typed(params))
            return [list(row) for row in cursor.fetchall()]

    def bulk(self, ids):
        self.retry(lambda connection: connection.bulk_upsert(f"{TABLES}big", big_rows(ids), COLUMNS))

    def stream(self, begin, each):
        begin()
        with self.connection().cursor() as cursor:
            cursor.execute(SQL["big"])
            while rows := cursor.fetchmany(1000):
                for row in rows:
                    each(row[0])

    def tx(self, body):
        def run(connection):
            connection.set_isolation_level(ydb_dbapi.IsolationLevel.SERIALIZABLE)
            connection.begin()
            try:
                def statement(name, params):
                    with connection.cursor() as cursor:
                        cursor.execute(SQL[name], typed(params))
                        return [list(row) for row in cursor.fetchall()]
                drive(body, statement)
                connection.commit()
            except BaseException:
                connection.rollback()
                raise
            finally:
                connection.set_isolation_level(ydb_dbapi.IsolationLevel.AUTOCOMMIT)
        self.retry(run)

    def cancel(self):
        """By its deadline."""
        connection = self.connection()
        connection.set_ydb_request_settings(SHORT)
        try:
            connection.cursor().execute(LONG)
        except ydb_dbapi.OperationalError:
            return 1
        finally:
            connection.set_ydb_request_settings(ydb.BaseRequestSettings())

    def close(self):
        for connection in self.all:
            connection.close()


METADATA = sa.MetaData()
FEW = sa.Table(f"{TABLES}few", METADATA, sa.Column("id", ydb_sa.types.UInt64, primary_key=True), sa.Column("n", ydb_sa.types.UInt64))
BIG = sa.Table(f"{TABLES}big", METADATA, sa.Column("id", ydb_sa.types.UInt64, primary_key=True), sa.Column("text", sa.Unicode))

SOME, LARGE = FEW.alias("few"), BIG.alias("big")  # a path with slashes is no name for its columns


class SQLAlchemy(Client):
    """SQLAlchemy's pool of connections, tables made and found by its own words."""

    COUNT = sa.select(sa.func.count()).select_from
    BY_NAME = {
        "upsert": ydb_sa.upsert(FEW).values(id=sa.bindparam("id"), n=sa.bindparam("n")),
        "insert": sa.insert(FEW).values(id=sa.bindparam("id"), n=sa.bindparam("n")),
        "few": sa.select(SOME).where(SOME.c.id < 100).order_by(SOME.c.id),
        "one": sa.select(SOME.c.n).where(SOME.c.id == sa.bindparam("id")),
        "count few": COUNT(SOME).where(SOME.c.id < 100),
        "count load": COUNT(SOME).where(SOME.c.id >= 100),
        "count big": COUNT(LARGE),
        "big": sa.select(LARGE),
        "delete few": sa.delete(FEW),
    }

    def __init__(self):
        self.engine = sa.create_engine(f"yql+ydb://{HOST}:{PORT}{DATABASE}", pool_size=10, connect_args={"credentials": TICKET})
        with self.engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))

    def status(self, err):
        err = getattr(err, "orig", err)
        return getattr(err, "original_error", err).status.name

    def retry(self, work):
        return ydb_sa.retry_ydb_operation(work, max_retries=30, idempotent=True)

    def connect(self):
        return self.engine.connect().execution_options(ydb_retry_settings=RETRY)

    def scheme(self, name):
        what, table = name.split()
        table = METADATA.tables[TABLES + table]
        (table.create if what == "create" else table.drop)(self.engine)
        found = sa.inspect(self.engine)
        assert found.has_table(table.name) == (what == "create")
        if what == "create":
            assert [c["name"] for c in found.get_columns(table.name)] == [c.name for c in table.columns]
            assert found.get_pk_constraint(table.name)["constrained_columns"] == ["id"]
            assert found.get_indexes(table.name) == []
            assert table.name in found.get_table_names()

    def run(self, name, **params):
        def work():
            with self.connect() as connection:
                result = connection.execute(self.BY_NAME[name], params)
                return [list(row) for row in result] if result.returns_rows else []
        return self.retry(work)

    def bulk(self, ids):
        """Rows go as one parameter."""
        rows = ydb_sa.types.ListType(ydb_sa.types.StructType({"id": ydb_sa.types.UInt64, "text": sa.Unicode}))
        statement = ydb_sa.upsert(BIG).from_select(["id", "text"], sa.select(sa.column("id"), sa.column("text")).select_from(
            sa.func.AS_TABLE(sa.bindparam("rows", type_=rows))))

        def work():
            with self.connect() as connection:
                connection.execute(statement, {"rows": big_rows(ids)})
        self.retry(work)

    def stream(self, begin, each):
        def work():
            begin()
            with self.connect() as connection:
                for row in connection.execute(self.BY_NAME["big"]).yield_per(1000):
                    each(row.id)
        self.retry(work)

    def tx(self, body):
        def work():
            with self.engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection, connection.begin():
                def statement(name, params):
                    result = connection.execute(self.BY_NAME[name], params)
                    return [list(row) for row in result] if result.returns_rows else []
                drive(body, statement)
        self.retry(work)

    def cancel(self):
        """By its deadline."""
        with self.engine.connect().execution_options(ydb_request_settings=SHORT) as connection:
            try:
                connection.execute(sa.text(LONG))
            except sa.exc.OperationalError:
                return 1

    def close(self):
        self.engine.dispose()

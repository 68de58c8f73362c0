"""Calls a sidecar with the client that openapi-python-client generated as sidecar_client: check.py URL"""

import io
import sys
from typing import TypeVar

from sidecar_client import Client
from sidecar_client.api.default import (
    batch,
    begin,
    bulk_upsert,
    commit,
    execute,
    key_value_get,
    key_value_put,
    status,
    transact,
)
from sidecar_client.models import (
    BatchRequest,
    BatchResponse,
    BatchStatement,
    BeginRequest,
    BeginResponse,
    BulkRow,
    BulkUpsertRequest,
    BulkUpsertResponse,
    CommitRequest,
    CommitResponse,
    ExecuteRequest,
    ExecuteResponse,
    Params,
    Problem,
    RowObject,
    Statement,
    StatusResponse,
    StatusResponseState,
    TransactRequest,
    TransactResponse,
    TxSelector,
    Types,
)
from sidecar_client.types import File

T = TypeVar("T")


def want(kind: type[T], reply: object) -> T:
    """The reply of a call that must give this kind of it."""
    assert isinstance(reply, kind), f"{reply!r}; want {kind.__name__}"
    return reply


def main(url: str) -> None:
    with Client(base_url=url) as client:

        def run(request: ExecuteRequest) -> ExecuteResponse:
            return want(ExecuteResponse, execute.sync(client=client, body=request))

        def values(sql: str, **params: object) -> list[dict[str, object]]:
            reply = run(ExecuteRequest(sql=sql, params=Params.from_dict(params)))
            assert reply.truncated is False
            return [want(RowObject, row).to_dict() for row in reply.rows]

        assert want(StatusResponse, status.sync(client=client)).state == StatusResponseState.SERVING
        run(ExecuteRequest(sql="CREATE TABLE python (id Uint64, name Utf8, PRIMARY KEY (id))"))

        rows = values("SELECT $a + 1 AS b, $c AS c", a=41, c="text")
        assert rows == [{"b": "42", "c": "text"}], rows

        insert = "UPSERT INTO python (id, name) VALUES ($id, $name)"

        def statement(number: int, name: str) -> Statement:
            return Statement(
                sql=insert, params=Params.from_dict({"id": number, "name": name}), types=Types.from_dict({"id": "Uint64", "name": "Utf8"})
            )

        both = transact.sync(client=client, body=TransactRequest(statements=[statement(1, "one"), statement(2, "two")]))
        assert len(want(TransactResponse, both).results) == 2

        opened = want(BeginResponse, begin.sync(client=client, body=BeginRequest()))
        third = statement(3, "three")
        run(ExecuteRequest(sql=third.sql, params=third.params, types=third.types, tx=TxSelector(id=opened.tx.id, seq=1)))
        want(CommitResponse, commit.sync(opened.tx.id, client=client, body=CommitRequest()))
        names = [row["name"] for row in values("SELECT name FROM python ORDER BY name")]
        assert names == ["one", "three", "two"], names

        outcomes = batch.sync(client=client, body=BatchRequest(statements=[BatchStatement(sql="SELECT 1 AS a"), BatchStatement(sql="SELECT nothing")]))
        good, bad = want(BatchResponse, outcomes).results
        assert isinstance(good.rows, list) and want(RowObject, good.rows[0])["a"] == 1, good
        assert want(Problem, bad.error).code, bad

        more = BulkUpsertRequest(table="python", rows=[BulkRow.from_dict({"id": 4, "name": "four"})])
        assert want(BulkUpsertResponse, bulk_upsert.sync(client=client, body=more)).rows == 1

        put = key_value_put.sync_detailed("names", client=client, id=["5"], body=File(payload=io.BytesIO(b"five")))
        assert put.status_code in (201, 204), put
        assert want(File, key_value_get.sync("names", client=client, id=["5"])).payload.read() == b"five"
        assert want(Problem, key_value_get.sync("names", client=client, id=["6"])).code == "KEY_NOT_FOUND"

        wrong = want(Problem, execute.sync(client=client, body=ExecuteRequest(sql="SELECT nothing")))
        assert wrong.status == 400 and wrong.code == "YDB_GENERIC_ERROR" and wrong.message and wrong.safe_to_retry is False, wrong


main(sys.argv[1])

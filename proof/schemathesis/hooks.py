"""Hooks of schemathesis: they make the description that a sidecar serves as precise as the tables of run.py allow.

openapi.yaml cannot say which tables there are, what their columns take, or which transactions are open. Here each of these gets
the names and forms that are valid, so that a request that fits must succeed, and one that does not must be refused.
"""

import json
import re
import threading
from collections.abc import MutableMapping

import schemathesis

UINT64 = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
ITEM = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": UINT64,
        "name": {"type": ["string", "null"]},
        "n": {"type": ["integer", "null"], "minimum": -(2**31), "maximum": 2**31 - 1},
    },
}
# They only read, so that every mode takes them.
STATEMENTS = [
    "SELECT id, name, n FROM items ORDER BY id LIMIT 5",
    "SELECT 1 AS one",
    "SELECT 1 AS one; SELECT 'two' AS two",
]

# All that is valid, as far as requests are made at random: what does not fit must be refused. An empty text is as if the member or
# the header were absent, as everywhere in proto3.
DURATION = {"type": "string", "pattern": r"^(\+?(([0-9]{1,3}(\.[0-9]{0,5})?|\.[0-9]{1,5})(ns|us|ms|s|m|h))+)?$"}


REQUESTS = [
    "ExecuteRequest", "TransactRequest", "Statement", "Expect", "TxSelector", "BeginTx", "Limits", "BatchRequest", "BatchStatement",
    "BeginRequest", "CommitRequest", "RollbackRequest", "BulkUpsertRequest", "ExplainRequest", "KvBatchGetRequest",
]  # fmt: skip


def one_of(*names: str) -> dict:
    return {"type": "string", "enum": list(names)}


@schemathesis.hook
def before_load_schema(ctx, raw_schema):
    paths, parts = raw_schema["paths"], raw_schema["components"]
    parameters, schemas = parts["parameters"], parts["schemas"]

    parameters["KvTable"]["schema"] = one_of("drafts", "bytes")
    parameters["KvId"]["schema"] = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string"}}
    parameters["TxID"]["schema"] = {"type": "string", "pattern": "^tx_[A-Za-z0-9_-]{32}$"}
    parameters["SchemaPath"]["schema"] = one_of("items", "users")
    parameters["BulkTable"]["schema"] = one_of("items", "")
    parameters["RequestTimeout"]["schema"] = DURATION
    for name in ["Priority", "Rows", "Ints"]:
        parameters[name]["schema"]["enum"].append("")
    ingest = paths["/v1/ingest/{table}"]["post"]
    for parameter in ingest["parameters"]:
        if parameter.get("name") == "table":
            parameter["schema"] = one_of("items")
    lines = ingest["responses"]["200"]["content"]["application/x-ndjson"]
    lines["schema"] = {"type": "array", "minItems": 1, "items": lines["schema"]}
    del lines["examples"]  # of one line each

    for name in ["Mode", "TxMode", "PriorityClass", "StatsMode", "RowForm", "IntForm"]:
        schemas[name]["enum"].append("")
    schemas["Duration"] = DURATION
    schemas["BulkRow"] = ITEM
    schemas["BulkUpsertRequest"]["properties"]["table"] = one_of("items")
    schemas["KvBatchGetRequest"]["properties"]["ids"]["items"] = {"type": "string"}
    for name in ["ExecuteRequest", "Statement", "ExplainRequest"]:  # a batch answers for each statement by itself
        schemas[name]["properties"]["sql"] = one_of(*STATEMENTS)
    nothing = {"type": "object", "additionalProperties": False, "properties": {}}  # the statements have no parameters
    schemas["Params"] = schemas["Types"] = nothing
    schemas["Limits"]["properties"]["bytes"] = {"oneOf": [UINT64, one_of("8MiB", "1KiB")]}
    schemas["Limits"]["properties"]["rows"] = UINT64
    schemas["Expect"]["properties"]["rows"] = UINT64
    # One transaction of its own for each call: those of others are for the paths that name them.
    schemas["TxSelector"] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["begin"],
        "properties": {"begin": {"$ref": "#/components/schemas/BeginTx"}, "commit": {"type": "boolean"}, "seq": {"enum": [0, 1]}},
    }
    for name in REQUESTS:
        for member, schema in schemas[name]["properties"].items():
            if member not in schemas[name].get("required", []):
                schemas[name]["properties"][member] = {"anyOf": [schema, {"type": "null"}]}  # as if it were absent
    for name in ["BeginRequest", "CommitRequest", "RollbackRequest"]:  # a body that may be left out may be null
        schemas[name]["type"] = ["object", "null"]


OPEN: list[str] = []  # transactions that calls opened, newest last
GUARD = threading.Lock()


def is_positive(case) -> bool:
    return case.meta is None or case.meta.generation.mode.is_positive


def lengthen(fields, name: str) -> None:
    """Adds nine seconds to a valid timeout, so that no call meets its deadline."""
    value = fields.get(name) if isinstance(fields, MutableMapping) else None
    if isinstance(value, str) and value and re.search(DURATION["pattern"], value):
        fields[name] = value + "9s"


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """Gives a request that fits what the description has no words for: an open transaction, the table of rows as lines."""
    lengthen(case.headers, "Request-Timeout")
    if isinstance(case.body, dict):
        case.body = dict(case.body)  # it may be an example of the description
        lengthen(case.body, "timeout")
    if case.headers:  # HTTP servers themselves refuse an Expect that they do not know, with 417 (RFC 9110, 10.1.1)
        case.headers.pop("Expect", None)
    if not is_positive(case):
        return
    if "{id}" in case.path:
        with GUARD:
            if OPEN:
                case.path_parameters["id"] = OPEN.pop()
    if case.path in ("/v1/query", "/v1/tx") and isinstance(case.body, dict) and case.body.get("tx"):
        case.body = {**case.body, "mode": None}  # it is that of tx.begin
    if case.path == "/v1/bulk" and case.media_type == "application/x-ndjson":
        case.query = {**(case.query or {}), "table": "items"}


@schemathesis.hook
def after_call(ctx, case, response):
    if response.status_code == 200 and response.headers.get("Content-Type", [""])[0].startswith("application/json"):
        tx = response.json().get("tx")
        if isinstance(tx, dict):
            with GUARD:
                OPEN.append(tx["id"])
                del OPEN[:-20]


@schemathesis.serializer("application/x-ndjson")
def write_lines(ctx, value):
    return (json.dumps(value) + "\n").encode()


@schemathesis.deserializer("application/x-ndjson")
def read_lines(ctx, response):
    return [json.loads(line) for line in response.content.splitlines()]


@schemathesis.deserializer("application/octet-stream")
def read_bytes(ctx, response):
    return response.content.decode("latin-1")

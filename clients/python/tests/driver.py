"""Makes the calls of the contract table with this package: proof/contract/driver.md has the protocol.

driver.py URL
"""

import base64
import datetime
import decimal
import json
import queue
import re
import sys
import uuid

import ydb_sidecar
from ydb_sidecar import SidecarError, Statement, Typed
from ydb_sidecar._values import to_text

MEMBERS = ("code", "status", "message", "ydb_status", "safe_to_retry", "outcome_unknown", "hint", "operator_hint", "trace_id")


def argument(value):
    """A value of the protocol as Python's."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    return {
        "int": int,
        "float": float,
        "bytes": base64.b64decode,
        "list": lambda items: [argument(item) for item in items],
        "struct": named,
        "typed": lambda typed: Typed(typed["type"], argument(typed["value"])),
    }[kind](inner)


def named(values):
    return {name: argument(value) for name, value in (values or {}).items()}


def plain(value):
    """Python's value as replies have it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (datetime.date, datetime.timedelta, uuid.UUID)):
        return to_text(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def seconds(text):
    """A timeout of the API as a number of seconds. Whatever is no duration goes to the package, which has to refuse it."""
    found = re.fullmatch(r"([\d.]+)(ns|us|ms|s|m|h)", text or "")
    if not found:
        return text or None
    return float(found[1]) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}[found[2]]


def selector(args):
    tx = args.get("tx")
    if tx is None:
        return None
    out = {name: tx[name] for name in ("id", "seq", "commit") if tx.get(name)}
    if tx.get("begin"):
        out["begin"] = {"mode": tx.get("mode") or ""}
    return out


def problem(error):
    out = {name: getattr(error, name) for name in MEMBERS}
    out.update(issues=len(error.issues), retry_after_ms=round(error.retry_after * 1000))
    return out


def rows_of(one):
    return {
        "columns": [{"name": column.name, "type": column.type} for column in one.columns],
        "rows": [[plain(value) for value in row.values()] for row in one.rows],
        "truncated": one.truncated,
    }


def ends_of(one):
    """What a result and the end of a stream have."""
    out = {
        "info": {"node": one.info.node_id, "attempts": one.info.attempts, "trace_id": one.info.trace_id, "units": one.info.consumed_units},
        "stats": one.stats is not None,
        "read_rows": sum(int(table.get("read_rows", 0)) for table in (one.stats or {}).get("tables", ())),
        "affected": one.rows_affected,
        "truncated": one.truncated,
    }
    if one.tx_id:
        out["tx"] = {"id": one.tx_id, "expires_ms": round(getattr(one, "tx_expires", 1) * 1000)}
    return out


def result(one):
    out = {**rows_of(one), **ends_of(one)}
    if len(one.sets) > 1:
        out["sets"] = [rows_of(each) for each in one.sets]
    return out


def outcome(one):
    return {"error": problem(one.error)} if one.error else result(one.result)


def how(args):
    return {
        "types": args.get("types"), "mode": args.get("mode", ""), "timeout": seconds(args.get("timeout")), "max_rows": args.get("rows", 0),
        "max_bytes": args.get("bytes", 0), "stats": args.get("stats", ""), "priority": args.get("priority", ""), "tx": selector(args),
    }  # fmt: skip


class Driver:
    def __init__(self, db):
        self.db, self.rows, self.acks, self.parts = db, None, None, []

    def execute(self, args):
        return result(self.db.query(args["sql"], named(args.get("params")), idempotent=args.get("idempotent", False), **how(args)))

    def stream(self, args):
        sets, lines, failed = [], [], None
        with self.db.stream(args["sql"], named(args.get("params")), **how(args)) as rows:
            try:
                for row in rows:
                    while len(sets) <= rows.set:
                        sets.append({"columns": [{"name": one.name, "type": one.type} for one in rows.columns], "rows": []})
                        lines.append("columns")
                    if lines[-1] != "rows":
                        lines.append("rows")
                    sets[rows.set]["rows"].append([plain(value) for value in row.values()])
            except SidecarError as error:
                failed = error
        if rows.ended:
            lines.append("end")
        reply = {**ends_of(rows), **(sets[0] if sets else {}), "lines": lines, "end_rows": rows.count}
        if len(sets) > 1:
            reply["sets"] = sets
        return reply, failed

    def transact(self, args):
        options = how(args)
        options.pop("types")
        statements = [Statement(one["sql"], named(one.get("params")), one.get("types"), one.get("expect")) for one in args["statements"]]
        results = self.db.tx(statements, idempotent=args.get("idempotent", False), **options)
        return {"results": [result(one) for one in results]}

    def batch(self, args):
        statements = [
            Statement(
                one["sql"], named(one.get("params")), one.get("types"), None, one.get("mode", ""), one.get("idempotent", False),
                one.get("rows", 0), one.get("bytes", 0),
            )
            for one in args["statements"]
        ]  # fmt: skip
        return {"results": [outcome(one) for one in self.db.batch(statements)]}

    # The calls of interactive transactions by their token, which Transaction makes for apps.

    def raw(self, name, body, keeps=False):
        client = self.db._client
        from ydb_sidecar._connect import options_of

        options = options_of(client._settings, None, "", "")
        options.keeps = keeps
        return ydb_sidecar._net.run(client._transport.call(name, body, options))

    def begin(self, args):
        return self.raw("begin", {"mode": args.get("mode", "")})["tx"]

    def commit(self, args):
        self.raw("commit", {"id": args["id"]}, keeps=True)
        return {}

    def rollback(self, args):
        self.raw("rollback", {"id": args["id"]})
        return {}

    def get_transaction(self, args):
        from ydb_sidecar.aio import _state

        got = ydb_sidecar._net.run(_state(self.db._client, args["id"]))
        return {"id": got.id, "expires_ms": round(got.expires * 1000), "seq": got.seq, "mode": got.mode, "node": got.node_id}

    def bulk(self, args):
        return {"rows": self.db.bulk(args["table"], [named(row) for row in args["rows"]], types=args.get("types"))}

    def explain(self, args):
        return {"plan": self.db.explain(args["sql"], types=args.get("types")).plan}

    def describe(self, args):
        got = self.db.describe(args["path"])
        columns = [{"name": one.name, "type": one.type, "not_null": one.not_null} for one in got.columns]
        return {"path": got.path, "columns": columns, "primary_key": got.primary_key, "indexes": [one.name for one in got.indexes]}

    def status(self, _):
        return dict(self.db.status())

    def version(self, _):
        return self.db.version()._asdict()

    def table(self, args):
        return self.db.kv(args["table"]), tuple(argument(part) for part in args["id"] or ()), args.get("match"), args.get("none_match")

    def kv_get(self, args):
        table, key, match, none_match = self.table(args)
        entry = table.get(key, match=match, none_match=none_match)
        if entry is None:
            return {"missing": True}
        value = None if entry.value is None else plain(entry.value)
        return {"value": value, "not_modified": entry.not_modified, "version": entry.version, "content_type": entry.content_type}

    def kv_put(self, args):
        table, key, match, none_match = self.table(args)
        done = table.put(key, base64.b64decode(args["value"] or ""), match=match, none_match=none_match)
        return {"created": done.created, "version": done.version}

    def kv_delete(self, args):
        table, key, match, none_match = self.table(args)
        table.delete(key, match=match, none_match=none_match)
        return {}

    def kv_batch_get(self, args):
        keys = [tuple(argument(part) for part in key) for key in args["ids"] or ()]
        got = self.db.kv(args["table"], text=args["text"]).get_many(keys)
        items = []
        for one in got.items:
            value = one.value.encode() if isinstance(one.value, str) else one.value
            items.append({"id": one.key, "value": None if value is None else plain(value), "version": one.version})
        return {"items": items, "missing": got.missing}

    def ingest_open(self, args):
        self.rows, self.parts = queue.Queue(), []
        given = iter(self.rows.get, None)
        self.acks = self.db.ingest(args["table"], given, offset=args["offset"], stream=args["stream"])
        return {}

    def ingest_send(self, args):
        for row in args["rows"]:
            self.rows.put({name: argument(value) for name, value in zip(args["columns"], row)})
        return {}

    def ingest_close_send(self, _):
        self.rows.put(None)
        return {}

    def ingest_next(self, _):
        if not self.parts:
            ack = next(self.acks, None)
            if ack is None:
                return {"done": True}
            self.parts += [{"offset": one.offset, "refused": problem(one.error)} for one in ack.refused]
            if ack.done:
                self.refused = getattr(self, "refused", 0) + len(ack.refused)
                self.parts.append({"end": {"next": ack.next, "rows": ack.rows, "refused": self.refused}})
            else:
                self.refused = getattr(self, "refused", 0) + len(ack.refused)
                self.parts.append({"next": ack.next})
        return self.parts.pop(0)

    def ingest_close(self, _):
        self.rows.put(None)
        self.acks.close()
        self.refused = 0
        return {}


def main():
    url = sys.argv[-1]
    with ydb_sidecar.connect(url, timeout=60) as db:
        driver = Driver(db)
        for line in sys.stdin:
            asked = json.loads(line)
            answer = {}
            try:
                reply = getattr(driver, asked["call"])({name: value for name, value in asked["args"].items() if value is not None})
                if isinstance(reply, tuple):
                    reply, failed = reply
                    if failed is not None:
                        answer["error"] = problem(failed)
                answer["reply"] = reply
            except SidecarError as error:
                answer["error"] = problem(error)
            except (TypeError, ValueError) as error:
                answer["error"] = {"code": "BAD_REQUEST", "local": True, "message": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

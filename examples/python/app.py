#!/usr/bin/env python3
"""A small shop as a service: over gRPC with -url grpc://..., over HTTP with -url http://...

    app.py init                                create and fill the tables
    app.py run --seconds 30 --workers 4        place and process orders; keep a ledger
    app.py check --ledger a.jsonl              compare the tables with the ledgers
    app.py history Name42                      a customer's newest orders
    app.py prices --rows 20000                 writes a feed of prices as a stream, and reads them back
    app.py serve --port 8080                   the same as an HTTP service:
        POST /orders {"customer": "Ann", "lines": {"p000001": 2}}    POST /orders/{id}/process
        GET /customers/{name}/orders

Each prints one JSON line at the end. Exit code 1: what was asked for did not succeed.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time

from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import books
import tracing
from prices import Prices
from shop import GaveUp, Order, Shop
from ydb_sidecar import SidecarError, connect


class Counts:
    """Figures that many threads add to."""

    def __init__(self):
        self._lock = threading.Lock()
        self.done, self.errors, self.worst = Counter(), Counter(), 0.0

    def add(self, what, seconds=0.0):
        with self._lock:
            self.done[what] += 1
            self.worst = max(self.worst, seconds)

    def failed(self, what, error):
        kind = "unknown" if error.outcome_unknown else "safe" if error.safe_to_retry else "final"
        with self._lock:
            self.errors[f"{what} {error.code} {kind}"] += 1


def run(db, args):
    """Places and processes orders until the time is over or SIGTERM comes."""
    counts, ledger, stop = Counts(), books.Ledger(args.ledger[0] if args.ledger else None), threading.Event()
    shop = Shop(db, args.products, args.patience, counts.failed)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())

    def work():
        while not stop.is_set():
            begun = time.monotonic()
            one_customer(shop, ledger, counts)
            counts.add("rounds", time.monotonic() - begun)
            stop.wait(args.pause)

    workers = [threading.Thread(target=work) for _ in range(args.workers)]
    for worker in workers:
        worker.start()
    stop.wait(args.seconds)
    stop.set()
    for worker in workers:
        worker.join()
    ledger.close()
    say({"app": "python", "url": args.url, **counts.done, "errors": counts.errors, "worst_ms": round(counts.worst * 1000)})
    # A try may fail, and an outcome may stay unknown when the patience ends. An error that
    # repeating does not mend is a fault of the app or the tables.
    return not any(key.endswith(" final") and "PRECONDITION_FAILED" not in key for key in counts.errors)


def one_customer(shop, ledger, counts):
    """A customer orders, most orders are processed, some customers look at their history."""
    order = shop.new_order()
    if shop.keep_draft(order):
        lines = shop.read_draft(order.id)
        counts.add("drafts" if lines == order.lines else "drafts unread" if lines is None else "draft differs")
    ledger.write(books.TRYING, order)
    try:
        shop.place(order)
    except GaveUp as error:
        ledger.write(books.UNKNOWN if error.unknown else books.REFUSED, order)
        counts.add("gave up")
        return
    ledger.write(books.PLACED, order)
    counts.add("placed")
    shop.drop_draft(order.id)
    if random.random() < 0.8:
        try:
            outcome = shop.process(order.id)
            ledger.write(outcome, order)
            counts.add(outcome)
        except GaveUp:
            ledger.write(books.UNKNOWN, order)
            counts.add("gave up")
    if random.random() < 0.2:
        try:
            seen = any(row["id"] == order.id for row in shop.history(order.customer, 100))
            counts.add("history" if seen else "order missing in history")
        except SidecarError as error:
            counts.failed("history", error)


def serve(db, args):
    """The shop as an HTTP service; a caller's traceparent goes on to the sidecar."""
    shop = Shop(db, args.products, args.patience)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = self.path.strip("/").split("/")
            if parts == ["orders"]:
                self.answer("POST /orders", lambda: self.place(json.loads(body)))
            elif len(parts) == 3 and parts[0] == "orders" and parts[2] == "process":
                self.answer("POST /orders/{id}/process", lambda: (200, {"outcome": shop.process(int(parts[1]))}))
            else:
                self.send(404, {"error": "no such page"})

        def do_GET(self):
            parts = self.path.strip("/").split("/")
            if len(parts) == 3 and parts[0] == "customers" and parts[2] == "orders":
                self.answer("GET /customers/{name}/orders", lambda: (200, {"orders": shop.history(unquote(parts[1]))}))
            else:
                self.send(404, {"error": "no such page"})

        def place(self, asked):
            order = shop.new_order(str(asked["customer"]))
            order = Order(order.id, order.customer, {str(k): int(v) for k, v in asked["lines"].items()})
            shop.place(order)
            return 201, {"id": str(order.id)}

        def answer(self, name, work):
            try:
                with tracing.span(name, self.headers.get("traceparent", "")):
                    self.send(*work())
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                self.send(400, {"error": repr(error)})
            except GaveUp as error:
                # 500 tells the caller to look before repeating, 503 that nothing was kept.
                self.send(500 if error.unknown else 503, {"error": str(error), "unknown": error.unknown})
            except SidecarError as error:
                self.send(503 if error.safe_to_retry else 500, {"error": str(error), "trace_id": error.trace_id})

        def send(self, status, body):
            data = json.dumps(body, default=str).encode()  # dates as text
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: threading.Thread(target=server.shutdown).start())
    say({"app": "python", "url": args.url, "serving": "%s:%d" % server.server_address})
    server.serve_forever()
    return True


def init(db, args):
    say({"created": Shop(db, args.products).init(args.quantity)})
    return True


def check(db, args):
    wrong, counts = books.check(Shop(db, args.products), args.ledger, args.quantity, args.complete)
    say({"ok": not wrong, **counts, "wrong": wrong[:20], "wrong_count": len(wrong)})
    return not wrong


def history(db, args):
    say({"orders": Shop(db, args.products, args.patience).history(args.customer)})
    return True


def prices(db, args):
    rows = Prices(db, args.products, args.patience, args.url).write(args.rows)
    say({"app": "python", "url": args.url, **rows})
    return not rows["wrong"] and not rows["refused"]


def say(what):
    print(json.dumps(what, default=str), flush=True)  # dates as text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["init", "run", "check", "history", "serve", "prices"])
    parser.add_argument("customer", nargs="?", default="Name10000")
    parser.add_argument("--url", default=os.environ.get("SHOP_URL", "grpc://127.0.0.1:7400"))
    parser.add_argument("--products", type=int, default=100)
    parser.add_argument("--quantity", type=int, default=1000, help="of each product at the start")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between a worker's customers")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds for one operation with all its tries")
    parser.add_argument("--ledger", action="append", default=[], help="run: the file to write; check: files to read")
    parser.add_argument("--complete", action="store_true", help="check: the ledgers are all there are")
    parser.add_argument("--rows", type=int, default=20000, help="prices: of the feed")
    parser.add_argument("--port", type=int, default=8080, help="serve: on 127.0.0.1; 0 picks a free one")
    args = parser.parse_args()
    db, end_tracing = connect(args.url, traceparent=tracing.traceparent), tracing.start("shop-python")
    try:
        good = {"init": init, "run": run, "check": check, "history": history, "serve": serve, "prices": prices}[args.command](db, args)
    except SidecarError as error:
        good = False
        print(f"{error} (trace {error.trace_id})", file=sys.stderr)
    finally:
        db.close()
        end_tracing()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

"""A small shop on three tables: stock, orders, orderLines. A fourth, drafts, is read and
written by its key alone, without SQL.

It shows what an app has to decide by itself, in place() and process(): what to do
when a transaction fails, and when nobody knows whether it did.
"""

import datetime
import json
import os
import random
import secrets

from dataclasses import dataclass
from tracing import span
from ydb_sidecar import Backoff, SidecarError, Statement, TransactionLost

CUSTOMERS = 10_000
INITIAL = "initial"  # the customer of the orders that init() makes

# SHOP_DIRECTORY is the absolute path of a directory of the database for the tables; without it they are in its root.
DIRECTORY = os.environ.get("SHOP_DIRECTORY", "")
WHERE = f'PRAGMA TablePathPrefix("{DIRECTORY}");' if DIRECTORY else ""  # begins each statement

TABLES = WHERE + """
CREATE TABLE IF NOT EXISTS stock (
    product Utf8, quantity Int64, PRIMARY KEY (product)
);
CREATE TABLE IF NOT EXISTS orders (
    id Uint64, customer Utf8, created Datetime, processed Datetime,
    PRIMARY KEY (id), INDEX ix_cust GLOBAL ON (customer, created) COVER (processed)
);
CREATE TABLE IF NOT EXISTS orderLines (
    id_order Uint64, product Utf8, quantity Int64, PRIMARY KEY (id_order, product)
);
CREATE TABLE IF NOT EXISTS drafts (
    id Uint64, lines Json, PRIMARY KEY (id)
) WITH (KEY_BLOOM_FILTER = ENABLED);
"""

ADD_PRODUCTS = WHERE + """
DECLARE $products AS List<Struct<product: Utf8, quantity: Int64>>;
INSERT INTO stock SELECT product, quantity FROM AS_TABLE($products);
"""

ADD_ORDER = WHERE + """
DECLARE $id AS Uint64;
DECLARE $customer AS Utf8;
DECLARE $created AS Datetime;
INSERT INTO orders (id, customer, created) VALUES ($id, $customer, $created);
"""

ADD_LINES = WHERE + """
DECLARE $id AS Uint64;
DECLARE $lines AS List<Struct<product: Utf8, quantity: Int64>>;
UPSERT INTO orderLines SELECT $id AS id_order, product, quantity FROM AS_TABLE($lines);
"""

READ_ORDER = WHERE + """
DECLARE $id AS Uint64;
SELECT processed FROM orders WHERE id = $id;
SELECT product, quantity FROM orderLines WHERE id_order = $id;
"""

READ_STOCK = WHERE + """
DECLARE $products AS List<Utf8>;
SELECT product, quantity FROM stock WHERE product IN $products;
"""

TAKE = WHERE + """
DECLARE $id AS Uint64;
DECLARE $now AS Datetime;
DECLARE $stock AS List<Struct<product: Utf8, quantity: Int64>>;
UPSERT INTO stock SELECT product, quantity FROM AS_TABLE($stock);
UPSERT INTO orders (id, processed) VALUES ($id, $now);
"""

FIND_ORDER = WHERE + """
DECLARE $id AS Uint64;
SELECT customer, processed FROM orders WHERE id = $id;
"""

HISTORY = WHERE + """
DECLARE $customer AS Utf8;
DECLARE $limit AS Uint64;
SELECT id, customer, created, processed FROM orders VIEW ix_cust
WHERE customer = $customer ORDER BY customer DESC, created DESC LIMIT $limit;
"""


@dataclass
class Order:
    id: int
    customer: str
    lines: dict  # product -> quantity


class GaveUp(Exception):
    """The time was over, or the error is one that repeating does not mend."""

    def __init__(self, error, unknown):
        super().__init__(str(error))
        self.error = error
        self.unknown = unknown  # True: the order may be in the database; False: it surely is not


class Shop:
    def __init__(self, db, products=100, patience=10.0, on_error=lambda what, error: None):
        self._db = db
        self._products = products
        self._patience = patience  # seconds for one operation with all its tries
        self._on_error = on_error  # told of every failed try
        self._drafts = True        # until the sidecar says that it does not open the table

    def init(self, quantity=1000, orders=100):
        """Creates the tables and fills them, once: whoever comes second finds it done."""
        self._db.query(TABLES, idempotent=True, timeout=30)
        stock = [{"product": product(i), "quantity": quantity} for i in range(self._products)]
        made = [self.new_order(INITIAL) for _ in range(orders)]
        work = [Statement(ADD_PRODUCTS, {"products": stock})]
        for order in made:
            work.append(Statement(ADD_ORDER, _order_params(order)))
            work.append(Statement(ADD_LINES, _line_params(order)))
        backoff = Backoff(30)
        while True:
            try:
                # One transaction: the sidecar repeats it as a whole when that is safe. Products
                # are inserted, so a second run of the same work changes nothing.
                self._db.tx(work, timeout=30)
                return True
            except SidecarError as error:
                self._on_error("init", error)
                if error.ydb_status == "PRECONDITION_FAILED":
                    return False  # the products are there: another app was first
                if not (error.safe_to_retry or error.outcome_unknown) or not backoff.wait(error.retry_after):
                    raise

    def new_order(self, customer=None):
        """An order of random products; nothing is sent."""
        customer = customer or f"Name{random.randint(1, CUSTOMERS)}"
        count = max(1, round(random.expovariate(1.6) * 2))
        products = random.sample(range(self._products), min(count, self._products))
        return Order(secrets.randbits(64), customer, {product(i): 1 for i in products})

    def keep_draft(self, order):
        """Keeps what a customer is about to order; True if it is kept. It may be lost, so nothing is repeated here."""
        return self._draft(lambda drafts: drafts.put(order.id, json.dumps(order.lines), timeout=self._patience) and True)

    def read_draft(self, order_id):
        """The lines of a draft; None if there is none, or if it cannot be read now."""
        row = self._draft(lambda drafts: drafts.get(order_id, timeout=self._patience))
        return json.loads(row.value) if row else None

    def drop_draft(self, order_id):
        self._draft(lambda drafts: drafts.delete(order_id, timeout=self._patience))

    def _draft(self, call):
        if not self._drafts:
            return None
        try:
            return call(self._db.kv("drafts", text=True))
        except SidecarError as error:
            if error.code == "TABLE_NOT_OPEN":
                self._drafts = False  # kv.tables of this sidecar does not have it: the shop works without
            else:
                self._on_error("draft", error)
            return None

    def place(self, order):
        """Returns when the order is in the database, once. Raises GaveUp."""
        backoff, unknown = Backoff(self._patience), False
        while True:
            try:
                with span("place order"), self._db.begin(timeout=max(0.1, backoff.left())) as tx:
                    tx.query(ADD_ORDER, _order_params(order))
                    tx.query(ADD_LINES, _line_params(order), commit=True)
                return
            except SidecarError as error:
                self._on_error("place", error)
                unknown = unknown or error.outcome_unknown
                # The id is the app's and INSERT refuses it a second time. So after an unknown
                # outcome the order may be sent again under the SAME id, whatever became of the
                # first try; looking first tells whether that is needed.
                if unknown and self._exists(order.id, backoff):
                    return
                again = error.safe_to_retry or error.outcome_unknown or isinstance(error, TransactionLost)
                if not again or not backoff.wait(error.retry_after):
                    raise GaveUp(error, unknown) from error

    def process(self, order_id):
        """Takes the order's lines from the stock, once.

        Returns "processed", "short" (not enough in stock: nothing changed) or "gone"
        (no such order). Raises GaveUp.
        """
        backoff, unknown = Backoff(self._patience), False
        while True:
            try:
                with span("process order"), self._db.begin(timeout=max(0.1, backoff.left())) as tx:
                    return self._process(tx, order_id)
            except SidecarError as error:
                self._on_error("process", error)
                unknown = unknown or error.outcome_unknown
                # Beginning again is the look: the transaction reads whether the order is processed.
                again = error.safe_to_retry or error.outcome_unknown or isinstance(error, TransactionLost)
                if not again or not backoff.wait(error.retry_after):
                    raise GaveUp(error, unknown) from error

    def _process(self, tx, order_id):
        order, lines = tx.query(READ_ORDER, {"id": order_id}).sets
        if not order.rows:
            return "gone"
        if order.rows[0]["processed"] is not None:
            return "processed"
        wanted = {row["product"]: row["quantity"] for row in lines.rows}
        stock = {row["product"]: row["quantity"]
                 for row in tx.query(READ_STOCK, {"products": list(wanted)}).rows}
        left = [{"product": name, "quantity": stock.get(name, 0) - count} for name, count in wanted.items()]
        if any(one["quantity"] < 0 for one in left):
            return "short"
        tx.query(TAKE, {"id": order_id, "now": now(), "stock": left}, commit=True)
        return "processed"

    def history(self, customer, limit=10):
        """The customer's newest orders, newest first."""
        with span("history"):
            return self._db.query(HISTORY, {"customer": customer, "limit": limit},
                                    mode="snapshot_ro", idempotent=True, timeout=self._patience).rows

    def rows(self, table, columns):
        """All rows of a table, streamed."""
        return self._db.stream(WHERE + f"SELECT {columns} FROM {table}", mode="snapshot_ro", timeout=60)

    def _exists(self, order_id, backoff):
        while True:
            try:
                return bool(self._db.query(FIND_ORDER, {"id": order_id}, idempotent=True, mode="serializable_rw",
                                             timeout=max(0.1, backoff.left())).rows)
            except SidecarError as error:
                self._on_error("look", error)
                if not error.safe_to_retry or not backoff.wait(error.retry_after):
                    raise GaveUp(error, unknown=True) from error


def product(i):
    return f"p{i:06d}"


def now():
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


def _order_params(order):
    return {"id": order.id, "customer": order.customer, "created": now()}


def _line_params(order):
    return {"id": order.id, "lines": [{"product": name, "quantity": n} for name, n in order.lines.items()]}

"""The ledger an app keeps of what it was promised, and the check of the tables against it."""

import json
import os
import threading

from collections import Counter
from shop import INITIAL

# What a ledger line says of an order. Each is written before the app acts on it.
TRYING, PLACED, REFUSED, UNKNOWN, PROCESSED, SHORT = "trying", "placed", "refused", "unknown", "processed", "short"


class Ledger:
    """One JSON line for each thing learnt about an order; safe for any number of threads."""

    def __init__(self, path):
        self._lock = threading.Lock()
        self._file = open(path or os.devnull, "a", encoding="utf-8")

    def write(self, state, order):
        line = json.dumps({"order": str(order.id), "state": state, "customer": order.customer, "lines": order.lines})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self):
        self._file.close()


def check(shop, ledgers, quantity, complete=False):
    """Compares the tables with the ledgers. Returns what is wrong, a line each, and some counts.

    Run it when no app is writing. With `complete` the ledgers are those of every app that
    ever wrote, so an order in none of them was placed twice under two ids.
    """
    stock = {row["product"]: row["quantity"] for row in shop.rows("stock", "product, quantity")}
    orders = {row["id"]: row for row in shop.rows("orders", "id, customer, processed")}
    lines = {}
    for row in shop.rows("orderLines", "id_order, product, quantity"):
        lines.setdefault(row["id_order"], {})[row["product"]] = row["quantity"]
    wrong = _stock(stock, orders, lines, quantity) + _orders(orders, lines)
    if ledgers:
        wrong += _promises(orders, lines, _read(ledgers), complete)
    return wrong, {"orders": len(orders), "processed": sum(o["processed"] is not None for o in orders.values()),
                   "sold": sum(quantity - left for left in stock.values())}


def _stock(stock, orders, lines, quantity):
    """Sold = lines of processed orders, and nothing below zero."""
    sold = Counter()
    for order_id, order in orders.items():
        if order["processed"] is not None:
            sold.update(lines.get(order_id, {}))
    wrong = [f"{name}: {left} left" for name, left in stock.items() if left < 0]
    wrong += [f"{name}: stock says {quantity - left} sold, processed orders say {sold[name]}"
              for name, left in stock.items() if quantity - left != sold[name]]
    return wrong + [f"{name}: sold, but not in stock" for name in sold if name not in stock]


def _orders(orders, lines):
    """An order and its lines are written in one transaction: never one without the other."""
    wrong = [f"order {one} has no lines" for one in orders if one not in lines]
    return wrong + [f"lines of order {one} without it" for one in lines if one not in orders]


def _promises(orders, lines, ledger, complete):
    """No acknowledged order lost or changed, no refused one kept, none that nobody asked for."""
    wrong = []
    for order_id, (states, said) in ledger.items():
        found = orders.get(order_id)
        if PLACED in states and found is None:
            wrong.append(f"order {order_id} was acknowledged and is lost")
        if REFUSED in states and found is not None:
            wrong.append(f"order {order_id} was refused, nothing kept, and is there")
        if found is not None and lines.get(order_id) != said["lines"]:
            wrong.append(f"order {order_id}: asked for {said['lines']}, kept {lines.get(order_id)}")
        if PROCESSED in states and (found is None or found["processed"] is None):
            wrong.append(f"order {order_id} was reported processed and is not")
        if SHORT in states and PROCESSED not in states and UNKNOWN not in states and found and found["processed"] is not None:
            wrong.append(f"order {order_id} was reported short and is processed")
    return wrong + [f"order {one} is in no ledger: placed twice?" for one, order in orders.items()
                    if complete and one not in ledger and order["customer"] != INITIAL]


def _read(paths):
    ledger = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    continue  # the app was killed while it wrote
                said = json.loads(line)
                states, _ = ledger.setdefault(int(said["order"]), (set(), said))
                states.add(said["state"])
    return ledger

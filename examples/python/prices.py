"""A feed of prices: many rows a second, in order, of which the last one of each product counts.

The shop writes it as a stream (Ingest). The sidecar gathers the rows into batches and says how
far it has come. What it has not acknowledged when the stream breaks, because the sidecar is
replaced or a node is lost, is sent again.
"""

import os
import zlib

from shop import DIRECTORY, WHERE, product
from ydb_sidecar import Backoff, SidecarError

TABLE = WHERE + "CREATE TABLE IF NOT EXISTS prices (feed Uint32, product Utf8, price Int64, note Utf8, PRIMARY KEY (feed, product))"


class Prices:
    def __init__(self, db, products, patience, name):
        self._db, self._products, self._patience = db, products, patience
        self._feed = zlib.crc32(f"python {name}".encode())  # each app has its own

    def row(self, n):
        """Row n of the feed. Few have a note; the others leave the one that there is."""
        row = {"feed": self._feed, "product": product(n * 7919 % self._products), "price": 100 + n}
        if n % 10 == 0:
            row["note"] = f"since row {n}"
        return row

    def write(self, count):
        """Writes rows 0 to count, each at least once and in order; then compares the table with them."""
        self._db.query(TABLE, idempotent=True, timeout=30)
        done, refused, broken, backoff = 0, 0, 0, Backoff(self._patience)
        while done < count:
            try:
                rows = (self.row(n) for n in range(done, count))
                for ack in self._db.ingest(os.path.join(DIRECTORY, "prices"), rows, offset=done, stream=f"feed {self._feed}"):
                    done, backoff = ack.next, Backoff(self._patience)
                    refused += len(ack.refused)
            except SidecarError as error:
                broken += 1
                if not error.safe_to_retry or not backoff.wait(error.retry_after):
                    raise
        return {"rows": done, "refused": refused, "broken": broken, "wrong": self._wrong(count)}

    def _wrong(self, count):
        want = {}
        for n in range(count):
            row = self.row(n)
            want.setdefault(row["product"], {}).update(row)
        got = self._db.query(WHERE + "SELECT product, price, note FROM prices WHERE feed = $feed", {"feed": self._feed},
                             mode="snapshot_ro")
        got = {row.product: (row.price, row.note) for row in got}
        return sum(got.get(name) != (row["price"], row.get("note")) for name, row in want.items())

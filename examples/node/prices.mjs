// A feed of prices: many rows a second, in order, of which the last one of each product counts.
//
// The shop writes it as a stream (Ingest). The sidecar gathers the rows into batches and says how far it
// has come. When the stream breaks, because the sidecar is replaced or a node is lost, the package resumes it:
// what was not acknowledged is sent again.
import { createHash } from 'node:crypto';
import { posix } from 'node:path';
import { DIRECTORY, WHERE, product } from './shop.mjs';

const TABLE = WHERE + 'CREATE TABLE IF NOT EXISTS prices (feed Uint32, product Utf8, price Int64, note Utf8, PRIMARY KEY (feed, product))';

export class Prices {
  #db; #products; #patience; #feed;

  constructor(db, { products, patience, name }) {
    [this.#db, this.#products, this.#patience] = [db, products, patience];
    this.#feed = createHash('sha256').update(`node ${name}`).digest().readUInt32LE(); // each app has its own
  }

  // Row n of the feed. Few have a note; the others leave the one that there is.
  row(n) {
    const row = { feed: this.#feed, product: product((n * 7919) % this.#products), price: 100 + n };
    if (n % 10 === 0) row.note = `since row ${n}`;
    return row;
  }

  * rows(from, to) {
    for (let n = from; n < to; n++) yield this.row(n);
  }

  // Writes rows 0 to count, each at least once and in order; then compares the table with them.
  async write(count) {
    await this.#db.query(TABLE, {}, { idempotent: true, timeout: 30_000 });
    const did = { rows: 0, refused: 0, broken: 0 };
    const options = { stream: `feed ${this.#feed}`, patience: this.#patience, onRetry: () => did.broken++ };
    for await (const part of this.#db.ingest(posix.join(DIRECTORY, 'prices'), (from) => this.rows(from, count), options)) {
      if ('ack' in part) did.rows = part.ack;
      if ('end' in part) [did.rows, did.refused] = [part.end.next, part.end.refused];
    }
    return { ...did, wrong: await this.#wrong(count) };
  }

  async #wrong(count) {
    const want = new Map();
    for (const row of this.rows(0, count)) want.set(row.product, { ...want.get(row.product), ...row });
    const { rows } = await this.#db.query(WHERE + 'SELECT product, price, note FROM prices WHERE feed = $feed', { feed: this.#feed }, { mode: 'snapshot_ro' });
    const got = new Map(rows.map((row) => [row.product, row]));
    return [...want.values()].filter((row) => got.get(row.product)?.price !== BigInt(row.price) || (got.get(row.product).note ?? undefined) !== row.note).length;
  }
}

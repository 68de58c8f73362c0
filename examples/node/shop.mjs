// A small shop on three tables: stock, orders, orderLines. A fourth, drafts, is read and written by
// its key alone, without SQL.
//
// It shows what an app has to decide by itself, in place() and process(): what to do when a
// transaction fails, and when nobody knows whether it did.
import { randomBytes } from 'node:crypto';
import { env } from 'node:process';
import { AlreadyExistsError, SidecarError, retry } from 'ydb-sidecar';
import { traced, traceparent } from './tracing.mjs';

export const INITIAL = 'initial'; // the customer of the orders that init() makes
const CUSTOMERS = 10_000;

// SHOP_DIRECTORY is the absolute path of a directory of the database for the tables; without it they are in its root.
export const DIRECTORY = env.SHOP_DIRECTORY ?? '';
export const WHERE = DIRECTORY && `PRAGMA TablePathPrefix("${DIRECTORY}");`; // begins each statement

const TABLES = `${WHERE}
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
) WITH (KEY_BLOOM_FILTER = ENABLED);`;

const ADD_PRODUCTS = `${WHERE}
DECLARE $products AS List<Struct<product: Utf8, quantity: Int64>>;
INSERT INTO stock SELECT product, quantity FROM AS_TABLE($products);`;

const ADD_ORDER = `${WHERE}
DECLARE $id AS Uint64;
DECLARE $customer AS Utf8;
DECLARE $created AS Datetime;
INSERT INTO orders (id, customer, created) VALUES ($id, $customer, $created);`;

const ADD_LINES = `${WHERE}
DECLARE $id AS Uint64;
DECLARE $lines AS List<Struct<product: Utf8, quantity: Int64>>;
UPSERT INTO orderLines SELECT $id AS id_order, product, quantity FROM AS_TABLE($lines);`;

const READ_ORDER = `${WHERE}
DECLARE $id AS Uint64;
SELECT processed FROM orders WHERE id = $id;
SELECT product, quantity FROM orderLines WHERE id_order = $id;`;

const READ_STOCK = `${WHERE}
DECLARE $products AS List<Utf8>;
SELECT product, quantity FROM stock WHERE product IN $products;`;

const TAKE = `${WHERE}
DECLARE $id AS Uint64;
DECLARE $now AS Datetime;
DECLARE $stock AS List<Struct<product: Utf8, quantity: Int64>>;
UPSERT INTO stock SELECT product, quantity FROM AS_TABLE($stock);
UPSERT INTO orders (id, processed) VALUES ($id, $now);`;

const FIND_ORDER = `${WHERE}
DECLARE $id AS Uint64;
SELECT customer, processed FROM orders WHERE id = $id;`;

const HISTORY = `${WHERE}
DECLARE $customer AS Utf8;
DECLARE $limit AS Uint64;
SELECT id, customer, created, processed FROM orders VIEW ix_cust
WHERE customer = $customer ORDER BY customer DESC, created DESC LIMIT $limit;`;

// The time was over, or the error is one that repeating does not mend. unknown: the order may be
// in the database; otherwise it surely is not.
export class GaveUp extends Error {
  constructor(error, unknown) {
    super(error.message, { cause: error });
    this.unknown = unknown;
  }
}

export class Shop {
  #db; #kept; #products; #patience; #onError;
  #drafts = true; // until the sidecar says that it does not open the table

  // patience: ms for one operation with all its tries; onError is told of every failed try.
  constructor(db, { products = 100, patience = 10_000, onError = () => {} } = {}) {
    [this.#db, this.#kept, this.#products, this.#patience, this.#onError] = [db, db.kv('drafts', 'json'), products, patience, onError];
  }

  // Creates the tables and fills them, once: whoever comes second finds it done.
  async init(quantity = 1000, orders = 100) {
    await this.#db.query(TABLES, {}, { idempotent: true, timeout: 30_000 });
    const products = Array.from({ length: this.#products }, (_, i) => ({ product: product(i), quantity }));
    const work = [{ sql: ADD_PRODUCTS, params: { products } }];
    for (let i = 0; i < orders; i++) {
      const order = this.newOrder(INITIAL);
      work.push({ sql: ADD_ORDER, params: orderParams(order) }, { sql: ADD_LINES, params: lineParams(order) });
    }
    try {
      // One transaction: the sidecar repeats it as a whole when that is safe. Products are
      // inserted, so a second run of the same work changes nothing.
      await retry(({ left }) => this.#db.transact(work, { timeout: left() }), { idempotent: true, onRetry: (error) => this.#failed('init', error) });
      return true;
    } catch (error) {
      if (error instanceof AlreadyExistsError) return false; // the products are there: another app was first
      throw error;
    }
  }

  // An order of random products; nothing is sent.
  newOrder(customer = `Name${1 + Math.floor(Math.random() * CUSTOMERS)}`) {
    const count = Math.max(1, Math.round((-Math.log(1 - Math.random()) / 1.6) * 2));
    const lines = {};
    for (let i = 0; i < count; i++) lines[product(Math.floor(Math.random() * this.#products))] = 1;
    return { id: randomBytes(8).readBigUInt64LE(), customer, lines };
  }

  // Keeps what a customer is about to order; resolves to true if it is kept. It may be lost, so nothing is repeated here.
  async keepDraft(order) {
    return this.#draft(() => this.#kept.put(order.id, order.lines, { timeout: this.#patience }).then(() => true));
  }

  // The lines of a draft; undefined if there is none, or if it cannot be read now.
  async readDraft(id) {
    return (await this.#draft(() => this.#kept.get(id, { timeout: this.#patience })))?.value;
  }

  async dropDraft(id) {
    await this.#draft(() => this.#kept.delete(id, { timeout: this.#patience }));
  }

  async #draft(call) {
    if (!this.#drafts) return undefined;
    try {
      return await call();
    } catch (error) {
      if (error.code === 'TABLE_NOT_OPEN') this.#drafts = false; // kv.tables of this sidecar does not have it: the shop works without
      else this.#failed('draft', error);
      return undefined;
    }
  }

  // Returns when the order is in the database, once. Throws GaveUp.
  async place(order) {
    const end = Date.now() + this.#patience;
    let unknown = false;
    for (;;) {
      try {
        // The package runs the work again when nothing was kept.
        await this.#transaction('place', end, async (tx) => {
          await tx.query(ADD_ORDER, orderParams(order));
          await tx.query(ADD_LINES, lineParams(order), { commit: true });
        });
        return;
      } catch (error) {
        this.#failed('place', error);
        unknown ||= error.outcomeUnknown;
        // The id is the app's and INSERT refuses it a second time. So after an unknown outcome the
        // order may be sent again under the SAME id, whatever became of the first try; looking
        // first tells whether that is needed.
        if (unknown && await this.#exists(order.id, end)) return;
        if (!error.outcomeUnknown || Date.now() >= end) throw new GaveUp(error, unknown);
      }
    }
  }

  // Takes the order's lines from the stock, once. Resolves to 'processed', 'short' (not enough in
  // stock: nothing changed) or 'gone' (no such order). Throws GaveUp.
  async process(id) {
    let unknown = false;
    try {
      // It may happen twice: beginning again reads whether the order is processed.
      return await this.#transaction('process', Date.now() + this.#patience, (tx) => process(tx, id), {
        idempotent: true, onRetry: (error) => { unknown ||= error.outcomeUnknown; },
      });
    } catch (error) {
      this.#failed('process', error);
      throw new GaveUp(error, unknown || error.outcomeUnknown);
    }
  }

  // The customer's newest orders, newest first.
  async history(customer, limit = 10) {
    const options = { mode: 'snapshot_ro', idempotent: true, timeout: this.#patience };
    return (await traced(() => this.#db.query(HISTORY, { customer, limit }, { ...options, traceparent: traceparent() }))).rows;
  }

  // All rows of a table, streamed.
  rows(table, columns) {
    return this.#db.stream(`${WHERE}SELECT ${columns} FROM ${table}`, {}, { mode: 'snapshot_ro', timeout: 60_000 });
  }

  async #exists(id, end) {
    const options = { idempotent: true, mode: 'serializable_rw', traceparent: traceparent() };
    try {
      const found = await retry(({ left }) => this.#db.query(FIND_ORDER, { id }, { ...options, timeout: left() }),
        { timeout: Math.max(100, end - Date.now()), onRetry: (error) => this.#failed('look', error) });
      return found.rows.length > 0;
    } catch (error) {
      this.#failed('look', error);
      throw new GaveUp(error, true);
    }
  }

  #transaction(what, end, work, { onRetry = () => {}, ...options } = {}) {
    const told = (error) => {
      this.#failed(what, error);
      onRetry(error);
    };
    return traced(() => this.#db.transaction(work, { ...options, timeout: end - Date.now(), traceparent: traceparent(), onRetry: told }));
  }

  #failed(what, error) {
    if (!(error instanceof SidecarError)) throw error; // a fault of this program
    this.#onError(what, error);
  }
}

async function process(tx, id) {
  const [order, lines] = (await tx.query(READ_ORDER, { id })).sets;
  if (order.rows.length === 0) return 'gone';
  if (order.rows[0].processed !== null) return 'processed';
  const products = lines.rows.map((row) => row.product);
  const found = await tx.query(READ_STOCK, { products });
  const stock = new Map(found.rows.map((row) => [row.product, Number(row.quantity)]));
  const left = lines.rows.map((row) => ({
    product: row.product, quantity: (stock.get(row.product) ?? 0) - Number(row.quantity) }));
  if (left.some((one) => one.quantity < 0)) return 'short';
  await tx.query(TAKE, { id, now: now(), stock: left }, { commit: true });
  return 'processed';
}

export function product(i) {
  return `p${String(i).padStart(6, '0')}`;
}

function now() {
  return new Date().toISOString().slice(0, 19) + 'Z';
}

function orderParams({ id, customer }) {
  return { id, customer, created: now() };
}

function lineParams({ id, lines }) {
  return { id, lines: Object.entries(lines).map(([name, quantity]) => ({ product: name, quantity })) };
}

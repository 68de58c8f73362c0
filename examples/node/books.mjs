// The ledger an app keeps of what it was promised, and the check of the tables against it.
import fs from 'node:fs';
import { INITIAL } from './shop.mjs';

// One JSON line for each thing learnt about an order: trying, placed, refused, unknown, processed, short.
// "trying" is written before the order is sent.
export class Ledger {
  #file;

  constructor(path) {
    this.#file = path ? fs.openSync(path, 'a') : undefined;
  }

  write(state, { id, customer, lines }) {
    if (this.#file === undefined) return;
    fs.writeSync(this.#file, JSON.stringify({ order: String(id), state, customer, lines }) + '\n');
  }

  close() {
    if (this.#file !== undefined) fs.closeSync(this.#file);
  }
}

// Compares the tables with the ledgers when no app is writing: what is wrong, a line each, and some counts.
// complete: the ledgers are those of every app that ever wrote, so an order in none of them was placed
// twice under two ids.
export async function check(shop, ledgers, quantity, complete) {
  const stock = new Map(), orders = new Map(), lines = new Map();
  for await (const row of shop.rows('stock', 'product, quantity')) stock.set(row.product, Number(row.quantity));
  for await (const row of shop.rows('orders', 'id, customer, processed')) orders.set(String(row.id), row);
  for await (const row of shop.rows('orderLines', 'id_order, product, quantity')) {
    const order = String(row.id_order);
    if (!lines.has(order)) lines.set(order, {});
    lines.get(order)[row.product] = Number(row.quantity);
  }
  const wrong = [...books(stock, orders, lines, quantity)];
  if (ledgers.length > 0) wrong.push(...promises(orders, lines, read(ledgers), complete));
  const processed = [...orders.values()].filter((order) => order.processed !== null).length;
  const sold = [...stock.values()].reduce((sum, left) => sum + quantity - left, 0);
  return { wrong, counts: { orders: orders.size, processed, sold } };
}

// Sold = lines of processed orders, nothing below zero, never an order without its lines or the reverse.
function* books(stock, orders, lines, quantity) {
  const sold = new Map();
  for (const [id, order] of orders) {
    if (!lines.has(id)) yield `order ${id} has no lines`;
    if (order.processed === null) continue;
    for (const [name, count] of Object.entries(lines.get(id) ?? {})) sold.set(name, (sold.get(name) ?? 0) + count);
  }
  for (const id of lines.keys()) if (!orders.has(id)) yield `lines of order ${id} without it`;
  for (const [name, left] of stock) {
    if (left < 0) yield `${name}: ${left} left`;
    const said = sold.get(name) ?? 0;
    if (quantity - left !== said) yield `${name}: stock says ${quantity - left} sold, processed orders say ${said}`;
  }
  for (const name of sold.keys()) if (!stock.has(name)) yield `${name}: sold, but not in stock`;
}

// No acknowledged order lost or changed, no refused one kept, none that nobody asked for.
function* promises(orders, lines, ledger, complete) {
  for (const [id, { states, said }] of ledger) {
    const found = orders.get(id);
    if (states.has('placed') && !found) yield `order ${id} was acknowledged and is lost`;
    if (states.has('refused') && found) yield `order ${id} was refused, nothing kept, and is there`;
    if (found && !same(lines.get(id), said.lines)) yield `order ${id}: its lines are not what was asked for`;
    if (states.has('processed') && (found?.processed ?? null) === null) yield `order ${id} was reported processed and is not`;
    if (states.has('short') && !states.has('processed') && !states.has('unknown') && (found?.processed ?? null) !== null) {
      yield `order ${id} was reported short and is processed`;
    }
  }
  for (const [id, order] of orders) {
    if (complete && !ledger.has(id) && order.customer !== INITIAL) yield `order ${id} is in no ledger: placed twice?`;
  }
}

function same(kept, asked) {
  const names = Object.keys(asked);
  return kept !== undefined && names.length === Object.keys(kept).length && names.every((name) => kept[name] === asked[name]);
}

function read(paths) {
  const ledger = new Map();
  for (const path of paths) {
    const text = fs.readFileSync(path, 'utf8');
    for (const line of text.split('\n').slice(0, -1)) { // the last piece is empty, or cut when the app was killed
      const said = JSON.parse(line);
      if (!ledger.has(said.order)) ledger.set(said.order, { states: new Set(), said });
      ledger.get(said.order).states.add(said.state);
    }
  }
  return ledger;
}

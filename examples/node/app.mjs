#!/usr/bin/env node
// A small shop as a service: over gRPC with --url grpc://..., over HTTP with --url http://...
//
//   app.mjs init                                create and fill the tables
//   app.mjs run --seconds 30 --workers 4        place and process orders; keep a ledger
//   app.mjs check --ledger a.jsonl              compare the tables with the ledgers
//   app.mjs history Name42                      a customer's newest orders
//   app.mjs prices --rows 20000                 writes a feed of prices as a stream, and reads them back
//   app.mjs serve --port 8081                   the same as an HTTP service:
//       POST /orders {"customer": "Ann", "lines": {"p000001": 2}}    POST /orders/{id}/process
//       GET /customers/{name}/orders
//
// Each prints one JSON line at the end. Exit code 1: what was asked for did not succeed.
import http from 'node:http';
import { isDeepStrictEqual, parseArgs } from 'node:util';
import { SidecarError, connect } from 'ydb-sidecar';
import { Ledger, check as checkBooks } from './books.mjs';
import { Prices } from './prices.mjs';
import { GaveUp, Shop } from './shop.mjs';
import { traced } from './tracing.mjs';

const { values: args, positionals: [command, customer = 'Name10000'] } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: 'string', default: process.env.SHOP_URL ?? 'grpc://127.0.0.1:7400' },
    products: { type: 'string', default: '100' },
    quantity: { type: 'string', default: '1000' }, // of each product at the start
    seconds: { type: 'string', default: '10' },
    workers: { type: 'string', default: '4' },
    pause: { type: 'string', default: '0' }, // seconds between a worker's customers
    patience: { type: 'string', default: '10' }, // seconds for one operation with all its tries
    ledger: { type: 'string', multiple: true, default: [] }, // run: the file to write; check: files to read
    complete: { type: 'boolean', default: false }, // check: the ledgers are all there are
    rows: { type: 'string', default: '20000' }, // prices: of the feed
    port: { type: 'string', default: '8081' }, // serve: on 127.0.0.1; 0 picks a free one
  },
});
const options = { products: Number(args.products), patience: Number(args.patience) * 1000 };
const quantity = Number(args.quantity);

// Figures of a run.
class Counts {
  done = {};
  errors = {};
  worst = 0;

  add(what, ms = 0) {
    this.done[what] = (this.done[what] ?? 0) + 1;
    this.worst = Math.max(this.worst, ms);
  }

  failed(what, error) {
    const key = `${what} ${error.code} ${error.outcomeUnknown ? 'unknown' : error.safeToRetry ? 'safe' : 'final'}`;
    this.errors[key] = (this.errors[key] ?? 0) + 1;
  }
}

// Places and processes orders until the time is over or SIGTERM comes.
async function run(db) {
  const counts = new Counts();
  const ledger = new Ledger(args.ledger[0]);
  const shop = new Shop(db, { ...options, onError: (what, error) => counts.failed(what, error) });
  let stopping = false;
  const timer = setTimeout(() => { stopping = true; }, Number(args.seconds) * 1000);
  for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => { stopping = true; });
  const work = async () => {
    while (!stopping) {
      const begun = Date.now();
      await oneCustomer(shop, ledger, counts);
      counts.add('rounds', Date.now() - begun);
      if (Number(args.pause) > 0) await new Promise((resolve) => setTimeout(resolve, Number(args.pause) * 1000));
    }
  };
  await Promise.all(Array.from({ length: Number(args.workers) }, work));
  clearTimeout(timer);
  ledger.close();
  say({ app: 'node', url: args.url, ...counts.done, errors: counts.errors, worst_ms: counts.worst });
  // A try may fail, and an outcome may stay unknown when the patience ends. An error that
  // repeating does not mend is a fault of the app or the tables.
  return !Object.keys(counts.errors).some((key) => key.endsWith(' final') && !key.includes('PRECONDITION_FAILED'));
}

// A customer orders, most orders are processed, some customers look at their history.
async function oneCustomer(shop, ledger, counts) {
  const order = shop.newOrder();
  if (await shop.keepDraft(order)) {
    const lines = await shop.readDraft(order.id);
    counts.add(!lines ? 'drafts unread' : isDeepStrictEqual(lines, order.lines) ? 'drafts' : 'draft differs');
  }
  ledger.write('trying', order);
  try {
    await shop.place(order);
  } catch (error) {
    if (!(error instanceof GaveUp)) throw error;
    ledger.write(error.unknown ? 'unknown' : 'refused', order);
    counts.add('gave up');
    return;
  }
  ledger.write('placed', order);
  counts.add('placed');
  await shop.dropDraft(order.id);
  if (Math.random() < 0.8) {
    try {
      const outcome = await shop.process(order.id);
      ledger.write(outcome, order);
      counts.add(outcome);
    } catch (error) {
      if (!(error instanceof GaveUp)) throw error;
      ledger.write('unknown', order);
      counts.add('gave up');
    }
  }
  if (Math.random() < 0.2) {
    try {
      const seen = (await shop.history(order.customer, 100)).some((row) => row.id === order.id);
      counts.add(seen ? 'history' : 'order missing in history');
    } catch (error) {
      if (!(error instanceof SidecarError)) throw error;
      counts.failed('history', error);
    }
  }
}

// The shop as an HTTP service; a caller's traceparent goes on to the sidecar.
async function serve(db) {
  const shop = new Shop(db, options);
  const answer = async (request) => {
    const parts = request.url.split('/').slice(1).map(decodeURIComponent);
    if (request.method === 'POST' && parts.length === 1 && parts[0] === 'orders') {
      const asked = await body(request);
      const lines = Object.fromEntries(Object.entries(asked.lines).map(([name, count]) => [name, Number(count)]));
      const order = { ...shop.newOrder(String(asked.customer)), lines };
      await shop.place(order);
      return [201, { id: String(order.id) }];
    }
    if (request.method === 'POST' && parts.length === 3 && parts[0] === 'orders' && parts[2] === 'process') {
      return [200, { outcome: await shop.process(BigInt(parts[1])) }];
    }
    if (request.method === 'GET' && parts.length === 3 && parts[0] === 'customers' && parts[2] === 'orders') {
      return [200, { orders: await shop.history(parts[1]) }];
    }
    return [404, { error: 'no such page' }];
  };
  // 500 tells the caller to look before repeating, 503 that nothing was kept.
  const refuse = (error) => {
    if (error instanceof GaveUp) return [error.unknown ? 500 : 503, { error: error.message, unknown: error.unknown }];
    if (error instanceof SidecarError) return [error.safeToRetry ? 503 : 500, { error: error.message, trace_id: error.traceId }];
    return [400, { error: error.message }];
  };
  const server = http.createServer(async (request, response) => {
    const [status, said] = await traced(() => answer(request).catch(refuse), request.headers.traceparent);
    response.writeHead(status, { 'content-type': 'application/json' }).end(json(said));
  });
  await new Promise((resolve) => server.listen(Number(args.port), '127.0.0.1', resolve));
  say({ app: 'node', url: args.url, serving: `127.0.0.1:${server.address().port}` });
  await new Promise((resolve) => {
    for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => server.close(resolve));
  });
  return true;
}

async function body(request) {
  let text = '';
  for await (const piece of request.setEncoding('utf8')) text += piece;
  return JSON.parse(text);
}

async function init(db) {
  say({ created: await new Shop(db, options).init(quantity) });
  return true;
}

async function check(db) {
  const { wrong, counts } = await checkBooks(new Shop(db, options), args.ledger, quantity, args.complete);
  say({ ok: wrong.length === 0, ...counts, wrong: wrong.slice(0, 20), wrong_count: wrong.length });
  return wrong.length === 0;
}

async function history(db) {
  say({ orders: await new Shop(db, options).history(customer) });
  return true;
}

async function prices(db) {
  const did = await new Prices(db, { ...options, name: args.url }).write(Number(args.rows));
  say({ app: 'node', url: args.url, ...did });
  return did.wrong === 0 && did.refused === 0;
}

// JSON has no bigint; other programs take 64-bit integers as text.
function json(what) {
  return JSON.stringify(what, (_, value) => typeof value === 'bigint' ? String(value) : value);
}

function say(what) {
  process.stdout.write(json(what) + '\n');
}

const work = { init, run, check, history, serve, prices }[command];
if (!work) {
  process.stderr.write('usage: app.mjs init|run|check|history|serve|prices [--url grpc://... or http://...]; see the top of the file\n');
  process.exit(2);
}
const db = connect(args.url);
try {
  if (!await work(db)) process.exitCode = 1;
} catch (error) {
  process.exitCode = 1;
  process.stderr.write(error instanceof SidecarError ? `${error.message} (trace ${error.traceId})\n` : `${error.stack}\n`);
} finally {
  db.close();
}

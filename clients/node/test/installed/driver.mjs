// Makes the calls of the contract table with this package: proof/contract/driver.md has the protocol.
import { createInterface } from 'node:readline';
import { SidecarError, connect, typed } from 'ydb-sidecar';

const db = connect(process.argv.at(-1));

// A source of rows that is filled while it is read.
class Source {
  #rows = [];
  #closed = false;
  #wake = () => {};

  push(...rows) {
    this.#rows.push(...rows);
    this.#wake();
  }

  close() {
    this.#closed = true;
    this.#wake();
  }

  async* [Symbol.asyncIterator]() {
    for (;;) {
      while (this.#rows.length > 0) yield this.#rows.shift();
      if (this.#closed) return;
      await new Promise((resolve) => { this.#wake = resolve; });
    }
  }
}

let open; // the stream of rows that is open

const calls = {
  execute: async (args) => result(await db.query(args.sql, values(args.params), statement(args))),

  async stream(args) {
    const stream = db.stream(args.sql, values(args.params), statement(args));
    const out = { lines: [] };
    const sets = [];
    let failure;
    try {
      for await (const part of stream.parts()) {
        const kind = 'row' in part ? 'rows' : 'columns' in part ? 'columns' : 'end';
        if (out.lines.at(-1) !== 'rows' || kind !== 'rows') out.lines.push(kind);
        if (kind === 'columns') sets.push({ columns: part.columns, rows: [], truncated: false });
        if (kind === 'rows') sets.at(-1).rows.push(part.row);
      }
    } catch (error) {
      failure = problem(error);
    }
    const end = stream.end;
    const first = sets[0] ?? { columns: [], rows: [] };
    Object.assign(out, result({ ...end, ...first, sets, truncated: end?.truncated ?? false }), end && { end_rows: end.rows });
    return { reply: out, ...failure && { error: failure } };
  },

  async transact({ statements, mode, tx, idempotent, timeout, rows }) {
    const list = statements.map((one) => ({ sql: one.sql, params: values(one.params), types: one.types ?? undefined, ...one.expect !== null && { expect: { rows: one.expect } } }));
    const options = { ...mode && { mode }, ...tx && { tx: selector(tx) }, idempotent, ...timed(timeout), ...rows && { limits: { rows } } };
    const answer = await db.transact(list, options);
    return { results: answer.results.map((one) => result(one)) };
  },

  async begin({ mode }) {
    const { id, expiresMs } = await db.begin(mode ? { mode } : {});
    return { id, expires_ms: expiresMs };
  },

  commit: ({ id }) => db.commit(id),
  rollback: ({ id }) => db.rollback(id),

  async get_transaction({ id }) {
    const { tx, seq, mode, nodeId } = await db.getTransaction(id);
    return { id: tx.id, expires_ms: tx.expiresMs, seq, mode, node: nodeId };
  },

  async batch({ statements }) {
    const list = statements.map((one) => ({ sql: one.sql, params: values(one.params), ...statement(one) }));
    return { results: (await db.batch(list)).map((one) => one.error ? { error: problem(one.error) } : result(one)) };
  },

  bulk: async ({ table, rows, types }) => ({ rows: await db.bulk(table, rows.map(values), types ? { types } : {}) }),
  explain: async ({ sql, types }) => ({ plan: (await db.explain(sql, types ? { types } : {})).plan }),

  async describe({ path }) {
    const table = await db.describe(path);
    return {
      path: table.path, primary_key: table.primaryKey, indexes: table.indexes.map((index) => index.name),
      columns: table.columns.map(({ name, type, notNull }) => ({ name, type, not_null: notNull })),
    };
  },

  async status() {
    const { state, database, openTransactions } = await db.status();
    return { state, database, open_transactions: openTransactions };
  },

  version: () => db.version(),

  async kv_get({ table, id, match, none_match: noneMatch }) {
    const found = await db.kv(table, 'bytes').get(id.map(value), tags(match, noneMatch));
    if (!found) return { missing: true };
    return { value: found.value && found.value.toString('base64'), not_modified: found.notModified, version: version(found), content_type: found.contentType };
  },

  async kv_put({ table, id, value: bytes, match, none_match: noneMatch }) {
    const put = await db.kv(table, 'bytes').put(id.map(value), Buffer.from(bytes, 'base64'), tags(match, noneMatch));
    return { value: null, created: put.created, version: version(put) };
  },

  kv_delete: ({ table, id, match, none_match: noneMatch }) => db.kv(table, 'bytes').delete(id.map(value), tags(match, noneMatch)),

  async kv_batch_get({ table, ids, text }) {
    const { items, missing } = await db.kv(table, text ? 'text' : 'bytes').getMany(ids.map((id) => id.map(value)));
    return {
      items: items.map((item) => ({ id: plain(item.id), value: item.value === null ? null : Buffer.from(item.value).toString('base64'), version: version(item) })),
      missing: missing.map(plain),
    };
  },

  ingest_open({ table, offset, stream }) {
    const source = new Source();
    open = { source, parts: db.ingest(table, source, { offset, stream }) };
  },

  ingest_send({ columns, rows }) {
    open.source.push(...rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, value(row[i])]))));
  },

  ingest_close_send: () => open.source.close(),

  async ingest_next() {
    const { done, value: part } = await open.parts.next();
    if (done) return { done };
    if ('ack' in part) return { next: part.ack };
    if ('refused' in part) return { offset: part.refused, refused: problem(part.error) };
    return part;
  },

  // The source ends first: the stream may be waiting for it.
  async ingest_close() {
    open.source.close();
    await open.parts.return();
  },
};

function statement({ mode, types, tx, idempotent, timeout, rows, bytes, stats, priority }) {
  return {
    ...mode && { mode }, ...types && { types }, ...tx && { tx: selector(tx) }, ...idempotent && { idempotent }, ...timed(timeout),
    ...(rows || bytes) && { limits: { rows, bytes } }, ...stats && { stats }, ...priority && { priority },
  };
}

function selector({ begin, mode, id, seq, commit }) {
  return { ...begin && { begin: { mode } }, ...id && { id }, ...seq && { seq }, ...commit && { commit } };
}

// A timeout of this package is a number: text that is no duration cannot be said with it.
function timed(text) {
  if (!text) return {};
  const [, number, unit] = /^([0-9.]+)(ns|ms|s|m)$/.exec(text) ?? [];
  if (!number) throw new TypeError(`${JSON.stringify(text)} is no timeout`);
  return { timeout: Number(number) * { ns: 1e-6, ms: 1, s: 1000, m: 60_000 }[unit] };
}

function values(named) {
  return Object.fromEntries(Object.entries(named ?? {}).map(([name, one]) => [name, value(one)]));
}

function value(one) {
  if (one === null || typeof one !== 'object') return one;
  if ('int' in one) return BigInt(one.int);
  if ('float' in one) return Number.isInteger(one.float) ? typed('Double', one.float) : one.float;
  if ('bytes' in one) return Buffer.from(one.bytes, 'base64');
  if ('list' in one) return one.list.map(value);
  if ('struct' in one) return values(one.struct);
  return typed(one.typed.type, value(one.typed.value));
}

// What the table compares: numbers as text, bytes as base64.
function plain(one) {
  if (typeof one === 'bigint') return String(one);
  if (typeof one === 'number' && !Number.isFinite(one)) return String(one);
  if (Buffer.isBuffer(one)) return one.toString('base64');
  if (Array.isArray(one)) return one.map(plain);
  if (one !== null && typeof one === 'object') return Object.fromEntries(Object.entries(one).map(([name, member]) => [name, plain(member)]));
  return one;
}

function set({ columns, rows, truncated }) {
  return { columns, rows: rows.map((row) => Object.values(row).map(plain)), truncated };
}

function result(one) {
  return {
    ...set(one), ...one.sets.length > 1 && { sets: one.sets.map(set) }, ...one.tx && { tx: { id: one.tx.id, expires_ms: one.tx.expiresMs } },
    info: { node: one.info?.nodeId, attempts: one.info?.attempts, trace_id: one.info?.traceId, units: one.info?.consumedUnits }, stats: Boolean(one.stats),
    read_rows: (one.stats?.tables ?? []).reduce((sum, table) => sum + table.readRows, 0), affected: one.rowsAffected,
  };
}

function tags(match, noneMatch) {
  const quoted = (list) => list.map((one) => one === '*' ? one : `"${one}"`);
  return { ...match && { ifMatch: quoted(match) }, ...noneMatch && { ifNoneMatch: quoted(noneMatch) } };
}

function version({ etag = '' }) {
  return etag.replaceAll('"', '');
}

function problem(error) {
  if (!(error instanceof SidecarError)) return { code: 'BAD_REQUEST', local: true, message: String(error) };
  return {
    code: error.code, status: error.status, message: error.message.slice(error.code.length + 2), ydb_status: error.ydbStatus,
    issues: error.issues.length, safe_to_retry: error.safeToRetry, outcome_unknown: error.outcomeUnknown, retry_after_ms: error.retryAfter,
    hint: error.hint, operator_hint: error.operatorHint, trace_id: error.traceId,
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { call, args } = JSON.parse(line);
  let answer;
  try {
    const said = await calls[call](args ?? {});
    answer = call === 'stream' ? said : { reply: said ?? {} };
  } catch (error) {
    answer = { error: problem(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
db.close();

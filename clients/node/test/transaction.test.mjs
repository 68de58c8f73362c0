import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SidecarError, connect, retry } from '../dist/index.js';
import { answer, fake, info, refuse } from './fake.mjs';

const safe = { safe_to_retry: true };
const unknown = { outcome_unknown: true };

// A sidecar with one transaction at a time, whose answers a test may change: by number of statement of all tries, or for the commit.
async function sidecar(t, change = {}) {
  let statements = 0;
  let commits = 0;
  const { url, seen } = await fake(t, (request, response) => {
    if (request.path.endsWith('/rollback')) return answer(response);
    const commit = request.path.endsWith('/commit');
    const other = commit ? change[`commit ${++commits}`] : change[++statements];
    if (other) return other(response);
    answer(response, commit || request.body.tx?.commit ? {} : { tx: { id: 'tx_1', expires_ms: 30000 } });
  });
  const db = connect(url);
  t.after(() => db.close());
  const calls = () => seen.map(({ path, body }) => path === '/v1/query' || path === '/v1/tx' ? JSON.stringify(body.tx) : path);
  return { db, calls };
}

const begun = '{"begin":{"mode":"serializable_rw"},"seq":1}';
const second = '{"id":"tx_1","seq":2}';

test('a transaction begins with its first statement, and is committed', async (t) => {
  const { db, calls } = await sidecar(t);
  assert.equal(await db.transaction(async (tx) => {
    await tx.query('SELECT 1');
    return (await tx.query('SELECT 1')).rows[0].a;
  }), 1n);
  assert.deepEqual(calls(), [begun, second, '/v1/tx/tx_1/commit']);
});

test('a commit with the last statement saves a call, and nothing comes after it', async (t) => {
  const { db, calls } = await sidecar(t);
  await assert.rejects(db.transaction(async (tx) => {
    await tx.query('SELECT 1', {}, { commit: true });
    await tx.query('SELECT 1');
  }), /committed already/);
  assert.deepEqual(calls(), ['{"begin":{"mode":"serializable_rw"},"seq":1,"commit":true}']);
});

test('work that fails after its commit does not run again', async (t) => {
  for (const [fields, options] of [[{ safeToRetry: true }, {}], [{ outcomeUnknown: true }, { idempotent: true }]]) {
    const { db, calls } = await sidecar(t);
    const cause = new SidecarError({ code: 'UPSTREAM_LOST', message: 'm', ...fields });
    const error = await db.transaction(async (tx) => {
      await tx.query('SELECT 1', {}, { commit: true });
      throw cause;
    }, { timeout: 1000, ...options }).catch((e) => e);
    assert.equal(error.cause, cause, String(error));
    assert.ok(!(error instanceof SidecarError));
    assert.match(error.message, /^the transaction is committed, .*UPSTREAM_LOST: m$/);
    assert.equal(calls().length, 1);
  }
  const { db } = await sidecar(t);
  const final = new SidecarError({ code: 'BAD_REQUEST', message: 'm' });
  const failed = async (tx) => {
    await tx.query('SELECT 1', {}, { commit: true });
    throw final;
  };
  assert.equal(await db.transaction(failed).catch((e) => e), final);
});

test('all of the work runs again when nothing was kept', async (t) => {
  const { db, calls } = await sidecar(t, {
    2: (response) => refuse(response, 409, 'YDB_ABORTED', safe), 'commit 1': (response) => refuse(response, 410, 'TX_LOST', safe),
  });
  let runs = 0;
  const retried = [];
  await db.transaction(async (tx) => {
    runs++;
    await tx.query('SELECT 1');
    await tx.query('SELECT 1');
  }, { onRetry: (error) => retried.push(error.code) });
  assert.equal(runs, 3);
  assert.deepEqual(retried, ['YDB_ABORTED', 'TX_LOST']);
  assert.deepEqual(calls(), [begun, second, '/v1/tx/tx_1/rollback', begun, second, '/v1/tx/tx_1/commit', '/v1/tx/tx_1/rollback', begun, second, '/v1/tx/tx_1/commit']);
});

test('an unknown outcome is repeated only if the caller says that it may happen twice', async (t) => {
  for (const [options, runs] of [[{}, 1], [{ idempotent: true }, 2]]) {
    const { db } = await sidecar(t, { 'commit 1': (response) => refuse(response, 500, 'OUTCOME_UNKNOWN', unknown) });
    let count = 0;
    const work = db.transaction(async (tx) => {
      count++;
      await tx.query('SELECT 1');
    }, options);
    if (runs === 1) await assert.rejects(work, { code: 'OUTCOME_UNKNOWN', outcomeUnknown: true });
    else await work;
    assert.equal(count, runs);
  }
});

test('a commit whose answer got lost is sent again, once', async (t) => {
  const { db, calls } = await sidecar(t, { 'commit 1': (response) => response.destroy() });
  await db.transaction((tx) => tx.query('SELECT 1'));
  assert.deepEqual(calls(), [begun, '/v1/tx/tx_1/commit', '/v1/tx/tx_1/commit']);
  const silent = await sidecar(t, { 'commit 1': (response) => response.destroy(), 'commit 2': (response) => response.destroy() });
  await assert.rejects(silent.db.transaction((tx) => tx.query('SELECT 1')), { code: 'OUTCOME_UNKNOWN', safeToRetry: false });
});

test('an error of the work itself rolls back and is not repeated', async (t) => {
  const { db, calls } = await sidecar(t);
  await assert.rejects(db.transaction(async (tx) => {
    await tx.query('SELECT 1');
    throw new Error('not enough');
  }), /^Error: not enough$/);
  assert.deepEqual(calls(), [begun, '/v1/tx/tx_1/rollback']);
});

test('a failed statement that the work swallows is not committed', async (t) => {
  const { db, calls } = await sidecar(t, { 2: (response) => refuse(response, 400, 'YDB_GENERIC_ERROR') });
  await assert.rejects(db.transaction(async (tx) => {
    await tx.query('SELECT 1');
    await tx.query('SELEC').catch(() => {});
  }), { code: 'YDB_GENERIC_ERROR' });
  assert.deepEqual(calls(), [begun, second, '/v1/tx/tx_1/rollback']);
});

test('statements that are called at a time run one after another', async (t) => {
  const { db, calls } = await sidecar(t);
  await db.transaction((tx) => Promise.all([tx.query('SELECT 1'), tx.query('SELECT 2')]));
  assert.deepEqual(calls(), [begun, second, '/v1/tx/tx_1/commit']);
});

test('a transaction that has no statement sends nothing', async (t) => {
  const { db, calls } = await sidecar(t);
  assert.equal(await db.transaction(async () => 5), 5);
  assert.deepEqual(calls(), []);
});

test('a stream in a transaction is read to its end, or ends it', async (t) => {
  const end = `{"end":${JSON.stringify({ rows: 2, truncated: false, info, tx: { id: 'tx_1', expires_ms: 1 } })}}\n`;
  const stream = (response) => response.end(`{"columns":[{"name":"a","type":"Int32"}]}\n{"row":[1]}\n{"row":[2]}\n${end}`);
  const { db, calls } = await sidecar(t, { 1: stream, 2: stream });
  const rows = await db.transaction(async (tx) => {
    const got = [];
    for await (const row of tx.stream('SELECT a')) {
      got.push(row.a);
      await assert.rejects(tx.query('SELECT 1'), /still being read/);
    }
    return got;
  });
  assert.deepEqual(rows, [1, 2]);
  await assert.rejects(db.transaction(async (tx) => {
    for await (const _ of tx.stream('SELECT a')) break;
  }), /not read to its end/);
  assert.deepEqual(calls().slice(0, 3), [begun, '/v1/tx/tx_1/commit', begun]);
});

test('tries end with the time of the work, and pauses are at least as long as the error says', async () => {
  const error = (more) => new SidecarError({ code: 'QUEUE_FULL', message: 'm', safeToRetry: true, ...more });
  let runs = 0;
  let begun = Date.now();
  await assert.rejects(retry(() => { runs++; throw error({ retryAfter: 30 }); }, { timeout: 100 }), { code: 'QUEUE_FULL' });
  assert.ok(runs >= 2 && runs <= 4 && Date.now() - begun < 300, `${runs} runs in ${Date.now() - begun} ms`);
  begun = Date.now();
  await assert.rejects(retry(() => { throw error({ retryAfter: 60_000 }); }, { timeout: 10_000 }), { code: 'QUEUE_FULL' });
  assert.ok(Date.now() - begun < 1000, 'it waited for a pause that is longer than its time');
  assert.equal(await retry(async ({ number, left }) => {
    assert.ok(left() <= 30_000);
    if (number < 3) throw error();
    return number;
  }), 3);
  const controller = new AbortController();
  setTimeout(() => controller.abort(new Error('enough')), 20);
  await assert.rejects(retry(() => { throw error({ retryAfter: 5000 }); }, { signal: controller.signal }), /^Error: enough$/);
  for (const final of [new Error('x'), error({ safeToRetry: false }), error({ safeToRetry: false, outcomeUnknown: true })]) {
    let count = 0;
    await assert.rejects(retry(() => { count++; throw final; }));
    assert.equal(count, 1);
  }
});

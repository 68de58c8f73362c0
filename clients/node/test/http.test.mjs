import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import { test } from 'node:test';
import { context, propagation } from '@opentelemetry/api';
import {
  AlreadyExistsError, ConditionError, ConnectionError, DeadlineError, ExpectationError, OverloadError, SidecarError, connect,
} from '../dist/index.js';
import { answer, fake, info, refuse } from './fake.mjs';

test('a request has what the call says, and only that', async (t) => {
  const { url, seen } = await fake(t, (request, response) => answer(response));
  const db = connect(url, { app: 'shop', token: 'secret', timeout: 5000 });
  t.after(() => db.close());
  const { rows, rowsAffected, tx } = await db.query('SELECT $a', { a: 1n, b: 'x' }, { mode: 'snapshot_ro', priority: 'batch', limits: { rows: 2 }, types: { a: 'Uint64' }, traceparent: '00-a-b-01' });
  assert.deepEqual([rows, rowsAffected, tx], [[{ a: 1n }], undefined, undefined]);
  assert.deepEqual(seen[0].body, { sql: 'SELECT $a', params: { a: 1, b: 'x' }, mode: 'snapshot_ro', priority: 'batch', limits: { rows: 2 }, types: { a: 'Uint64' }, rows: 'arrays' });
  const { headers, method, path } = seen[0];
  assert.deepEqual([method, path, headers['content-type'], headers['x-sidecar-app'], headers.authorization, headers['request-timeout'], headers.traceparent],
    ['POST', '/v1/query', 'application/json', 'shop', 'Bearer secret', '5000ms', '00-a-b-01']);
  await db.query('SELECT 1', {}, { timeout: 12.3 });
  assert.equal(seen[1].headers['request-timeout'], '12.300000ms');
});

test('the active trace of OpenTelemetry goes with the call', async (t) => {
  const { url, seen } = await fake(t, (request, response) => answer(response));
  const db = connect(url);
  t.after(() => db.close());
  propagation.setGlobalPropagator({ inject: (_, carrier) => Object.assign(carrier, { traceparent: '00-c-d-01', baggage: 'secret=1' }), extract: () => context.active(), fields: () => [] });
  t.after(() => propagation.disable());
  await db.query('SELECT 1');
  assert.deepEqual([seen[0].headers.traceparent, seen[0].headers.baggage], ['00-c-d-01', undefined]);
});

test('errors have a class, and say what to do', async (t) => {
  let next;
  const { url } = await fake(t, (request, response) => refuse(response, ...next));
  const db = connect(url);
  t.after(() => db.close());
  for (const [status, code, kind] of [
    [504, 'DEADLINE_EXCEEDED', DeadlineError], [429, 'QUEUE_FULL', OverloadError], [429, 'YDB_OVERLOADED', OverloadError], [409, 'EXPECTATION_FAILED', ExpectationError],
    [412, 'CONDITION_FAILED', ConditionError], [409, 'YDB_PRECONDITION_FAILED', AlreadyExistsError], [409, 'YDB_ALREADY_EXISTS', AlreadyExistsError],
    [400, 'YDB_PRECONDITION_FAILED', SidecarError], [503, 'DRAINING', SidecarError],
  ]) {
    next = [status, code, { safe_to_retry: true, retry_after_ms: 20, trace_id: 'abc', hint: 'wait', operator_hint: 'act', ydb_status: 'ABORTED', issues: [{ message: 'm' }] }];
    const error = await db.query('SELECT 1').catch((e) => e);
    assert.equal(error.constructor, kind, code);
    assert.deepEqual([error.code, error.status, error.safeToRetry, error.outcomeUnknown, error.retryAfter, error.traceId, error.hint, error.operatorHint, error.ydbStatus, error.issues.length],
      [code, status, true, false, 20, 'abc', 'wait', 'act', 'ABORTED', 1]);
    assert.equal(error.name, kind.name);
    assert.match(error.message, /^\w+: no$/);
  }
});

test('a call without an answer says what it may have kept', async (t) => {
  const gone = await new Promise((resolve) => {
    const server = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(`http://127.0.0.1:${port}`));
    });
  });
  const broken = (await fake(t, (request, response) => { response.destroy(); })).url;
  const foreign = (await fake(t, (request, response) => { response.writeHead(502).end('<html>bad gateway'); })).url;
  const half = (await fake(t, (request, response) => { response.writeHead(200, { 'content-length': 100 }).write('{"columns"', () => response.destroy()); })).url;
  for (const [url, options, safe, unknown] of [
    [gone, {}, true, false], ['unix:/nowhere/sidecar.sock', {}, true, false], [broken, {}, false, true], [broken, { idempotent: true }, true, true],
    [broken, { mode: 'snapshot_ro' }, true, false], [broken, { tx: { id: 'x', seq: 1 } }, true, false], [broken, { tx: { id: 'x', seq: 1, commit: true } }, false, true],
    [foreign, {}, false, true], [half, {}, false, true],
  ]) {
    const db = connect(url);
    const error = await db.query('SELECT 1', {}, options).catch((e) => e);
    assert.ok(error instanceof ConnectionError, String(error));
    assert.deepEqual([error.safeToRetry, error.outcomeUnknown], [safe, unknown], `${url} ${JSON.stringify(options)}: ${error.message}`);
    db.close();
  }
});

test('an answer that is not the sidecar\'s is an error', async (t) => {
  let foreign;
  const { url } = await fake(t, (request, response) => foreign(response));
  const db = connect(url);
  t.after(() => db.close());
  const table = db.kv('t', 'text');
  const calls = {
    query: () => db.query('UPSERT'), put: () => table.put(1, '1'), delete: () => table.delete(1), get: () => table.get(1),
    getMany: () => table.getMany([1]), status: () => db.status(),
    stream: async () => { for await (const _ of db.stream('SELECT 1')); },
    ingest: async () => { for await (const _ of db.ingest('t', [{ id: 1 }])); },
  };
  const problem = { 'content-type': 'application/problem+json' };
  for (const [status, headers, body] of [
    [307, { location: '/elsewhere' }, ''], [302, {}, '<html>'], [202, {}, '{}'], [206, {}, '{}'], [403, {}, '{"code":"x"}'],
    [503, problem, '{"title":"busy","status":503}'], [503, problem, '{"code":"DRAI'],
  ]) {
    foreign = (response) => response.writeHead(status, headers).end(body);
    for (const [name, call] of Object.entries(calls)) {
      const error = await call().catch((e) => e);
      assert.ok(error instanceof ConnectionError, `${name}, ${status}: ${error}`);
      // A status of the server behind may be that of a proxy, which passed the call on.
      assert.match(error.message, new RegExp(`${status < 500 ? 'no sidecar' : 'the answer is not the sidecar\'s'}: status ${status}`));
      assert.equal(error.code === 'NOT_A_SIDECAR', status < 500, name);
      assert.equal(error.outcomeUnknown, status >= 500 && !['get', 'getMany', 'status'].includes(name), name);
    }
  }
  for (const [status, body] of [[200, ''], [204, ''], [200, '{"columns":[']]) {
    foreign = (response) => response.writeHead(status, { 'content-type': 'application/json' }).end(body);
    for (const name of ['query', 'getMany', 'status', 'stream']) {
      const error = await calls[name]().catch((e) => e);
      assert.ok(error instanceof ConnectionError, `${name}, ${status} ${body}: ${error}`);
      assert.equal(error.outcomeUnknown, ['query', 'stream'].includes(name), name);
    }
  }
});

test('what is no sidecar has run nothing', async (t) => {
  let page;
  const { url } = await fake(t, (request, response) => page(response));
  const db = connect(url);
  t.after(() => db.close());
  const html = { 'content-type': 'text/html' };
  for (const [headers, body] of [[html, '<html>'], [{}, 'null'], [{}, '{"a":1}'], [{}, '[1]']]) {
    page = (response) => response.writeHead(200, headers).end(body);
    for (const call of [() => db.query('UPSERT'), () => db.status(), () => db.kv('t', 'text').getMany([1])]) {
      const error = await call().catch((e) => e);
      assert.ok(error instanceof ConnectionError, `${body}: ${error}`);
      assert.deepEqual([error.code, error.safeToRetry, error.outcomeUnknown], ['NOT_A_SIDECAR', false, false], body);
      assert.match(error.message, new RegExp(url.slice('http://'.length)));
      assert.match(error.hint, /gRPC API/);
    }
  }
  page = (response) => response.writeHead(200, html).end('<html>');
  assert.equal((await db.kv('t').get(1).catch((e) => e)).code, 'NOT_A_SIDECAR');
  assert.equal((await (async () => { for await (const _ of db.stream('UPSERT')); })().catch((e) => e)).code, 'NOT_A_SIDECAR');
  page = (response) => response.writeHead(200).end('no JSON');
  const unread = await db.kv('t').get(1).catch((e) => e);
  assert.ok(unread instanceof SidecarError, String(unread));
  assert.equal(unread.code, 'ANSWER_UNREADABLE');
  // HTTP/2, as the gRPC API has it.
  const other = net.createServer((socket) => socket.write(Buffer.from('000006040000000000000500004000', 'hex'))).listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.after(() => other.close());
  const wrong = connect(`http://127.0.0.1:${other.address().port}`);
  t.after(() => wrong.close());
  assert.equal((await wrong.query('UPSERT').catch((e) => e)).code, 'NOT_A_SIDECAR');
});

test('a sidecar that is silent does not hold the caller', async (t) => {
  const { url } = await fake(t, () => new Promise(() => {}));
  const db = connect(url);
  t.after(() => db.close());
  const begun = Date.now();
  const error = await db.query('UPSERT', {}, { timeout: 10 }).catch((e) => e);
  assert.ok(error instanceof DeadlineError && error.outcomeUnknown && !error.safeToRetry, String(error));
  assert.ok(Date.now() - begun < 3000);
  const controller = new AbortController();
  setTimeout(() => controller.abort(new Error('enough')), 20);
  await assert.rejects(db.query('SELECT 1', {}, { signal: controller.signal }), /^Error: enough$/);
  await assert.rejects(db.query('SELECT 1', {}, { signal: AbortSignal.abort() }), { name: 'AbortError' });
});

const line = (part) => `${JSON.stringify(part)}\n`;
const columns = line({ columns: [{ name: 'a', type: 'Uint64' }] });

test('a stream yields rows as they come, and its end', async (t) => {
  const { url, seen } = await fake(t, async (request, response) => {
    const text = columns + line({ row: ['1'] }) + line({ set: 1, columns: [{ name: 'b', type: 'Utf8' }] }) + line({ row: ['ä€𝄞'] }) + line({ end: { rows: 2, truncated: false, info } });
    for (const byte of Buffer.from(text)) response.write(Buffer.from([byte]));
    response.end();
  });
  const db = connect(url);
  t.after(() => db.close());
  const stream = db.stream('SELECT 1; SELECT 2');
  const rows = [];
  for await (const row of stream) rows.push([stream.set, row]);
  assert.deepEqual(rows, [[0, { a: 1n }], [1, { b: 'ä€𝄞' }]]);
  assert.equal(stream.end.rows, 2);
  assert.equal(seen[0].headers.accept, 'application/x-ndjson');
  await assert.rejects(async () => { for await (const _ of stream); }, /read once/);
});

test('leaving a stream ends it', async (t) => {
  let closed;
  const { url } = await fake(t, (request, response) => {
    closed = once(response, 'close');
    response.write(columns + line({ row: ['1'] }));
  });
  const db = connect(url);
  t.after(() => db.close());
  for await (const row of db.stream('SELECT 1')) {
    assert.deepEqual(row, { a: 1n });
    break;
  }
  await closed;
});

test('a stream that is cut or fails throws after its rows', async (t) => {
  let last;
  const { url } = await fake(t, (request, response) => response.end(columns + line({ row: ['1'] }) + last));
  const db = connect(url);
  t.after(() => db.close());
  for (const [text, code] of [['', 'SIDECAR_AWAY'], [line({ error: { code: 'UPSTREAM_LOST', message: 'm', status: 503, issues: [], safe_to_retry: true } }), 'UPSTREAM_LOST']]) {
    last = text;
    const rows = [];
    const error = await (async () => { for await (const row of db.stream('SELECT 1', {}, { mode: 'snapshot_ro' })) rows.push(row); })().catch((e) => e);
    assert.deepEqual([rows.length, error.code, error.safeToRetry], [1, code, true]);
  }
});

test('rows to write are taken from their source no faster than the sidecar reads', async (t) => {
  let go;
  const { url } = await fake(t, async (request, response, incoming) => {
    response.writeHead(200).flushHeaders();
    incoming.pause();
    await new Promise((resolve) => { go = resolve; });
    let rows = 0;
    for await (const piece of incoming) rows += piece.toString().split('\n').length - 1;
    response.end(line({ ack: { next: rows } }) + line({ end: { next: rows, rows, refused: 0 } }));
  });
  const db = connect(url);
  t.after(() => db.close());
  const total = 20_000;
  let taken = 0;
  const rows = function* () { for (; taken < total; taken++) yield { id: taken, text: 'x'.repeat(1000) }; };
  const parts = [];
  const reading = (async () => { for await (const part of db.ingest('t', rows())) parts.push(part); })();
  while (!go) await new Promise((resolve) => setTimeout(resolve, 5));
  let before;
  do {
    before = taken;
    await new Promise((resolve) => setTimeout(resolve, 100));
  } while (taken > before);
  assert.ok(taken > 0 && taken < total, `took ${taken} rows that nobody reads`);
  go();
  await reading;
  assert.deepEqual(parts, [{ ack: total }, { end: { next: total, rows: total, refused: 0 } }]);
});

test('a resumed stream sends what was not acknowledged, and counts over all its connections', async (t) => {
  let tries = 0;
  const { url, seen } = await fake(t, async (request, response, incoming) => {
    response.writeHead(200).flushHeaders();
    tries++;
    const refused = line({ refused: { offset: 6, error: { code: 'BAD_REQUEST', message: 'no', issues: [] } } });
    if (tries === 1) return void response.write(line({ ack: { next: 5 } }) + refused, () => response.destroy());
    let text = '';
    for await (const piece of incoming) text += piece;
    assert.deepEqual(text.trim().split('\n').map((row) => JSON.parse(row).id), [5, 6, 7]);
    response.end(refused + line({ ack: { next: 8 } }) + line({ end: { next: 8, rows: 2, refused: 1 } }));
  });
  const db = connect(url);
  t.after(() => db.close());
  const parts = [];
  const errors = [];
  const rows = (from) => [0, 1, 2, 3, 4, 5, 6, 7].slice(from).map((id) => ({ id }));
  for await (const part of db.ingest('dir/t', rows, { stream: 'a b', onRetry: (error) => errors.push(error) })) parts.push('error' in part ? part.refused : part);
  assert.deepEqual(parts, [{ ack: 5 }, 6, { ack: 8 }, { end: { next: 8, rows: 7, refused: 1 } }]);
  assert.deepEqual(seen.map(({ path }) => path), ['/v1/ingest/dir/t?offset=0&stream=a+b', '/v1/ingest/dir/t?offset=5&stream=a+b']);
  assert.equal(errors.length, 1);
});

test('an error of the rows themselves is the error of the stream', async (t) => {
  const { url } = await fake(t, (request, response) => { response.writeHead(200).flushHeaders(); });
  const db = connect(url);
  t.after(() => db.close());
  const rows = function* () { yield { id: 1 }; throw new RangeError('no more'); };
  await assert.rejects(async () => { for await (const _ of db.ingest('t', rows())); }, /^RangeError: no more$/);
});

test('key-value calls carry ids, conditions and tags', async (t) => {
  const { url, seen } = await fake(t, (request, response) => {
    if (request.method === 'GET') response.writeHead(200, { etag: '"7"', 'content-type': 'application/json' }).end('{"n":1}');
    else response.writeHead(request.method === 'PUT' ? 201 : 204, { etag: '"8"' }).end();
  });
  const db = connect(url);
  t.after(() => db.close());
  const table = db.kv('a b', 'json');
  assert.deepEqual(await table.get([1n, 'ä&', Buffer.from([0, 255])], { ifNoneMatch: ['"1"', '"2"'] }), { value: { n: 1 }, etag: '"7"', notModified: false, contentType: 'application/json' });
  assert.equal(seen[0].path, '/v1/kv/a%20b?id=1&id=%C3%A4%26&id=%00%ff');
  assert.equal(seen[0].headers['if-none-match'], '"1", "2"');
  assert.deepEqual(await table.put(1, { n: 2 }, { ifMatch: '"7"', priority: 'batch' }), { created: true, etag: '"8"' });
  assert.deepEqual([seen[1].body, seen[1].headers['if-match'], seen[1].headers['x-ydb-priority']], [{ n: 2 }, '"7"', 'batch']);
  await table.delete(1);
  assert.equal(seen[2].method, 'DELETE');
});

test('an address that is none is refused', () => {
  for (const address of ['ftp://x', 'localhost:7401', '']) assert.throws(() => connect(address), /want http:\/\//);
});

test('a timeout may be as long as one likes', async (t) => {
  const { url, seen } = await fake(t, (request, response) => setTimeout(() => answer(response), 50));
  const longest = 2 ** 31 - 1;
  for (const [timeout, header] of [[longest - 1000, '2147482647ms'], [longest, '2147483647ms'], [1e12, '1000000000000ms'], [Infinity, undefined]]) {
    const db = connect(url, { timeout });
    assert.deepEqual((await db.query('SELECT 1')).rows, [{ a: 1n }], String(timeout));
    await db.transaction((tx) => tx.query('SELECT 1'), { timeout });
    assert.equal(seen.at(-2).headers['request-timeout'], header);
    db.close();
  }
});


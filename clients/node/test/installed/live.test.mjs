// The package as it is installed, against a sidecar and a cluster: node --test live.test.mjs, with ADDRESSES in the environment.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { AlreadyExistsError, ConditionError, ExpectationError, SidecarError, connect, typed } from 'ydb-sidecar';

for (const address of process.env.ADDRESSES.split(',')) describe(address, () => suite(address));

function suite(address) {
  const db = connect(address, { app: 'live' });
  const accounts = `accounts_${address.replace(/\W+/g, '_')}`;

  before(async () => {
    await db.query(`CREATE TABLE ${accounts} (id Uint64, owner Utf8, amount Int64, seen Timestamp, photo String, PRIMARY KEY (id))`, {}, { idempotent: true });
    await db.bulk(accounts, [{ id: 1, owner: 'Ann', amount: 100 }, { id: 2, owner: 'Bob', amount: 100n }]);
  });
  after(async () => {
    await db.query(`DROP TABLE ${accounts}`);
    db.close();
  });

  test('values come back as they were sent', async () => {
    const params = {
      big: 18446744073709551615n, small: -5, half: 0.5, whole: typed('Double', 2), nan: NaN, text: 'ä"€', yes: true, bytes: Buffer.from([0, 255]), none: typed('Optional<Utf8>', null),
      list: [1n, 2n], struct: { a: 1n, b: 'x' }, day: typed('Date', '2024-01-31'), time: new Date(1706695200500), price: typed('Decimal(22,9)', '1.5'),
    };
    const { rows: [row], columns } = await db.query(`SELECT ${Object.keys(params).map((name) => `$${name} AS ${name}`).join()}`, params);
    assert.deepEqual(row, {
      big: 18446744073709551615n, small: -5n, half: 0.5, whole: 2, nan: NaN, text: 'ä"€', yes: true, bytes: Buffer.from([0, 255]), none: null, list: [1n, 2n],
      struct: { a: 1n, b: 'x' }, day: '2024-01-31', time: '2024-01-31T10:00:00.500Z', price: '1.5',
    });
    assert.deepEqual(columns.find(({ name }) => name === 'time'), { name: 'time', type: 'Timestamp' });
    const numbers = connect(address, { ints: 'number' });
    assert.deepEqual((await numbers.query('SELECT 5 AS i, 5l AS l')).rows, [{ i: 5, l: 5 }]);
    numbers.close();
  });

  test('several statements have several results, and a trace joins them', async () => {
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    const { sets, rows, info } = await db.query('SELECT 1 AS a; SELECT 2 AS b, 3 AS c', {}, { traceparent });
    assert.deepEqual([rows, sets.map((set) => set.rows)], [[{ a: 1 }], [[{ a: 1 }], [{ b: 2, c: 3 }]]]);
    assert.equal(info.traceId, '0af7651916cd43dd8448eb211c80319c');
  });

  test('rows are written with times and bytes, and counted', async () => {
    const { rowsAffected } = await db.query(`UPSERT INTO ${accounts} (id, owner, seen, photo) VALUES ($id, $owner, $seen, $photo)`,
      { id: 9, owner: 'Eve', seen: new Date(0), photo: Buffer.from('x') });
    assert.equal(rowsAffected, 1);
    const { rows } = await db.query(`SELECT seen, photo FROM ${accounts} WHERE id = 9`);
    assert.deepEqual(rows, [{ seen: '1970-01-01T00:00:00Z', photo: Buffer.from('x') }]);
    await assert.rejects(db.query(`INSERT INTO ${accounts} (id) VALUES (9ul)`), AlreadyExistsError);
    await db.query(`DELETE FROM ${accounts} WHERE id = 9`);
  });

  test('an error says where and why', async () => {
    const error = await db.query('SELEC 1').catch((e) => e);
    assert.ok(error instanceof SidecarError);
    assert.deepEqual([error.code, error.status, error.safeToRetry, error.outcomeUnknown], ['YDB_GENERIC_ERROR', 400, false, false]);
    assert.ok(error.issues[0].row === 1 && error.hint !== '');
  });

  test('transactions that meet run again until all of them are done', async () => {
    let runs = 0;
    await Promise.all(Array.from({ length: 8 }, () => db.transaction(async (tx) => {
      runs++;
      const { rows } = await tx.query(`SELECT id, amount FROM ${accounts} WHERE id = 1 OR id = 2`);
      const [from, to] = rows.sort((a, b) => Number(a.id - b.id));
      await tx.query(`UPDATE ${accounts} SET amount = $amount WHERE id = 1`, { amount: from.amount - 10n });
      await tx.query(`UPDATE ${accounts} SET amount = $amount WHERE id = 2`, { amount: to.amount + 10n }, { commit: true });
    })));
    const { rows } = await db.query(`SELECT amount FROM ${accounts} WHERE id = 1 OR id = 2`);
    assert.deepEqual(rows.map((row) => row.amount).sort(), [180n, 20n].sort());
    assert.ok(runs > 8, 'no two of them met');
  });

  test('a transaction that throws keeps nothing', async () => {
    await assert.rejects(db.transaction(async (tx) => {
      await tx.query(`UPSERT INTO ${accounts} (id, owner) VALUES (50ul, "nobody"u)`);
      throw new Error('changed my mind');
    }), /changed my mind/);
    assert.deepEqual((await db.query(`SELECT id FROM ${accounts} WHERE id = 50`)).rows, []);
  });

  test('a list is one transaction, if it finds what it expects', async () => {
    const list = (id) => [{ sql: `SELECT id FROM ${accounts} WHERE id = $id`, params: { id }, expect: { rows: 1 } }, { sql: `UPSERT INTO ${accounts} (id, owner) VALUES ($id, $owner)`, params: { id: 60, owner: 'Dan' } }];
    await assert.rejects(db.transact(list(61)), ExpectationError);
    const { results, info } = await db.transact(list(1));
    assert.deepEqual([results.length, results[0].rows, info.attempts], [2, [{ id: 1n }], 1]);
    await db.query(`DELETE FROM ${accounts} WHERE id = 60`);
  });

  test('a batch has an outcome for each statement', async () => {
    const [one, two] = await db.batch([{ sql: 'SELECT $a AS a', params: { a: 1 } }, { sql: 'SELEC' }]);
    assert.deepEqual([one.rows, two.error.code], [[{ a: 1n }], 'YDB_GENERIC_ERROR']);
  });

  test('a stream that is left frees its session', async () => {
    await db.bulk(accounts, Array.from({ length: 2000 }, (_, i) => ({ id: 10_000 + i, owner: 'x'.repeat(500) })));
    for await (const row of db.stream(`SELECT id, owner FROM ${accounts} WHERE id >= 10000`)) {
      assert.equal(typeof row.id, 'bigint');
      break;
    }
    for (let busy, end = Date.now() + 10_000; (busy = (await db.status()).pool.busy) > 0;) assert.ok(Date.now() < end, `${busy} sessions are busy`);
    const stream = db.stream(`SELECT id FROM ${accounts} WHERE id >= 10000 AND id < 20000`, {}, { mode: 'snapshot_ro' });
    let rows = 0;
    for await (const _ of stream) rows++;
    assert.deepEqual([rows, stream.end.rows, stream.columns.length], [2000, 2000, 1]);
  });

  test('rows are ingested, and bad ones named', async () => {
    const rows = (from) => Array.from({ length: 1000 - from }, (_, i) => ({ id: 20_000 + from + i, amount: from + i === 7 ? 'no number' : from + i }));
    const refused = [];
    let last;
    for await (const part of db.ingest(accounts, rows, { stream: 'live' })) {
      if ('refused' in part) refused.push([part.refused, part.error.code]);
      else last = part;
    }
    assert.deepEqual([refused, last], [[[7, 'BAD_REQUEST']], { end: { next: 1000, rows: 999, refused: 1 } }]);
    assert.deepEqual((await db.query(`SELECT COUNT(*) AS n FROM ${accounts} WHERE id >= 20000 AND id < 30000`)).rows, [{ n: 999n }]);
  });

  test('many rows are ingested without a warning', async () => {
    const warnings = [];
    const warned = (warning) => warnings.push(warning);
    process.on('warning', warned);
    const rows = function* () { for (let i = 0; i < 20_000; i++) yield { id: 100_000 + i, owner: 'x'.repeat(100) }; };
    for await (const part of db.ingest(accounts, rows())) if ('end' in part) assert.equal(part.end.rows, 20_000);
    await new Promise(setImmediate);
    process.off('warning', warned);
    assert.deepEqual(warnings, []);
  });

  test('key-value rows have tags, and conditions hold', async () => {
    const notes = db.kv('notes', 'json');
    const id = `note of ${address}`;
    assert.equal(await notes.get(id), undefined);
    const { created, etag } = await notes.put(id, { n: 1 }, { ifNoneMatch: '*' });
    assert.deepEqual([created, (await notes.get(id)).etag], [true, etag]);
    assert.equal((await notes.get(id, { ifNoneMatch: etag })).notModified, true);
    const second = await notes.put(id, { n: 2 }, { ifMatch: etag });
    await assert.rejects(notes.put(id, { n: 3 }, { ifMatch: etag }), ConditionError);
    const { items, missing } = await notes.getMany([id, 'none']);
    assert.deepEqual([items, missing], [[{ id, value: { n: 2 }, etag: second.etag }], ['none']]);
    await notes.delete(id);
    assert.equal(await notes.get(id), undefined);
  });

  test('a caller may leave', async () => {
    await assert.rejects(db.query('SELECT 1', {}, { signal: AbortSignal.abort() }), { name: 'AbortError' });
    const controller = new AbortController();
    const reading = (async () => {
      for await (const _ of db.stream(`SELECT id, owner FROM ${accounts} WHERE id >= 10000`, {}, { signal: controller.signal })) controller.abort();
    })();
    await assert.rejects(reading, { name: 'AbortError' });
  });

  test('tables, plans and versions', async () => {
    const table = await db.describe(accounts);
    assert.deepEqual([table.primaryKey, table.columns[0]], [['id'], { name: 'id', type: 'Optional<Uint64>', notNull: false }]);
    assert.notEqual((await db.explain('SELECT 1')).plan, '');
    assert.equal((await db.version()).api, 'v1');
  });
}

test('gRPC says which packages it needs', { skip: process.env.WITH_GRPC === '1' }, async () => {
  await assert.rejects(connect('grpc://127.0.0.1:1').query('SELECT 1'), /npm install @grpc\/grpc-js @grpc\/proto-loader/);
});

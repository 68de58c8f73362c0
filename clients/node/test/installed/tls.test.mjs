// gRPC over TLS, with the package as it is installed, against sidecars: node --test tls.test.mjs, with SECURE and MUTUAL (ports whose
// certificate is server.pem; MUTUAL wants client.pem of its clients), PLAIN (a port without TLS) and CERTIFICATES in the environment.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ConnectionError, connect } from 'ydb-sidecar';

const { SECURE, MUTUAL, PLAIN, CERTIFICATES } = process.env;
const pem = (name) => readFileSync(join(CERTIFICATES, name));
const ca = pem('server.pem');
const client = { cert: pem('client.pem'), key: pem('client.key') };

/** Runs a statement that may write, so that only a call that was certainly not sent is safe to retry. */
async function query(t, address, tls) {
  const db = connect(address, { tls });
  t.after(() => db.close());
  return db.query('SELECT 1 AS a', {}, { timeout: 10_000 }).then(({ rows }) => rows, (error) => error);
}

test('calls over TLS', async (t) => {
  for (const host of ['localhost', '127.0.0.1']) {
    assert.deepEqual(await query(t, `grpcs://${host}:${SECURE}`, { ca }), [{ a: 1 }]);
  }
  const db = connect(`grpcs://localhost:${SECURE}`, { tls: { ca } });
  t.after(() => db.close());
  const rows = [];
  for await (const row of db.stream('SELECT 1 AS a')) rows.push(row);
  assert.deepEqual(rows, [{ a: 1 }]);
});

test('a call over TLS that fails before it is sent has certainly not run', async (t) => {
  for (const [why, address, tls] of [
    ['an authority that the system does not know', `grpcs://localhost:${SECURE}`],
    ['another authority', `grpcs://localhost:${SECURE}`, { ca: pem('stranger.pem') }],
    ['another name', `grpcs://localhost:${SECURE}`, { ca, servername: 'elsewhere' }],
    ['a port without TLS', `grpcs://localhost:${PLAIN}`, { ca }],
    ['a port with TLS', `grpc://localhost:${SECURE}`],
  ]) {
    const error = await query(t, address, tls);
    assert.ok(error instanceof ConnectionError, `${why}: ${error}`);
    assert.deepEqual([error.code, error.safeToRetry, error.outcomeUnknown], ['SIDECAR_AWAY', true, false], `${why}: ${error.message}`);
  }
});

test('a sidecar that wants a certificate of the client gets it', async (t) => {
  assert.deepEqual(await query(t, `grpcs://localhost:${MUTUAL}`, { ca, ...client }), [{ a: 1 }]);
  for (const other of [{}, { cert: pem('stranger.pem'), key: pem('stranger.key') }]) {
    const error = await query(t, `grpcs://localhost:${MUTUAL}`, { ca, ...other });
    assert.ok(error instanceof ConnectionError, String(error));
  }
});

// TLS, and proxies of the environment, over real sockets.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { ConnectionError, connect } from '../dist/index.js';
import { answer, fake } from './fake.mjs';

const folder = mkdtempSync(join(tmpdir(), 'ydb-sidecar-tls-'));
after(() => rmSync(folder, { recursive: true }));

/** Makes a certificate that is its own authority, for 127.0.0.1 and localhost. */
function certificate(name) {
  const [key, cert] = [join(folder, `${name}.key`), join(folder, `${name}.pem`)];
  execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1', '-subj', `/CN=${name}`,
    '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1', '-keyout', key, '-out', cert], { stdio: 'pipe' });
  return { key: readFileSync(key), cert: readFileSync(cert) };
}

const server = certificate('server');
const client = certificate('client');
const stranger = certificate('stranger');

/** Starts a server over TLS that asks for the client's certificate, and counts its requests. */
async function secure(t, options = {}) {
  let requests = 0;
  const listener = https.createServer({ ...server, ...options }, (request, response) => {
    requests++;
    request.resume().on('end', () => answer(response));
  });
  await new Promise((resolve) => listener.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    listener.closeAllConnections();
    listener.close();
  });
  return { port: listener.address().port, requests: () => requests };
}

async function query(t, url, options) {
  const db = connect(url, options);
  t.after(() => db.close());
  return db.query('UPSERT').then(({ rows }) => rows, (error) => error);
}

test('calls over TLS', async (t) => {
  const { port, requests } = await secure(t);
  for (const host of ['localhost', '127.0.0.1']) {
    assert.deepEqual(await query(t, `https://${host}:${port}`, { tls: { ca: server.cert } }), [{ a: 1n }]);
  }
  assert.equal(requests(), 2);
});

test('a call over TLS that fails before it is sent has certainly not run', async (t) => {
  const { port, requests } = await secure(t);
  const plain = new URL((await fake(t, (request, response) => answer(response))).url).port;
  for (const [url, options] of [
    [`https://localhost:${port}`, {}], [`https://localhost:${port}`, { tls: { ca: stranger.cert } }],
    [`https://localhost:${port}`, { tls: { ca: server.cert, servername: 'elsewhere' } }], [`https://localhost:${plain}`, { tls: { ca: server.cert } }],
  ]) {
    const error = await query(t, url, options);
    assert.ok(error instanceof ConnectionError, String(error));
    assert.deepEqual([error.code, error.safeToRetry, error.outcomeUnknown], ['SIDECAR_AWAY', true, false], error.message);
  }
  assert.equal(requests(), 0);
});

test('a sidecar that wants a certificate of the client gets it', async (t) => {
  const { port, requests } = await secure(t, { ca: client.cert, requestCert: true, rejectUnauthorized: true });
  assert.deepEqual(await query(t, `https://localhost:${port}`, { tls: { ca: server.cert, ...client } }), [{ a: 1n }]);
  assert.ok(await query(t, `https://localhost:${port}`, { tls: { ca: server.cert } }) instanceof ConnectionError);
  assert.equal(requests(), 1);
});

test('no proxy of the environment gets calls', async (t) => {
  let asked = 0;
  const proxy = http.createServer((request, response) => { asked++; response.writeHead(502).end(); }).on('connect', (request, socket) => { asked++; socket.end(); });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  t.after(() => proxy.close());
  const names = ['HTTP_PROXY', 'http_proxy', 'HTTPS_PROXY', 'https_proxy', 'ALL_PROXY', 'all_proxy', 'grpc_proxy'];
  const before = Object.fromEntries([...names, 'NO_PROXY', 'no_proxy', 'NODE_USE_ENV_PROXY'].map((name) => [name, process.env[name]]));
  t.after(() => {
    for (const [name, value] of Object.entries(before)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  });
  for (const name of Object.keys(before)) delete process.env[name];
  for (const name of names) process.env[name] = `http://127.0.0.1:${proxy.address().port}`;
  process.env.NODE_USE_ENV_PROXY = '1';
  const { url } = await fake(t, (request, response) => answer(response));
  assert.deepEqual(await query(t, url), [{ a: 1n }]);
  const { port } = await secure(t);
  assert.deepEqual(await query(t, `https://localhost:${port}`, { tls: { ca: server.cert } }), [{ a: 1n }]);
  assert.equal(asked, 0);
});

// The client over HTTP/JSON, with fetch; a stream of rows, which needs both directions at a time, with node:http.
import { once } from 'node:events';
import http from 'node:http';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { Client, SidecarError, noAnswer } from './sidecar_client.mjs';
import { traceparent } from './tracing.mjs';

export class HttpClient extends Client {
  #base;

  constructor(address) {
    super();
    this.#base = `http://${address}`;
  }

  async execute(sql, params = {}, { mode, idempotent = false, timeout, tx } = {}) {
    const mayKeep = !idempotent && (!tx || tx.commit);
    const answer = await this.#call('POST', '/v1/query', { sql, params, mode, idempotent, tx }, timeout, mayKeep);
    return { ...result(answer), info: answer.info, txId: answer.tx?.id ?? '' };
  }

  async* stream(sql, params = {}, { mode, timeout } = {}) {
    try {
      const answer = await this.#send('POST', '/v1/query', { sql, params, mode, rows: 'objects' }, timeout, 'application/x-ndjson');
      if (!answer.ok) throw problem(await answer.json());
      for await (const line of lines(answer.body)) {
        const part = parse(line);
        if (part.row) yield part.row;
        else if (part.error) throw problem(part.error);
        else if (part.end) return;
      }
    } catch (error) {
      throw error instanceof SidecarError ? error : noAnswer(`stream: ${error.cause ?? error}`, false, error);
    }
    throw noAnswer('the stream ended without its end', false);
  }

  async transact(statements, { idempotent = false, timeout } = {}) {
    const list = statements.map(([sql, params]) => ({ sql, params: params ?? {} }));
    return (await this.#call('POST', '/v1/tx', { statements: list, idempotent }, timeout, !idempotent)).results.map(result);
  }

  async* ingest(table, rows, { offset = 0, stream = '' } = {}) {
    const path = `/v1/ingest/${encodeURIComponent(table)}?offset=${offset}&stream=${encodeURIComponent(stream)}`;
    const request = http.request(this.#base + path, { method: 'POST', headers: { 'content-type': 'application/x-ndjson', traceparent: traceparent() } });
    try {
      request.flushHeaders();
      const [answer] = await once(request, 'response');
      request.on('error', () => {}); // the answer says why
      if (answer.statusCode !== 200) throw problem(parse(await text(answer)));
      sendLines(request, rows).catch(() => {});
      for await (const line of lines(Readable.toWeb(answer))) {
        const part = parse(line);
        if (part.ack) yield { ack: part.ack.next };
        else if (part.refused) yield { refused: part.refused.offset, error: problem(part.refused.error) };
        else if (part.error) throw problem(part.error);
        else if (part.end) return;
      }
    } catch (error) {
      // What was not acknowledged may be sent again: writing it twice does no harm.
      throw error instanceof SidecarError ? error : noAnswer(`ingest: ${error.cause ?? error}`, false, error);
    } finally {
      request.destroy();
    }
    throw noAnswer('the stream ended without its end', false);
  }

  async get(table, key, timeout) {
    try {
      return await this.#value('GET', table, key, undefined, timeout);
    } catch (error) {
      if (error.code === 'KEY_NOT_FOUND') return undefined;
      throw error;
    }
  }

  async put(table, key, value, timeout) {
    await this.#value('PUT', table, key, value, timeout);
  }

  async delete(table, key, timeout) {
    await this.#value('DELETE', table, key, undefined, timeout);
  }

  // A call of the key-value face: the value is the body, with nothing around it.
  async #value(method, table, key, value, timeout) {
    try {
      const answer = await this.#send(method, `/v1/kv/${table}?${new URLSearchParams({ id: String(key) })}`, value, timeout);
      const body = Buffer.from(await answer.arrayBuffer());
      if (!answer.ok) throw problem(parse(body.toString()));
      return body;
    } catch (error) {
      if (error instanceof SidecarError) throw error;
      throw noAnswer(`${method} ${table}: ${error.cause ?? error}`, false, error);
    }
  }

  async commit(id, timeout) {
    await this.#call('POST', `/v1/tx/${id}/commit`, {}, timeout, true);
  }

  async rollback(id, timeout) {
    await this.#call('POST', `/v1/tx/${id}/rollback`, {}, timeout, false);
  }

  async status() {
    return this.#call('GET', '/v1/status', undefined, 5000, false);
  }

  close() {}

  async #call(method, path, body, timeout, mayHaveRun) {
    try {
      const answer = await this.#send(method, path, body, timeout);
      const text = await answer.text();
      if (!answer.ok) throw problem(parse(text));
      return parse(text);
    } catch (error) {
      if (error instanceof SidecarError) throw error;
      // A refused connection is the one failure of fetch that surely sent nothing.
      const refused = error.cause?.code === 'ECONNREFUSED';
      throw noAnswer(`${method} ${path}: ${error.cause ?? error}`, mayHaveRun && !refused, error);
    }
  }

  #send(method, path, body, timeout, accept = 'application/json') {
    const headers = { accept, traceparent: traceparent() };
    const bytes = Buffer.isBuffer(body);
    if (body !== undefined) headers['content-type'] = bytes ? 'application/octet-stream' : 'application/json';
    let signal;
    if (timeout !== undefined) {
      // The sidecar ends the call at its timeout; fetch waits a little longer, so that its
      // answer, which says what came of the call, is heard.
      headers['request-timeout'] = `${Math.max(1, Math.floor(timeout))}ms`;
      signal = AbortSignal.timeout(timeout + 1000);
    }
    return fetch(this.#base + path, { method, headers, signal, body: bytes ? body : body && JSON.stringify(body, wire) });
  }
}

// BigInts travel as strings, which the sidecar accepts for every 64-bit type; bytes as base64.
function wire(key, value) {
  if (typeof value === 'bigint') return String(value);
  const bytes = this[key]; // before Buffer.toJSON
  return Buffer.isBuffer(bytes) ? bytes.toString('base64') : value;
}

// Sends rows as lines, 100 at a time, and waits while the sidecar has enough to do.
async function sendLines(request, rows) {
  let part = [];
  const send = async () => {
    if (!request.write(part.join(''))) await once(request, 'drain');
    part = [];
  };
  for await (const row of rows) {
    part.push(`${JSON.stringify(row, wire)}\n`);
    if (part.length === 100) await send();
  }
  if (part.length) await send();
  request.end();
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`not JSON: ${text.slice(0, 200)}`, { cause: error });
  }
}

function problem(said) {
  return new SidecarError(said.code, said.detail ?? said.message ?? said.title, {
    safeToRetry: said.safe_to_retry, outcomeUnknown: said.outcome_unknown, retryAfter: said.retry_after_ms,
    ydbStatus: said.ydb_status, traceId: said.trace_id, hint: said.hint,
  });
}

async function* lines(body) {
  let rest = '';
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const found = (rest + text).split('\n');
    rest = found.pop();
    yield* found.filter((line) => line);
  }
  if (rest) yield rest;
}

function set(answer) {
  return { columns: (answer.columns ?? []).map((column) => column.name), rows: answer.rows ?? [] };
}

function result(answer) {
  const first = set(answer);
  return { ...first, sets: answer.sets?.length ? answer.sets.map(set) : [first] };
}

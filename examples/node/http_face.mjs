// The client over HTTP/JSON, with fetch and nothing else.
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
    const headers = { 'content-type': 'application/json', accept, traceparent: traceparent() };
    let signal;
    if (timeout !== undefined) {
      // The sidecar ends the call at its timeout; fetch waits a little longer, so that its
      // answer, which says what came of the call, is heard.
      headers['request-timeout'] = `${Math.max(1, Math.floor(timeout))}ms`;
      signal = AbortSignal.timeout(timeout + 1000);
    }
    return fetch(this.#base + path, { method, headers, signal, body: body && JSON.stringify(body, wire) });
  }
}

// BigInts travel as strings, which the sidecar accepts for every 64-bit type; bytes as base64.
function wire(key, value) {
  if (typeof value === 'bigint') return String(value);
  const bytes = this[key]; // before Buffer.toJSON
  return Buffer.isBuffer(bytes) ? bytes.toString('base64') : value;
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

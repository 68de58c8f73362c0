// The HTTP API, over TCP, TLS or a Unix socket. fetch has no Unix sockets and reads no answer while it sends, so this is node:http.
import { once } from 'node:events';
import http from 'node:http';
import https from 'node:https';
import { TLSSocket } from 'node:tls';
import { noAnswer, notASidecar, problem, timeOver, SidecarError, type Keeps } from './errors.js';
import type { TlsOptions } from './options.js';
import {
  drained, duration, type Call, type IngestLine, type KvAnswer, type KvRequest, type Method, type Request, type Rows, type StreamLine,
  type Transport,
} from './transport.js';
import { bytes, encode, type Value } from './values.js';

// The sidecar answers at its own deadline and says what came of the call; the client waits for that.
const grace = 1000;

// An idle connection is closed after so many milliseconds, before the sidecar (http.idle_timeout) does it.
const idle = 60_000;

// Statuses of calls that succeeded; a redirect, say, is a proxy's.
const good = new Set([200, 201, 204, 304]);

const json = 'application/json';
const ndjson = 'application/x-ndjson';

/** Carries calls over HTTP to a URL, or to the Unix socket `socketPath`. */
export class HttpTransport implements Transport {
  readonly source = 'json';
  readonly #to: http.RequestOptions;
  readonly #prefix: string;
  readonly #agent: http.Agent;
  readonly #request: typeof http.request;

  constructor(url: URL, socketPath: string | undefined, tls: TlsOptions | undefined) {
    const secure = url.protocol === 'https:';
    this.#agent = secure ? new https.Agent({ keepAlive: true, timeout: idle, ...tls }) : new http.Agent({ keepAlive: true, timeout: idle });
    this.#request = secure ? https.request : http.request;
    const host = url.hostname.replace(/^\[|\]$/g, '');
    this.#to = socketPath !== undefined ? { socketPath, headers: { host: 'localhost' } } : { host, port: url.port || (secure ? 443 : 80) };
    this.#prefix = url.pathname.replace(/\/$/, '');
  }

  async unary(method: Method, request: Request, call: Call): Promise<Record<string, any>> {
    const { verb, path, body } = route(method, request);
    return this.#answer(verb, path, body, call, members[method]);
  }

  async batchGet(table: string, ids: readonly Value[], priority: string | undefined, call: Call): Promise<Record<string, any>> {
    const list = ids.map((id) => Array.isArray(id) && id.length === 1 ? id[0] : id); // a key of one column is no list
    return this.#answer('POST', `/v1/kv/${encodeURIComponent(table)}:batchGet`, encode({ ids: list, priority }), call, 'items');
  }

  async #answer(verb: string, path: string, body: string | undefined, call: Call, member?: string): Promise<Record<string, any>> {
    const sent = this.#send(verb, path, { accept: json, ...body !== undefined && { 'content-type': json } }, call);
    sent.request.end(body);
    return sent.read(async (response) => {
      const text = (await whole(response)).toString();
      const value = tried(text);
      // What is cut or broken on its way may have been the sidecar's; what is whole and different was not.
      if (value === undefined && (text === '' || response.headers['content-type']?.includes('json'))) throw foreign(text || 'it is empty');
      if (value === null || typeof value !== 'object' || (member !== undefined && !(member in value))) {
        throw notASidecar(sent.where, `status ${response.statusCode}: ${text.slice(0, 200)}`, response.statusCode);
      }
      return value;
    });
  }

  async* stream(request: Request, call: Call): AsyncGenerator<StreamLine[], void, undefined> {
    const sent = this.#send('POST', '/v1/query', { accept: ndjson, 'content-type': json }, call);
    sent.request.end(route('Execute', request).body);
    yield* sent.lines<StreamLine>();
  }

  async* ingest(
    open: { table: string; offset: number; stream: string }, rows: Iterable<Rows> | AsyncIterable<Rows>, call: Call,
  ): AsyncGenerator<IngestLine[], void, undefined> {
    const query = new URLSearchParams({ offset: String(open.offset), stream: open.stream });
    const path = `/v1/ingest/${pathOf(open.table)}?${query}`;
    const sent = this.#send('POST', path, { accept: ndjson, 'content-type': ndjson }, call);
    sent.request.flushHeaders();
    const sending = new Sending(sent.request);
    try {
      yield* sent.lines<IngestLine>(() => sending.start(rows));
    } catch (error) {
      throw sending.failure ? sending.failure.cause : error; // the caller's own rows failed
    } finally {
      sending.stop();
    }
  }

  async kv(method: 'GET' | 'PUT' | 'DELETE', request: KvRequest, call: Call): Promise<KvAnswer> {
    const query = request.id.map((part) => `id=${part instanceof Uint8Array ? percent(part) : encodeURIComponent(text(part))}`);
    const headers: Record<string, string> = { accept: '*/*' };
    if (request.match.length > 0) headers['if-match'] = request.match.join(', ');
    if (request.noneMatch.length > 0) headers['if-none-match'] = request.noneMatch.join(', ');
    if (request.priority !== undefined) headers['x-ydb-priority'] = request.priority;
    if (request.value) headers['content-type'] = 'application/octet-stream';
    const sent = this.#send(method, `/v1/kv/${encodeURIComponent(request.table)}?${query.join('&')}`, headers, call);
    sent.request.end(request.value && bytes(request.value));
    return sent.read(async (response) => {
      const { statusCode, headers } = response;
      const body = await whole(response);
      return {
        value: method === 'GET' && statusCode === 200 ? body : null, notModified: statusCode === 304, created: statusCode === 201,
        etag: headers.etag, contentType: headers['content-type'] ?? '',
      };
    });
  }

  close(): void {
    this.#agent.destroy();
  }

  #send(method: string, path: string, headers: Record<string, string>, call: Call): Sent {
    if (call.timeout !== undefined) headers['request-timeout'] = duration(call.timeout);
    const where = this.#to.socketPath ?? `${this.#to.host}:${this.#to.port}`;
    const request = this.#request({
      ...this.#to, method, path: this.#prefix + path, agent: this.#agent, headers: { ...this.#to.headers, ...headers, ...call.headers },
    });
    return new Sent(request, `${method} ${path.replace(/\?.*/, '')}`, call, where);
  }
}

// A request that was begun, and its end: an answer, or an error that says what may have come of it.
class Sent {
  #connected = false;
  #reason: unknown; // why this client ended it
  #timer: NodeJS.Timeout | undefined;
  readonly #abort = () => this.#end(this.#call.signal!.reason);
  readonly #response: Promise<http.IncomingMessage>;
  readonly #call: Call;

  constructor(readonly request: http.ClientRequest, readonly what: string, call: Call, readonly where: string) {
    this.#call = call;
    this.#response = once(request, 'response').then(([response]) => response);
    this.#response.catch(() => {}); // who reads it is told
    request.on('error', () => {}); // and so is who reads the body
    request.on('socket', (socket) => {
      // Over TLS nothing is sent before the handshake is done.
      if (socket.connecting) socket.once(socket instanceof TLSSocket ? 'secureConnect' : 'connect', () => { this.#connected = true; });
      else this.#connected = true;
    });
    if (call.timeout !== undefined) {
      // A timer of Node cannot take longer.
      this.#timer = setTimeout(() => this.#end(timeOver(what, this.#keeps())), Math.min(call.timeout + grace, 2 ** 31 - 1));
    }
    if (call.signal?.aborted) this.#abort();
    else call.signal?.addEventListener('abort', this.#abort, { once: true });
  }

  async read<T>(take: (response: http.IncomingMessage) => Promise<T>): Promise<T> {
    try {
      return await take(await this.#good());
    } catch (error) {
      throw this.#error(error);
    } finally {
      this.#done();
    }
  }

  // Yields the lines of the answer, those of one piece together. Leaving the loop ends the request.
  async* lines<T extends object>(begun?: () => void): AsyncGenerator<T[], void, undefined> {
    let response: http.IncomingMessage | undefined;
    let last: any;
    try {
      response = await this.#good();
      begun?.();
      for await (const texts of lines(response)) {
        const parts: any[] = texts.map(parsed);
        last = parts.at(-1);
        if (last.error) parts.pop();
        if (parts.length > 0) yield parts;
        if (last.error) throw problem(last.error);
      }
      if (!last?.end) throw new Error('the answer stopped before its end');
    } catch (error) {
      throw this.#error(error);
    } finally {
      this.#done();
      if (!response?.complete) this.request.destroy(); // otherwise its connection serves again
    }
  }

  async #good(): Promise<http.IncomingMessage> {
    const response = await this.#response;
    const status = response.statusCode!;
    const page = status === 200 && response.headers['content-type']?.startsWith('text/html'); // no answer of the sidecar is one
    if (good.has(status) && !page) return response;
    const body = (await whole(response)).toString();
    const said = response.headers['content-type']?.startsWith('application/problem+json') ? tried(body) : undefined;
    if (typeof said?.code === 'string') throw problem(said);
    // A proxy passed the call on, or tried to, and has no answer.
    if (status >= 500) throw foreign(`status ${status}: ${body}`);
    throw notASidecar(this.where, `status ${status}: ${body.slice(0, 200)}`, status);
  }

  #error(error: unknown): unknown {
    if (this.#reason !== undefined) return this.#reason;
    if (error instanceof SidecarError) return error;
    if ((error as NodeJS.ErrnoException | undefined)?.code === 'HPE_INVALID_CONSTANT') { // what the parser says of other protocols
      return notASidecar(this.where, 'its answer is not HTTP/1.1', 0, error);
    }
    return noAnswer(`${this.what}: ${error instanceof Error ? error.message : error}`, this.#keeps(), error);
  }

  // Nothing was sent while there was no connection.
  #keeps(): Keeps {
    return this.#connected ? this.#call.keeps : 'nothing';
  }

  #end(reason: unknown): void {
    this.#reason = reason;
    this.request.destroy(new Error('ended'));
  }

  #done(): void {
    clearTimeout(this.#timer);
    this.#call.signal?.removeEventListener('abort', this.#abort);
  }
}

// Sends rows as lines while the sidecar takes them.
class Sending {
  failure: { cause: unknown } | undefined;
  #stopped = false;

  constructor(readonly request: http.ClientRequest) {}

  start(rows: Iterable<Rows> | AsyncIterable<Rows>): void {
    this.#run(rows).catch((cause) => {
      if (this.#stopped) return;
      this.failure = { cause };
      this.request.destroy(new Error('the rows failed'));
    });
  }

  stop(): void {
    this.#stopped = true;
  }

  async #run(rows: Iterable<Rows> | AsyncIterable<Rows>): Promise<void> {
    for await (const part of rows) {
      if (this.#stopped || this.request.destroyed) return;
      if (!this.request.write(part.map((row) => `${encode(row)}\n`).join(''))) await drained(this.request);
    }
    if (!this.#stopped) this.request.end();
  }
}

const paths: Partial<Record<Method, string>> = {
  Execute: '/v1/query', Transact: '/v1/tx', Begin: '/v1/tx/begin', Batch: '/v1/batch', BulkUpsert: '/v1/bulk', Explain: '/v1/explain',
};

// A member that each answer of success has, by call; none is asked of those that are not here.
const members: Partial<Record<Method, string>> = {
  Execute: 'columns', Transact: 'results', Batch: 'results', Begin: 'tx', GetTransaction: 'tx', Describe: 'columns', Status: 'nodes',
  Version: 'api',
};

// The HTTP request of a call.
function route(method: Method, request: Request): { verb: string; path: string; body?: string } {
  const { id, path, ...rest } = request;
  const tx = `/v1/tx/${encodeURIComponent(id)}`;
  switch (method) {
    case 'Commit': return { verb: 'POST', path: `${tx}/commit`, body: '{}' };
    case 'Rollback': return { verb: 'POST', path: `${tx}/rollback`, body: '{}' };
    case 'GetTransaction': return { verb: 'GET', path: tx };
    case 'Describe': return { verb: 'GET', path: `/v1/schema/${encodeURIComponent(path)}` };
    case 'Status': return { verb: 'GET', path: '/v1/status' };
    case 'Version': return { verb: 'GET', path: '/v1' };
    case 'Execute': case 'Transact': case 'Batch': return { verb: 'POST', path: paths[method]!, body: encode({ ...rest, rows: 'arrays' }) };
    default: return { verb: 'POST', path: paths[method]!, body: encode(rest) };
  }
}

// Reads an object that the sidecar wrote.
function parsed(text: string): Record<string, any> {
  const value = tried(text);
  if (value === null || typeof value !== 'object') throw foreign(text === '' ? 'it is empty' : text);
  return value;
}

function tried(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function foreign(text: string): Error {
  return new Error(`the answer is not the sidecar's: ${text.slice(0, 200)}`);
}

async function whole(response: http.IncomingMessage): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of response) pieces.push(piece);
  return Buffer.concat(pieces);
}

// Yields the lines of a body, those of one piece together.
async function* lines(response: http.IncomingMessage): AsyncGenerator<string[], void, undefined> {
  let rest = '';
  for await (const piece of response.setEncoding('utf8')) {
    const end = piece.lastIndexOf('\n');
    if (end < 0) {
      rest += piece;
      continue;
    }
    yield (rest + piece.slice(0, end)).split('\n');
    rest = piece.slice(end + 1);
  }
  if (rest !== '') yield [rest];
}

// Bytes in a URL: those of plain letters as they are.
function percent(value: Uint8Array): string {
  return bytes(value).toString('latin1').replace(/[^A-Za-z0-9_.~-]/g, (byte) => `%${byte.charCodeAt(0).toString(16).padStart(2, '0')}`);
}

function text(value: Value): string {
  return value instanceof Date ? value.toISOString() : String(value);
}

/** A table in a path. A slash at its beginning is written as %2F: servers redirect paths with two slashes in a row. */
function pathOf(table: string): string {
  return table.split('/').map(encodeURIComponent).join('/').replace(/^\//, '%2F');
}

// The gRPC API, with @grpc/grpc-js and @grpc/proto-loader, which the app installs.
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import { errorOf, noAnswer, notASidecar, problem, SidecarError, timeOver, type Keeps } from './errors.js';
import { pack, packOne, readMessage, unpack } from './messages.js';
import type { TlsOptions } from './options.js';
import {
  drained, type Call, type IngestLine, type KvAnswer, type KvRequest, type Method, type Request, type Rows, type StreamLine,
  type Transport,
} from './transport.js';
import type { Value } from './values.js';

// The sidecar answers at its own deadline and says what came of the call; the client waits for that.
const grace = 1000;

const includeDirs = [fileURLToPath(new URL('../proto', import.meta.url))];
const options = { keepCase: true, longs: String, oneofs: true, defaults: true, includeDirs };
const files = ['sidecar/v1/sidecar.proto', 'sidecar/v1/ingest.proto', 'sidecar/v1/kv.proto'];

// Parts of google.rpc.Status and its details, which grpc-js does not have.
const rpc = protoLoader.fromJSON({ nested: {
  Any: { fields: { type_url: { type: 'string', id: 1 }, value: { type: 'bytes', id: 2 } } },
  Status: { fields: { details: { rule: 'repeated', type: 'Any', id: 3 } } },
} }, options);

// What grpc-js says when there was no connection to send a call over.
const unconnected = /^No connection established|^Name resolution failed/;

// What it says of a request that cannot be written.
const unpacked = /^Request message serialization failure/;

interface Message { deserialize(bytes: Buffer): Record<string, any> }

/** Carries calls over one gRPC channel. */
export class GrpcTransport implements Transport {
  readonly source = 'grpc';
  readonly #sidecar: any;
  readonly #ingest: any;
  readonly #kv: any;
  readonly #error: Message;
  readonly #target: string;

  constructor(target: string, secure: boolean, tls: TlsOptions | undefined) {
    this.#target = target;
    const definition = protoLoader.loadSync(files, options);
    const { Sidecar, Ingest, KeyValue } = (grpc.loadPackageDefinition(definition) as any).sidecar.v1;
    this.#error = definition['sidecar.v1.Error'] as unknown as Message;
    const channel: Record<string, unknown> = { 'grpc.max_receive_message_length': -1, 'grpc.enable_retries': 0,
      // As over HTTP, http_proxy of the environment does not count: the sidecar is near.
      'grpc.enable_http_proxy': 0 };
    if (tls?.servername !== undefined) channel['grpc.ssl_target_name_override'] = tls.servername;
    const credentials = secure
      ? grpc.credentials.createSsl(pem(tls?.ca), pem(tls?.key), pem(tls?.cert)) : grpc.credentials.createInsecure();
    this.#sidecar = new Sidecar(target, credentials, channel);
    const channelOverride = this.#sidecar.getChannel();
    this.#ingest = new Ingest(target, credentials, { channelOverride });
    this.#kv = new KeyValue(target, credentials, { channelOverride });
  }

  async unary(method: Method, request: Request, call: Call): Promise<Record<string, any>> {
    return readMessage(await this.#call(this.#sidecar, method, ready(request, call), call));
  }

  async batchGet(table: string, ids: readonly Value[], priority: string | undefined, call: Call): Promise<Record<string, any>> {
    const request = pack({ table, ids: ids.map((id) => key(Array.isArray(id) ? id : [id])), priority }, call.timeout);
    const { items, missing } = await this.#call(this.#kv, 'BatchGet', request, call);
    return { items: items.map((item: any) => ({ ...item, id: unkey(item.id) })), missing: missing.map(unkey) };
  }

  async* stream(request: Request, call: Call): AsyncGenerator<StreamLine[], void, undefined> {
    const stream = this.#sidecar.ExecuteStream(ready(request, call), metadata(call), deadline(call));
    for await (const part of this.#read(stream, 'ExecuteStream', call)) {
      if (part.columns) yield [{ columns: part.columns.columns, set: part.columns.set }];
      else if (part.rows) yield part.rows.rows.map((row: any) => ({ row: row.values.map(unpack) }));
      else if (part.end) yield [{ end: part.end }];
    }
  }

  async* ingest(
    open: { table: string; offset: number; stream: string }, rows: Iterable<Rows> | AsyncIterable<Rows>, call: Call,
  ): AsyncGenerator<IngestLine[], void, undefined> {
    const stream = this.#ingest.Ingest(metadata(call), deadline(call));
    stream.write({ open });
    let failure: { cause: unknown } | undefined;
    let stopped = false;
    send(stream, rows, () => stopped).catch((cause) => {
      if (stopped) return;
      failure = { cause };
      stream.cancel();
    });
    try {
      for await (const part of this.#read(stream, 'Ingest', call)) {
        if (part.ack) yield [{ ack: part.ack }];
        else if (part.refused) yield [{ refused: part.refused }];
        else if (part.end) yield [{ end: part.end }];
      }
    } catch (error) {
      throw failure ? failure.cause : error; // the caller's own rows failed
    } finally {
      stopped = true;
    }
  }

  async kv(method: 'GET' | 'PUT' | 'DELETE', { table, id, value, match, noneMatch, priority }: KvRequest, call: Call): Promise<KvAnswer> {
    const condition = { match: match.map(unquote), none_match: noneMatch.map(unquote) };
    const name = { GET: 'Get', PUT: 'Put', DELETE: 'Delete' }[method];
    const answer = await this.#call(this.#kv, name, pack({ table, id: key(id), value, condition, priority }, call.timeout), call);
    return {
      value: answer.value ?? null, notModified: answer.not_modified ?? false, created: answer.created ?? false,
      etag: answer.version ? `"${answer.version}"` : undefined, contentType: answer.content_type ?? '',
    };
  }

  close(): void {
    this.#sidecar.close();
  }

  async #call(stub: any, name: string, request: Request, call: Call): Promise<any> {
    let release = () => {};
    try {
      return await new Promise((resolve, reject) => {
        const answered = (error: any, answer: any) => error ? reject(error) : resolve(answer);
        const sent = stub[name](request, metadata(call), deadline(call), answered);
        release = onAbort(call.signal, () => sent.cancel());
      });
    } catch (error) {
      throw call.signal?.aborted ? call.signal.reason : this.#failed(error, name, call.keeps);
    } finally {
      release();
    }
  }

  // Yields the messages of a stream to its end; leaving the loop cancels it.
  async* #read(stream: any, name: string, call: Call): AsyncGenerator<any, void, undefined> {
    const release = onAbort(call.signal, () => stream.cancel());
    let ended = false;
    try {
      for await (const part of stream) {
        ended = Boolean(part.end);
        yield part;
      }
      if (!ended) throw new Error('the answer stopped before its end');
    } catch (error) {
      throw call.signal?.aborted ? call.signal.reason : this.#failed(error, name, call.keeps);
    } finally {
      release();
      if (!ended) {
        stream.on('error', () => {});
        stream.cancel();
      }
    }
  }

  // What the sidecar said stands in the details; without them it was not the sidecar that answered.
  #failed(error: any, name: string, kept: Keeps): unknown {
    if (error instanceof SidecarError) return error;
    for (const { type_url: type, value } of details(error)) {
      if (type.endsWith('/sidecar.v1.Error')) return problem(this.#error.deserialize(value));
    }
    const said = error.details || error.message;
    if (error.code === grpc.status.DEADLINE_EXCEEDED) return timeOver(name, kept);
    if (unpacked.test(said)) { // nothing was sent: the request is no message
      const deep = said.includes('nesting depth');
      const fields = { message: said, hint: 'Correct the request.', cause: error };
      return errorOf(deep ? { ...fields, code: 'LIMIT_EXCEEDED', status: 413 } : { ...fields, code: 'BAD_REQUEST', status: 400 });
    }
    if (error.code === grpc.status.UNIMPLEMENTED && said.includes('unknown method')) {
      return errorOf({ code: 'NO_SUCH_ROUTE', message: said, status: 404, hint: 'Update the sidecar: it is older than this client.', cause: error });
    }
    if (error.code === grpc.status.UNIMPLEMENTED) return notASidecar(this.#target, said, 404, error);
    const nowhere = error.code === grpc.status.UNAVAILABLE && unconnected.test(said);
    return noAnswer(`${name}: ${said}`, nowhere ? 'nothing' : kept, error);
  }
}

function details(error: any): { type_url: string; value: Buffer }[] {
  const [status] = error.metadata?.get('grpc-status-details-bin') ?? [];
  return status ? (rpc['Status'] as unknown as Message).deserialize(status)['details'] : [];
}

async function send(stream: any, rows: Iterable<Rows> | AsyncIterable<Rows>, stopped: () => boolean): Promise<void> {
  for await (const part of rows) {
    for (const message of byColumns(part)) {
      if (stopped()) return;
      if (!stream.write({ rows: message })) await drained(stream);
    }
  }
  stream.end();
}

// Rows of the same columns that follow each other go in one message.
function byColumns(rows: Rows): { columns: string[]; rows: { values: unknown[] }[] }[] {
  const messages: { columns: string[]; rows: { values: unknown[] }[] }[] = [];
  for (const row of rows) {
    const names = Object.keys(row).filter((name) => row[name] !== undefined);
    let last = messages.at(-1);
    if (!last || last.columns.length !== names.length || last.columns.some((name, i) => name !== names[i])) {
      messages.push(last = { columns: names, rows: [] });
    }
    last.rows.push({ values: names.map((name) => packOne(row[name]!)) });
  }
  return messages;
}

function ready(request: Request, call: Call): Request {
  return pack(request, call.timeout);
}

function metadata(call: Call): grpc.Metadata {
  const out = new grpc.Metadata();
  for (const [name, value] of Object.entries(call.headers)) out.set(name, value);
  return out;
}

function deadline(call: Call): { deadline?: number } {
  return call.timeout === undefined ? {} : { deadline: Date.now() + call.timeout + grace };
}

function onAbort(signal: AbortSignal | undefined, leave: () => void): () => void {
  if (signal?.aborted) leave();
  else signal?.addEventListener('abort', leave, { once: true });
  return () => signal?.removeEventListener('abort', leave);
}

function pem(text: string | Buffer | undefined): Buffer | null {
  return text === undefined ? null : Buffer.from(text as string);
}

function key(id: readonly Value[]): { columns: unknown[] } {
  return { columns: id.map((part) => packOne(part)) };
}

function unkey(id: { columns: any[] }): unknown {
  return id.columns.length === 1 ? unpack(id.columns[0]) : id.columns.map(unpack);
}

function unquote(tag: string): string {
  return tag.replace(/^"(.*)"$/, '$1');
}

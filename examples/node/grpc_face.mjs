// The client over gRPC. The .proto files are read at run time: no generated code.
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import { Client, SidecarError, noAnswer } from './sidecar_client.mjs';
import { traceparent } from './tracing.mjs';

const PROTO = fileURLToPath(new URL('../../proto', import.meta.url));
const OPTIONS = { keepCase: true, longs: String, oneofs: true, defaults: true };

// The parts of google.rpc.Status, ErrorInfo and RetryInfo that errors carry.
const rpc = protoLoader.fromJSON({ nested: {
  Any: { fields: { type_url: { type: 'string', id: 1 }, value: { type: 'bytes', id: 2 } } },
  Status: { fields: { details: { rule: 'repeated', type: 'Any', id: 3 } } },
  ErrorInfo: { fields: { reason: { type: 'string', id: 1 }, metadata: { keyType: 'string', type: 'string', id: 3 } } },
  Duration: { fields: { seconds: { type: 'int64', id: 1 }, nanos: { type: 'int32', id: 2 } } },
  RetryInfo: { fields: { retry_delay: { type: 'Duration', id: 1 } } },
} }, { ...OPTIONS, longs: Number });

// One channel for all calls.
export class GrpcClient extends Client {
  #stub; #rows; #kv;

  constructor(address) {
    super();
    const files = ['sidecar/v1/sidecar.proto', 'sidecar/v1/ingest.proto', 'sidecar/v1/kv.proto'];
    const { Sidecar, Ingest, KeyValue } = grpc.loadPackageDefinition(protoLoader.loadSync(files, { ...OPTIONS, includeDirs: [PROTO] })).sidecar.v1;
    const options = {
      'grpc.max_receive_message_length': 64 << 20,
      'grpc.enable_retries': 0, // the app's own loop decides what is repeated, see shop.mjs
    };
    this.#stub = new Sidecar(address, grpc.credentials.createInsecure(), options);
    this.#rows = new Ingest(address, grpc.credentials.createInsecure(), options); // over the same channel
    this.#kv = new KeyValue(address, grpc.credentials.createInsecure(), options);
  }

  async execute(sql, params = {}, { mode = '', idempotent = false, timeout, tx } = {}) {
    // Inside an open transaction nothing is kept before the commit.
    const mayKeep = !idempotent && (!tx || tx.commit);
    const answer = await this.#call('Execute', { sql, params: pack(params), mode, idempotent, tx }, timeout, mayKeep);
    return { ...result(answer), info: answer.info, txId: answer.tx?.id ?? '' };
  }

  async* stream(sql, params = {}, { mode = '', timeout } = {}) {
    const call = this.#stub.ExecuteStream({ sql, params: pack(params), mode }, metadata(), deadline(timeout));
    let columns = [];
    try {
      for await (const part of call) {
        if (part.columns) columns = part.columns.columns;
        else if (part.rows) for (const row of part.rows.rows) yield object(columns, row);
        else if (part.end) return;
      }
    } catch (error) {
      throw toError(error, false);
    } finally {
      call.cancel(); // reading ends early when the consumer stops
    }
    throw noAnswer('the stream ended without its end', false);
  }

  async transact(statements, { idempotent = false, timeout } = {}) {
    const list = statements.map(([sql, params]) => ({ sql, params: pack(params ?? {}) }));
    return (await this.#call('Transact', { statements: list, idempotent }, timeout, !idempotent)).results.map(result);
  }

  async* ingest(table, rows, { offset = 0, stream = '' } = {}) {
    const call = this.#rows.Ingest(metadata());
    call.write({ open: { table, offset, stream } });
    sendRows(call, rows).catch(() => {}); // what is read says why
    try {
      for await (const part of call) {
        if (part.ack) yield { ack: Number(part.ack.next) };
        else if (part.refused) {
          const { code, message, hint } = part.refused.error;
          yield { refused: Number(part.refused.offset), error: new SidecarError(code, message, { hint }) };
        } else if (part.end) return;
      }
    } catch (error) {
      throw toError(error, false); // what was not acknowledged may be sent again
    } finally {
      call.cancel();
    }
    throw noAnswer('the stream ended without its end', false);
  }

  async get(table, key, timeout) {
    try {
      return (await this.#call('Get', { table, id: rowId(key) }, timeout, false, this.#kv)).value;
    } catch (error) {
      if (error.code === 'KEY_NOT_FOUND') return undefined;
      throw error;
    }
  }

  async put(table, key, value, timeout) {
    await this.#call('Put', { table, id: rowId(key), value }, timeout, false, this.#kv);
  }

  async delete(table, key, timeout) {
    await this.#call('Delete', { table, id: rowId(key) }, timeout, false, this.#kv);
  }

  async commit(id, timeout) {
    await this.#call('Commit', { id }, timeout, true);
  }

  async rollback(id, timeout) {
    await this.#call('Rollback', { id }, timeout, false);
  }

  async status() {
    return this.#call('Status', {}, 5000, false);
  }

  close() {
    this.#stub.close();
    this.#rows.close();
    this.#kv.close();
  }

  #call(method, request, timeout, mayHaveRun, stub = this.#stub) {
    if (timeout !== undefined && method !== 'Status') request.timeout = `${Math.max(1, Math.floor(timeout))}ms`;
    return new Promise((resolve, reject) => {
      stub[method](request, metadata(), deadline(timeout), (error, answer) => {
        if (error) reject(toError(error, mayHaveRun));
        else resolve(answer);
      });
    });
  }
}

// Sends rows, those of the same columns together and 100 at most, and waits while the sidecar has enough to do.
async function sendRows(call, rows) {
  let columns = [];
  let part = [];
  const send = async () => {
    if (part.length && !call.write({ rows: { columns, rows: part } })) await once(call, 'drain');
    part = [];
  };
  for await (const row of rows) {
    const names = Object.keys(row);
    if (part.length === 100 || names.join() !== columns.join()) await send();
    columns = names;
    part.push({ values: Object.values(row).map(packOne) });
  }
  await send();
  call.end();
}

function metadata() {
  const headers = new grpc.Metadata();
  headers.set('traceparent', traceparent());
  return headers;
}

// The sidecar ends the call at its timeout; the channel waits a little longer, so that its answer,
// which says what came of the call, is heard.
function deadline(timeout) {
  return timeout === undefined ? {} : { deadline: Date.now() + timeout + 1000 };
}

// What the sidecar said stands in ErrorInfo; without one it was not the sidecar that answered.
function toError(error, mayHaveRun) {
  let info, retry;
  for (const { type_url: type, value } of details(error)) {
    if (type.endsWith('/google.rpc.ErrorInfo')) info = rpc.ErrorInfo.deserialize(value);
    if (type.endsWith('/google.rpc.RetryInfo')) retry = rpc.RetryInfo.deserialize(value).retry_delay;
  }
  if (!info) return noAnswer(error.message, mayHaveRun, error);
  const said = info.metadata;
  return new SidecarError(info.reason, error.details, {
    safeToRetry: said.safe_to_retry === 'true',
    outcomeUnknown: said.outcome_unknown === 'true',
    retryAfter: retry ? retry.seconds * 1000 + retry.nanos / 1e6 : 0,
    ydbStatus: said.ydb_status, traceId: said.trace_id, hint: said.hint, cause: error,
  });
}

function details(error) {
  const [status] = error.metadata?.get('grpc-status-details-bin') ?? [];
  return status ? rpc.Status.deserialize(status).details : [];
}

function rowId(key) {
  return { columns: [packOne(key)] }; // one for each column of the key
}

function pack(params) {
  return Object.fromEntries(Object.entries(params).map(([name, value]) => [name, packOne(value)]));
}

function packOne(value) {
  switch (typeof value) {
    case 'boolean': return { bool_value: value };
    case 'bigint': return value < 1n << 63n ? { int64_value: String(value) } : { uint64_value: String(value) };
    case 'number': return Number.isInteger(value) ? { int64_value: String(value) } : { double_value: value };
    case 'string': return { text_value: value };
  }
  if (value === null) return { null_value: true };
  if (Buffer.isBuffer(value)) return { bytes_value: value };
  if (Array.isArray(value)) return { list_value: { items: value.map(packOne) } };
  return { struct_value: { fields: Object.entries(value).map(([name, item]) => ({ name, value: packOne(item) })) } };
}

// Dict and Variant stay messages: this app has none.
function unpack(value) {
  switch (value.kind) {
    case undefined: case 'null_value': return null;
    case 'list_value': return value.list_value.items.map(unpack);
    case 'struct_value': return Object.fromEntries(value.struct_value.fields.map((one) => [one.name, unpack(one.value)]));
    default: return value[value.kind];
  }
}

function object(columns, row) {
  return Object.fromEntries(columns.map((column, i) => [column.name, unpack(row.values[i])]));
}

function set({ columns, rows }) {
  return { columns: columns.map((column) => column.name), rows: rows.map((row) => object(columns, row)) };
}

function result(answer) {
  const first = set(answer);
  return { ...first, sets: answer.sets?.length ? answer.sets.map(set) : [first] };
}

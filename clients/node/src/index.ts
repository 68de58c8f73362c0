// ydb-sidecar: YDB over the plain API of a sidecar.
import { Client } from './client.js';
import { HttpTransport } from './http.js';
import type { ClientOptions } from './options.js';

export { Client, type BatchStatement, type Statement, type Status, type TableDescription, type TransactionOptions } from './client.js';
export {
  AlreadyExistsError, ConditionError, ConnectionError, DeadlineError, ExpectationError, OverloadError, SidecarError, type Issue,
} from './errors.js';
export type { IngestOptions, IngestPart, WriteRow, WriteRows } from './ingest.js';
export type { KeyValue, KvForm, KvFound, KvId, KvItem, KvOptions } from './kv.js';
export type {
  CallOptions, ClientOptions, Limits, Mode, QueryOptions, TlsOptions, TransactOptions, TxMode, TxSelector,
} from './options.js';
export type {
  BatchResult, Column, Info, OpenTx, Result, ResultSet, Row, Stats, StreamEnd, TransactResult,
} from './results.js';
export { retry, type Attempt, type RetryOptions } from './retry.js';
export type { RowStream, StreamPart } from './stream.js';
export type { Transaction, TxQueryOptions } from './transaction.js';
export { typed, type Ints, type Params, type Typed, type Value } from './values.js';

/**
 * Makes a client of the sidecar at an address:
 *
 * - `http://127.0.0.1:7401` (the default), `https://host:port`
 * - `unix:/run/ydb-sidecar/http`, the Unix socket of `http.socket`
 * - `grpc://127.0.0.1:7400`, `grpcs://host:port`, `grpc+unix:/run/ydb-sidecar/grpc`, with @grpc/grpc-js and @grpc/proto-loader installed
 *
 * Nothing is sent before the first call.
 */
export function connect(address = 'http://127.0.0.1:7401', options: ClientOptions = {}): Client {
  const scheme = /^[a-z+]+(?=:)/.exec(address)?.[0] ?? '';
  const rest = address.slice(scheme.length + 1);
  switch (scheme) {
    case 'http': case 'https': return overHttp(new URL(address), undefined, options);
    case 'unix': return overHttp(new URL('http://localhost'), rest.replace(/^\/\/(?=\/)/, ''), options);
    case 'grpc': case 'grpcs': return overGrpc(new URL(`http:${rest}`).host, scheme === 'grpcs', options);
    case 'grpc+unix': return overGrpc(`unix:${rest.replace(/^\/\/(?=\/)/, '')}`, false, options);
    default: throw new TypeError(`address ${JSON.stringify(address)}: want http://, https://, unix:, grpc://, grpcs:// or grpc+unix:`);
  }
}

function overHttp(url: URL, socketPath: string | undefined, options: ClientOptions): Client {
  return new Client(async () => new HttpTransport(url, socketPath, options.tls), 'json', options);
}

function overGrpc(target: string, secure: boolean, options: ClientOptions): Client {
  return new Client(async () => {
    const { GrpcTransport } = await import('./grpc.js').catch((cause) => {
      if (cause.code !== 'ERR_MODULE_NOT_FOUND') throw cause;
      throw new Error('calls over gRPC need two more packages: npm install @grpc/grpc-js @grpc/proto-loader', { cause });
    });
    return new GrpcTransport(target, secure, options.tls);
  }, 'grpc', options);
}

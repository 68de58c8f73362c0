// What carries calls to a sidecar: HTTP or gRPC.
import type { EventEmitter } from 'node:events';
import type { Keeps } from './errors.js';
import type { Source, Value } from './values.js';

/** Calls that are one request and one answer; the names are those of `sidecar.proto`. */
export type Method = 'Execute' | 'Transact' | 'Begin' | 'Commit' | 'Rollback' | 'GetTransaction' | 'Batch' | 'BulkUpsert' | 'Explain'
  | 'Describe' | 'Status' | 'Version';

/** How a call is sent. */
export interface Call {
  /** Milliseconds until the sidecar ends the call; undefined leaves it to the sidecar's `api.timeout`. */
  timeout: number | undefined;
  signal: AbortSignal | undefined;
  headers: Record<string, string>;
  /** What the call may have kept if no answer comes. */
  keeps: Keeps;
}

/** Members of a request as the API names them; params, rows and ids are values as the caller gave them. */
export type Request = Record<string, any>;

/** A call of the key-value API. */
export interface KvRequest {
  table: string;
  id: readonly Value[];
  value?: Uint8Array;
  /** Tags as they stand in `If-Match`: `*`, or versions in quotes. */
  match: readonly string[];
  noneMatch: readonly string[];
  priority: string | undefined;
}

/** What became of a call of the key-value API. */
export interface KvAnswer {
  value: Buffer | null;
  notModified: boolean;
  created: boolean;
  etag: string | undefined;
  contentType: string;
}

/** One part of a stream of rows; row values are in the order of the columns. */
export type StreamLine = { columns: { name: string; type: string }[]; set?: number } | { row: any[] } | { end: Record<string, any> };

/** One part of the answers to a stream of written rows. */
export type IngestLine = { ack: { next: number | string } } | { refused: { offset: number | string; error: Record<string, any> } }
  | { end: { next: number | string; rows: number | string; refused: number | string } };

/** Carries calls. Answers have the members that the API names, and rows are arrays of values. */
export interface Transport {
  readonly source: Source;
  unary(method: Method, request: Request, call: Call): Promise<Record<string, any>>;
  /** Yields parts as they come, several at a time; leaving the loop ends the call. */
  stream(request: Request, call: Call): AsyncGenerator<StreamLine[], void, undefined>;
  ingest(
    open: { table: string; offset: number; stream: string }, rows: Iterable<Rows> | AsyncIterable<Rows>, call: Call,
  ): AsyncGenerator<IngestLine[], void, undefined>;
  kv(method: 'GET' | 'PUT' | 'DELETE', request: KvRequest, call: Call): Promise<KvAnswer>;
  batchGet(table: string, ids: readonly Value[], priority: string | undefined, call: Call): Promise<Record<string, any>>;
  close(): void;
}

/** Some rows to write. */
export type Rows = readonly { readonly [column: string]: Value | undefined }[];

/** A timeout in milliseconds as the API has it. */
export function duration(timeout: number): string {
  return Number.isInteger(timeout) && timeout > 0 ? `${timeout}ms` : `${Math.max(timeout, 1e-6).toFixed(6)}ms`;
}

/** Waits until a stream takes more, or has closed. */
export function drained(stream: EventEmitter): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      stream.off('drain', done).off('close', done);
      resolve();
    };
    stream.on('drain', done).on('close', done);
  });
}

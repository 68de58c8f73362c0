// Options of clients and calls.
import type { Ints } from './values.js';

/** Certificates of a client; contents of PEM files. */
export interface TlsOptions {
  /** Authorities that may have signed the sidecar's certificate, in place of the system's. */
  ca?: string | Buffer | undefined;
  /** Certificate of this client, and its key. */
  cert?: string | Buffer | undefined;
  key?: string | Buffer | undefined;
  /** Name in the sidecar's certificate, if it is not the host of the address. */
  servername?: string | undefined;
}

/** Options of a client. */
export interface ClientOptions {
  /** Name of the app: `X-Sidecar-App`. */
  app?: string | undefined;
  /** Token of the app, where `apps.token` is set: `Authorization: Bearer`. */
  token?: string | undefined;
  /** Timeout of each call that has none of its own, in milliseconds; without it the sidecar's `api.timeout` counts. */
  timeout?: number | undefined;
  /** How `Int64` and `Uint64` are read; `bigint` unless set. */
  ints?: Ints | undefined;
  tls?: TlsOptions | undefined;
}

/** Options of every call. */
export interface CallOptions {
  /** Milliseconds until the sidecar ends the call. */
  timeout?: number | undefined;
  /** Leaves the call; the promise rejects with the signal's reason, and whether the call ran is unknown. */
  signal?: AbortSignal | undefined;
  /** W3C trace context; without it that of @opentelemetry/api, if the app has it. */
  traceparent?: string | undefined;
  /** Class in the queue for a session. */
  priority?: 'system' | 'interactive' | 'normal' | 'batch' | undefined;
}

/** Modes of a transaction. */
export type TxMode = 'serializable_rw' | 'snapshot_ro' | 'snapshot_rw';

/** Modes of a statement: those that end in `_ro` only read. */
export type Mode = TxMode | 'implicit' | 'stale_ro' | 'online_ro';

/** Limits of an answer; what exceeds them is cut off, and `truncated` says so. */
export interface Limits {
  rows?: number | undefined;
  /** Bytes of the values, as YDB sends them. */
  bytes?: number | undefined;
}

/** Belonging to an interactive transaction, as the API has it; {@link Client.transaction} fills it in for you. */
export interface TxSelector {
  begin?: { mode?: TxMode } | undefined;
  id?: string | undefined;
  seq?: number | undefined;
  commit?: boolean | undefined;
}

/** Options of a statement. */
export interface QueryOptions extends CallOptions {
  /** `implicit` unless set: the database decides, and DDL works. */
  mode?: Mode | undefined;
  /** The statement may run twice, so the sidecar repeats it also when a first try may have run. */
  idempotent?: boolean | undefined;
  /** YQL types of parameters that the statement does not declare. */
  types?: Readonly<Record<string, string>> | undefined;
  limits?: Limits | undefined;
  stats?: 'none' | 'basic' | 'full' | undefined;
  tx?: TxSelector | undefined;
}

/** Options of a list of statements. */
export interface TransactOptions extends CallOptions {
  mode?: TxMode | undefined;
  idempotent?: boolean | undefined;
  /** Limits of each statement. */
  limits?: Limits | undefined;
  stats?: 'none' | 'basic' | 'full' | undefined;
  tx?: TxSelector | undefined;
}

// Answers of the sidecar, as an app reads them.
import { problem, type SidecarError } from './errors.js';
import type { Decoders } from './values.js';

/** A row as an object, if the app names no type of its own. */
export type Row = Record<string, any>;

/** A column of a result. */
export interface Column {
  name: string;
  /** YQL type, such as `Optional<Utf8>`. */
  type: string;
}

/** One result set. */
export interface ResultSet<R = Row> {
  columns: Column[];
  rows: R[];
  /** A limit cut rows off. */
  truncated: boolean;
}

/** Where the time of a call went, and what it cost. */
export interface Info {
  nodeId: number;
  attempts: number;
  /** Milliseconds in the queue for a session. */
  queueMs: number;
  /** Milliseconds from asking for a session to having it, the queue included. */
  acquireMs: number;
  /** Milliseconds at the node, in the last attempt. */
  hopMs: number;
  /** Milliseconds by the node's own clock; 0 for reads without `stats`. */
  serverMs: number;
  traceId: string;
  /** Request units of all attempts; undefined if the nodes reported none. */
  consumedUnits: number | undefined;
}

/** Statistics of a statement. */
export interface Stats {
  durationUs: number;
  cpuUs: number;
  /** False: the plan came from the server's cache. */
  compiled: boolean;
  tables: { name: string; readRows: number; readBytes: number; updatedRows: number; deletedRows: number }[];
}

/** An interactive transaction that is open. */
export interface OpenTx {
  id: string;
  /** Milliseconds until it is rolled back, if nothing is sent. */
  expiresMs: number;
}

/** The result of a statement. */
export interface Result<R = Row> extends ResultSet<R> {
  /** All result sets; the first one is also `columns` and `rows`. */
  sets: ResultSet[];
  /** Rows inserted, updated or deleted; undefined if the text only reads, or YDB has not counted yet. */
  rowsAffected: number | undefined;
  stats: Stats | undefined;
  info: Info;
  /** The interactive transaction of the call, while it is open. */
  tx: OpenTx | undefined;
}

/** The results of a list of statements. */
export interface TransactResult {
  results: Result[];
  info: Info;
  tx: OpenTx | undefined;
}

/** The outcome of one statement of a batch. */
export type BatchResult = (Result & { error?: undefined }) | { error: SidecarError; info: Info };

/** The end of a stream of rows. */
export interface StreamEnd {
  rows: number;
  truncated: boolean;
  rowsAffected: number | undefined;
  stats: Stats | undefined;
  info: Info;
  tx: OpenTx | undefined;
}

type Raw = Record<string, any>;

export function readInfo(raw: Raw): Info {
  return {
    nodeId: raw.node_id, attempts: raw.attempts, queueMs: raw.queue_ms, acquireMs: raw.acquire_ms, hopMs: raw.hop_ms,
    serverMs: raw.server_ms, traceId: raw.trace_id, consumedUnits: optional(raw.consumed_units),
  };
}

function readStats(raw: Raw | null | undefined): Stats | undefined {
  if (!raw) return undefined;
  return {
    durationUs: Number(raw.duration_us), cpuUs: Number(raw.cpu_us), compiled: raw.compiled,
    tables: raw.tables.map((table: Raw) => ({
      name: table.name, readRows: Number(table.read_rows), readBytes: Number(table.read_bytes), updatedRows: Number(table.updated_rows),
      deletedRows: Number(table.deleted_rows),
    })),
  };
}

export function readTx(raw: Raw | null | undefined): OpenTx | undefined {
  return raw ? { id: raw.id, expiresMs: Number(raw.expires_ms) } : undefined;
}

function readSet(raw: Raw, decoders: Decoders): ResultSet<any> {
  return { columns: raw.columns, rows: raw.rows.map(decoders.row(raw.columns)), truncated: raw.truncated };
}

/** Reads a result; its info and transaction may stand beside it. */
export function readResult<R>(raw: Raw, decoders: Decoders, beside: Raw = raw): Result<R> {
  const sets: ResultSet<any>[] = raw.sets?.length ? raw.sets.map((set: Raw) => readSet(set, decoders)) : [readSet(raw, decoders)];
  return {
    ...sets[0]!, truncated: raw.truncated, sets, rowsAffected: optional(raw.rows_affected), stats: readStats(raw.stats),
    info: readInfo(beside.info), tx: readTx(beside.tx),
  };
}

export function readBatch(raw: Raw, decoders: Decoders): BatchResult {
  return raw.error ? { error: problem(raw.error), info: readInfo(raw.info) } : readResult(raw, decoders);
}

export function readEnd(raw: Raw): StreamEnd {
  return {
    rows: Number(raw.rows), truncated: raw.truncated, rowsAffected: optional(raw.rows_affected), stats: readStats(raw.stats),
    info: readInfo(raw.info), tx: readTx(raw.tx),
  };
}

function optional(count: unknown): number | undefined {
  return count === undefined || count === null ? undefined : Number(count);
}

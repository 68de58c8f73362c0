// The client: one method for each call of the plain API, and transactions that are retried as a whole.
import type { Keeps } from './errors.js';
import { ingest, type IngestOptions, type IngestPart, type WriteRow, type WriteRows } from './ingest.js';
import { KeyValue, type KvForm } from './kv.js';
import type { CallOptions, ClientOptions, QueryOptions, TransactOptions, TxMode } from './options.js';
import {
  readBatch, readInfo, readResult, readTx, type BatchResult, type Info, type OpenTx, type Result, type Row, type TransactResult,
} from './results.js';
import { repeatable, retry, type RetryOptions } from './retry.js';
import { RowStream } from './stream.js';
import { traceHeaders } from './trace.js';
import { Transaction } from './transaction.js';
import type { Call, Method, Transport } from './transport.js';
import { Decoders, prepare, type Params } from './values.js';

/** A statement of a list. */
export interface Statement {
  sql: string;
  params?: Params | undefined;
  types?: Readonly<Record<string, string>> | undefined;
  /** Rows that the statement must return; otherwise nothing of the list is kept, and the call throws an ExpectationError. */
  expect?: { rows?: number } | undefined;
}

/** A statement of a batch. */
export type BatchStatement = Omit<Statement, 'expect'> & Pick<QueryOptions, 'mode' | 'idempotent' | 'limits'>;

/** Options of work in a transaction. */
export interface TransactionOptions extends RetryOptions {
  /** `serializable_rw` unless set. */
  mode?: TxMode | undefined;
  traceparent?: string | undefined;
}

/** A table, as YDB describes it. */
export interface TableDescription {
  path: string;
  columns: { name: string; type: string; notNull: boolean }[];
  primaryKey: string[];
  indexes: { name: string; columns: string[]; covered: string[] }[];
}

/** State of the sidecar. */
export interface Status {
  version: string;
  database: string;
  state: 'starting' | 'serving' | 'draining';
  nodes: { nodeId: number; address: string; zone: string; health: string; use: string; reason: string; sessions: number; busy: number }[];
  pool: { max: number; sessions: number; idle: number; busy: number; creating: number; waiting: number } | undefined;
  openTransactions: number;
  uptimeS: number;
}

/** A client of one sidecar, made by {@link connect}. It may be used by any number of calls at a time. */
export class Client {
  readonly #load: () => Promise<Transport>;
  readonly #options: ClientOptions;
  readonly #decoders: Decoders;
  #transport: Promise<Transport> | undefined;

  /** @internal */
  constructor(load: () => Promise<Transport>, source: Transport['source'], options: ClientOptions) {
    this.#load = load;
    this.#options = options;
    this.#decoders = new Decoders(source, options.ints ?? 'bigint');
  }

  /** Runs one statement, or several that semicolons part, and returns all rows. */
  async query<R = Row>(sql: string, params: Params = {}, options: QueryOptions = {}): Promise<Result<R>> {
    const raw = await this.#unary('Execute', ready({ ...sent(options), sql, params }), options, keeps(options));
    return readResult<R>(raw, this.#decoders);
  }

  /**
   * Streams the rows of a statement. Without a timeout it lasts as long as it moves. A read that is cut fails with an error that is
   * safe to retry.
   */
  stream<R = Row>(sql: string, params: Params = {}, options: QueryOptions = {}): RowStream<R> {
    const call = this.#call(options, keeps(options));
    const self = this;
    return new RowStream<R>(async function* () {
      yield* (await self.#ready()).stream(ready({ ...sent(options), sql, params }), call);
    }, this.#decoders);
  }

  /**
   * Runs work in an interactive transaction, and commits when it returns. If a call fails and nothing was kept, all of the work runs
   * again in a new transaction, so it must have no other effects. After an unknown outcome it runs again only if `idempotent` is set. If
   * the work itself throws, the transaction is rolled back, and the error is thrown. After a commit nothing runs again: an error that
   * asks for it is then the `cause` of the error that is thrown.
   */
  transaction<T>(work: (tx: Transaction) => Promise<T>, options: TransactionOptions = {}): Promise<T> {
    const { mode = 'serializable_rw', signal, traceparent } = options;
    return retry(async ({ left }) => {
      const tx = new Transaction(this, { mode, left, signal, traceparent });
      try {
        const result = await work(tx);
        await tx.commit();
        return result;
      } catch (error) {
        await tx.rollback();
        throw tx.committed ? afterCommit(error) : error;
      }
    }, options);
  }

  /** Runs a list of statements as one transaction, which the sidecar repeats as a whole when that is safe. */
  async transact(statements: readonly Statement[], options: TransactOptions = {}): Promise<TransactResult> {
    const raw = await this.#unary('Transact', { ...sent(options), statements: statements.map(ready) }, options, keeps(options));
    return {
      results: raw.results.map((one: Record<string, any>) => readResult(one, this.#decoders, raw)),
      info: readInfo(raw.info), tx: readTx(raw.tx),
    };
  }

  /** Runs independent statements side by side; each has an outcome of its own. */
  async batch(statements: readonly BatchStatement[], options: CallOptions = {}): Promise<BatchResult[]> {
    const kinds = statements.map(keeps);
    const all = (['unknown', 'twice', 'nothing'] as const).find((one) => kinds.includes(one)) ?? 'nothing'; // the worst of them
    const raw = await this.#unary('Batch', { ...sent(options), statements: statements.map(ready) }, options, all);
    return raw.results.map((one: Record<string, any>) => readBatch(one, this.#decoders));
  }

  /** Writes rows without a transaction, and returns how many. After an error some may be written; writing them again does no harm. */
  async bulk(
    table: string, rows: readonly WriteRow[], options: CallOptions & { types?: Readonly<Record<string, string>> } = {},
  ): Promise<number> {
    return Number((await this.#unary('BulkUpsert', { ...sent(options), table, rows }, options, 'twice')).rows);
  }

  /**
   * Writes rows as they come, in order, and yields what becomes of them. It takes no more rows from their source than the database
   * writes. With rows as a function (from an offset on) the stream is resumed after errors that are safe to retry.
   */
  ingest(
    table: string, rows: WriteRows | ((from: number) => WriteRows), options: IngestOptions = {},
  ): AsyncGenerator<IngestPart, void, undefined> {
    return ingest(() => this.#ready(), table, rows, options, () => this.#call(options, 'twice'));
  }

  /** A table of the key-value API (`kv.tables`). */
  kv<T = any>(table: string, form: 'json'): KeyValue<T>;
  kv(table: string, form: 'text'): KeyValue<string>;
  kv(table: string, form: 'bytes'): KeyValue<Buffer>;
  kv(table: string, form: KvForm): KeyValue<any> {
    return new KeyValue(() => this.#ready(), table, form, (options, kept) => this.#call(this.#timed(options), kept));
  }

  /** Returns the plan of a statement without running it. */
  async explain(
    sql: string, options: CallOptions & { types?: Readonly<Record<string, string>> } = {},
  ): Promise<{ plan: string; ast: string; info: Info }> {
    const raw = await this.#unary('Explain', { ...sent(options), sql }, options, 'nothing');
    return { plan: raw.plan, ast: raw.ast, info: readInfo(raw.info) };
  }

  /** Describes a table by its path, relative to the database or absolute. */
  async describe(path: string, options: CallOptions = {}): Promise<TableDescription> {
    const raw = await this.#unary('Describe', { path }, options, 'nothing');
    return {
      path: raw.path, primaryKey: raw.primary_key, indexes: raw.indexes,
      columns: raw.columns.map(({ name, type, not_null: notNull }: Record<string, any>) => ({ name, type, notNull })),
    };
  }

  /** Returns the state of the sidecar: nodes, pool, version. */
  async status(options: CallOptions = {}): Promise<Status> {
    const raw = await this.#unary('Status', {}, options, 'nothing');
    return {
      version: raw.version, database: raw.database, state: raw.state, pool: raw.pool ?? undefined,
      openTransactions: raw.open_transactions, uptimeS: raw.uptime_s,
      nodes: raw.nodes.map(({ node_id: nodeId, ...node }: Record<string, any>) => ({ nodeId, ...node })),
    };
  }

  /** Returns the version of the API and of the sidecar, and the features that not every sidecar has. */
  async version(options: CallOptions = {}): Promise<{ api: string; version: string; features: string[] }> {
    return await this.#unary('Version', {}, options, 'nothing') as { api: string; version: string; features: string[] };
  }

  /** Opens an interactive transaction that you end yourself; {@link transaction} does it for you. */
  async begin(options: CallOptions & { mode?: TxMode } = {}): Promise<OpenTx> {
    return readTx((await this.#unary('Begin', sent(options), options, 'nothing')).tx)!;
  }

  /** Commits an interactive transaction; a repeat gets the first outcome. */
  async commit(id: string, options: CallOptions = {}): Promise<void> {
    await this.#unary('Commit', { id }, options, 'unknown');
  }

  /** Rolls an interactive transaction back; one that is rolled back already is fine. */
  async rollback(id: string, options: CallOptions = {}): Promise<void> {
    await this.#unary('Rollback', { id }, options, 'nothing');
  }

  /** Returns the state of an open interactive transaction. */
  async getTransaction(
    id: string, options: CallOptions = {},
  ): Promise<{ tx: OpenTx; seq: number; mode: TxMode; nodeId: number; ageMs: number }> {
    const raw = await this.#unary('GetTransaction', { id }, options, 'nothing');
    return { tx: readTx(raw.tx)!, seq: Number(raw.seq), mode: raw.mode, nodeId: raw.node_id, ageMs: Number(raw.age_ms) };
  }

  /** Closes the connections; calls under way fail. */
  close(): void {
    this.#transport?.then((transport) => transport.close(), () => {});
    this.#transport = undefined;
  }

  [Symbol.dispose ?? Symbol.for('Symbol.dispose')](): void {
    this.close();
  }

  #ready(): Promise<Transport> {
    return this.#transport ??= this.#load();
  }

  async #unary(method: Method, request: Record<string, any>, options: CallOptions, kept: Keeps): Promise<Record<string, any>> {
    const call = this.#call(this.#timed(options), kept);
    return (await this.#ready()).unary(method, request, call);
  }

  #timed(options: CallOptions): CallOptions {
    return options.timeout === undefined && this.#options.timeout !== undefined ? { ...options, timeout: this.#options.timeout } : options;
  }

  #call({ timeout, signal, traceparent }: CallOptions, kept: Keeps): Call {
    signal?.throwIfAborted();
    const headers = traceHeaders(traceparent);
    if (this.#options.app !== undefined) headers['x-sidecar-app'] = this.#options.app;
    if (this.#options.token !== undefined) headers['authorization'] = `Bearer ${this.#options.token}`;
    return { timeout: timeout === Infinity ? undefined : timeout, signal, headers, keeps: kept };
  }
}

// An error of work whose transaction is committed. It does not ask for a repeat, as that would do the work twice.
function afterCommit(error: unknown): unknown {
  if (!repeatable(error, true)) return error;
  return new Error(`the transaction is committed, but the work failed after that: ${error.message}`, { cause: error });
}

// A statement with its parameters prepared.
function ready(statement: Statement): Statement {
  return { ...statement, params: prepare(statement.sql, statement.params ?? {}, statement.types) };
}

// Options that go into the request.
function sent({ timeout: _, signal: __, traceparent: ___, ...rest }: Record<string, any>): Record<string, any> {
  return rest;
}

// What a call may keep, as far as its options tell: the sidecar alone reads the text.
function keeps({ tx, mode, idempotent }: Pick<QueryOptions, 'tx' | 'mode' | 'idempotent'>): Keeps {
  if ((tx && !tx.commit) || mode?.endsWith('_ro')) return 'nothing';
  return idempotent ? 'twice' : 'unknown';
}

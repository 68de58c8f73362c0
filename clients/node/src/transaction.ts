// An interactive transaction, as the work of Client.transaction sees it.
import type { Client, Statement } from './client.js';
import { ConnectionError, DeadlineError, SidecarError } from './errors.js';
import type { CallOptions, QueryOptions, TxMode, TxSelector } from './options.js';
import type { OpenTx, Result, Row, TransactResult } from './results.js';
import type { RowStream } from './stream.js';
import type { Params } from './values.js';

/** Options of a statement in a transaction. */
export type TxQueryOptions = Pick<QueryOptions, 'types' | 'limits' | 'stats' | 'priority'> & {
  /** Commits with this statement, which saves a round trip; it must be the last one. */
  commit?: boolean | undefined;
};

type TxCallOptions = Omit<TxQueryOptions, 'commit'> & CallOptions;

// Time for a rollback, which only frees the session earlier.
const rollbackTimeout = 2000;

/**
 * An interactive transaction. Statements run one after another, in the order of their calls. One that fails ends the transaction, so
 * its error is also that of the commit.
 */
export class Transaction {
  readonly #client: Client;
  readonly #how: { mode: TxMode; left: () => number; signal: AbortSignal | undefined; traceparent: string | undefined };
  #id = '';
  #seq = 0;
  #failure: { error: unknown } | undefined;
  #committed = false;
  #streaming = false;
  #last: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(client: Client, how: {
    mode: TxMode; left: () => number; signal: AbortSignal | undefined; traceparent: string | undefined;
  }) {
    this.#client = client;
    this.#how = how;
  }

  /** Runs a statement. */
  query<R = Row>(sql: string, params: Params = {}, options: TxQueryOptions = {}): Promise<Result<R>> {
    return this.#next(options.commit, (tx) => this.#client.query<R>(sql, params, { ...this.#options(options), tx }));
  }

  /** Runs several statements in one call. */
  transact(statements: readonly Statement[], options: Omit<TxQueryOptions, 'types'> = {}): Promise<TransactResult> {
    return this.#next(options.commit, (tx) => this.#client.transact(statements, { ...this.#options(options), tx }));
  }

  /** Streams the rows of a statement. Leaving the loop early ends the transaction. */
  async* stream<R = Row>(
    sql: string, params: Params = {}, options: Omit<TxQueryOptions, 'commit'> = {},
  ): AsyncGenerator<R, void, undefined> {
    await this.#last;
    this.#check();
    this.#streaming = true;
    try {
      const stream: RowStream<R> = this.#client.stream<R>(sql, params, { ...this.#options(options), tx: this.#selector(false) });
      yield* stream;
      this.#id = stream.end?.tx?.id ?? '';
      this.#streaming = false;
    } catch (error) {
      this.#failure ??= { error };
      throw error;
    } finally {
      if (this.#streaming) {
        this.#failure ??= { error: new Error('a stream was not read to its end, which ended the transaction') };
        this.#streaming = false;
      }
    }
  }

  /** @internal */
  get committed(): boolean {
    return this.#committed;
  }

  /** @internal */
  async commit(): Promise<void> {
    await this.#last;
    if (this.#failure) throw this.#failure.error;
    if (this.#committed || this.#id === '') return;
    await this.#twice(() => this.#client.commit(this.#id, this.#options({})));
    this.#committed = true;
  }

  /** @internal */
  async rollback(): Promise<void> {
    await this.#last.catch(() => {});
    if (this.#committed || this.#id === '') return;
    await this.#client.rollback(this.#id, { timeout: rollbackTimeout }).catch(() => {}); // the sidecar rolls back after tx.idle
  }

  // Runs a call of the transaction after those before it.
  #next<T extends { tx: OpenTx | undefined }>(commit: boolean | undefined, call: (tx: TxSelector) => Promise<T>): Promise<T> {
    const done = this.#last.then(async () => {
      this.#check();
      const selector = this.#selector(commit);
      try {
        const result = await this.#twice(() => call(selector));
        this.#id = result.tx?.id ?? '';
        this.#committed = commit === true;
        return result;
      } catch (error) {
        this.#failure ??= { error };
        throw error;
      }
    });
    this.#last = done.catch(() => {});
    return done;
  }

  // The sidecar answers a repeated number from memory and runs nothing twice, so a call whose answer got lost is sent once more.
  async #twice<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof ConnectionError) || this.#id === '' || this.#how.left() <= 0) throw error;
      return call();
    }
  }

  #selector(commit: boolean | undefined): TxSelector {
    const of: TxSelector = this.#id ? { id: this.#id } : { begin: { mode: this.#how.mode } };
    return { ...of, seq: ++this.#seq, ...commit && { commit } };
  }

  #check(): void {
    if (this.#failure) throw this.#failure.error;
    if (this.#streaming) throw new Error('a stream of this transaction is still being read');
    if (this.#committed) throw new Error('the transaction is committed already');
  }

  #options({ commit: _, ...rest }: TxQueryOptions): TxCallOptions {
    const timeout = this.#how.left();
    if (timeout <= 0) throw over();
    const { signal, traceparent } = this.#how;
    return { ...rest, timeout, signal, traceparent };
  }
}

function over(): SidecarError {
  return new DeadlineError({ code: 'DEADLINE_EXCEEDED', message: "the transaction's time is over; nothing was kept", safeToRetry: true });
}

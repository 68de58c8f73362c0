// What an app sees of ydb-sidecar, the same over gRPC and over HTTP.
//
//   const db = await connect('grpc://127.0.0.1:7400');    // or 'http://127.0.0.1:7401'
//   (await db.execute('SELECT $a + 1 AS b', { a: 41 }, { mode: 'snapshot_ro' })).rows     // [{ b: '42' }]
//   await db.transaction(5000, async (tx) => {                   // rolled back if it throws
//     await tx.execute("UPSERT INTO t (id, v) VALUES (1, 'x')");
//     await tx.execute("UPSERT INTO t (id, v) VALUES (2, 'y')", {}, { commit: true });
//   });
//
// 64-bit integers are strings in results, because a JavaScript number holds 53 bits only;
// as parameters they may be numbers, BigInts or strings with a declared type.
//
// Every failure is a SidecarError. Three questions tell the app what to do, in this order:
//
//   error.safeToRetry      nothing was kept, or it may run twice: do the same work again
//   error.outcomeUnknown   it may have run: look before repeating it
//   neither                it would fail again: tell the caller
//
// The sidecar has already repeated what could be repeated. What is left to the app is an
// interactive transaction, because only the app knows what it read in it.

export class SidecarError extends Error {
  constructor(code, message, { safeToRetry = false, outcomeUnknown = false, retryAfter = 0,
    ydbStatus = '', traceId = '', hint = '', cause } = {}) {
    super(`${code}: ${message}`, { cause });
    this.name = 'SidecarError';
    this.code = code; // docs/reference/api.md lists them
    this.safeToRetry = safeToRetry; // nothing was kept, or it was marked idempotent
    this.outcomeUnknown = outcomeUnknown; // it may have run
    this.retryAfter = retryAfter; // ms to wait at least; 0: no advice
    this.ydbStatus = ydbStatus;
    this.traceId = traceId;
    this.hint = hint;
  }

  // The transaction is gone and rolled back: begin again.
  get txLost() {
    return this.code === 'TX_LOST';
  }
}

// The error for a call to the sidecar itself that brought no answer, as when it restarts. It may
// have run, unless it is one that keeps nothing by itself: a read, or a statement inside an open
// transaction.
export function noAnswer(what, mayHaveRun, cause) {
  return new SidecarError(mayHaveRun ? 'OUTCOME_UNKNOWN' : 'SIDECAR_AWAY', what,
    { safeToRetry: !mayHaveRun, outcomeUnknown: mayHaveRun, cause });
}

// What GrpcClient and HttpClient have in common. They fill in
//   execute(sql, params, { mode, idempotent, timeout, tx }) → { columns, rows, sets, info, txId }
//   stream(sql, params, { mode, timeout })                  → rows, as an async iterator
//   transact([[sql, params], ...], { idempotent, timeout }) → [{ columns, rows, sets }, ...]
//   ingest(table, rows, { offset, stream })                 → what becomes of the rows (objects, in order, from
//     offset on), as an async iterator: { ack: n } when every row before offset n is written, { refused: n, error }
//     for a row that cannot be. It ends when all are done. After an error that is safe to retry, call it again
//     with the rows from the last ack on and the same stream name.
//   get(table, key, timeout) → the value of a row as a Buffer; undefined if there is no such row
//   put(table, key, value, timeout), delete(table, key, timeout): these may run twice, so the sidecar
//     repeats them by itself. table is a name of kv.tables.
//   commit(id, timeout), rollback(id, timeout), status(), close()
// Timeouts are milliseconds; without one a call ends after the sidecar's api.timeout.
export class Client {
  // Runs work(tx) in one interactive transaction, which ends with it: committed if work did not
  // commit with its last statement, rolled back if it throws.
  async transaction(timeout, work, mode = 'serializable_rw') {
    const tx = new Transaction(this, mode, Date.now() + timeout);
    try {
      const result = await work(tx);
      await tx.commit();
      return result;
    } catch (error) {
      await tx.rollback();
      throw error;
    }
  }
}

class Transaction {
  #client; #mode; #deadline;
  #id = ''; #seq = 0; #open = true;

  constructor(client, mode, deadline) {
    [this.#client, this.#mode, this.#deadline] = [client, mode, deadline];
  }

  // Runs a statement; the first one goes out with the begin, { commit: true } saves a round trip on the last.
  async execute(sql, params = {}, { commit = false } = {}) {
    const tx = { seq: ++this.#seq, commit };
    if (this.#id) tx.id = this.#id;
    else tx.begin = { mode: this.#mode };
    const result = await this.#client.execute(sql, params, { tx, timeout: this.#left() });
    this.#id = result.txId || this.#id;
    this.#open = !commit;
    return result;
  }

  async commit() {
    if (this.#open && this.#id) await this.#client.commit(this.#id, this.#left());
    this.#open = false;
  }

  // A failed statement has ended the transaction on the server. The rollback gives the session
  // back at once when it was the app that failed; the sidecar would do so after tx.idle. Its
  // own failure tells nothing new.
  async rollback() {
    if (this.#open && this.#id) await this.#client.rollback(this.#id, 2000).catch(() => {});
    this.#open = false;
  }

  #left() {
    const left = this.#deadline - Date.now();
    if (left <= 0) throw new SidecarError('DEADLINE_EXCEEDED', "the transaction's time is over", { safeToRetry: true });
    return left;
  }
}

// Growing, random pauses within a span of time, in ms.
export class Backoff {
  #end; #pause = 10;

  constructor(ms) {
    this.#end = Date.now() + ms;
  }

  left() {
    return this.#end - Date.now();
  }

  // Pauses; false, at once, when the time would be over after the pause.
  async wait(atLeast = 0) {
    const pause = Math.max(atLeast, Math.random() * this.#pause);
    this.#pause = Math.min(2 * this.#pause, 500);
    if (pause >= this.left()) return false;
    await new Promise((resolve) => setTimeout(resolve, pause));
    return true;
  }
}

// A client for grpc://host:port or http://host:port.
export async function connect(url) {
  const address = url.replace(/^\w+:\/\//, '');
  if (url.startsWith('grpc://')) return new (await import('./grpc_face.mjs')).GrpcClient(address);
  if (url.startsWith('http://')) return new (await import('./http_face.mjs')).HttpClient(address);
  throw new Error(`${url}: want grpc://host:port or http://host:port`);
}

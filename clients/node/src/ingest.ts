// Streams of rows into one table.
import { problem, type SidecarError } from './errors.js';
import type { CallOptions } from './options.js';
import { Backoff, repeatable, type RetryOptions } from './retry.js';
import type { Call, IngestLine, Rows, Transport } from './transport.js';
import type { Value } from './values.js';

/** A row to write, by column. Columns that it does not name keep their values. */
export type WriteRow = { readonly [column: string]: Value | undefined };

/** Rows to write, in order. */
export type WriteRows = Iterable<WriteRow> | AsyncIterable<WriteRow>;

/** Options of a stream of rows. */
export interface IngestOptions extends Pick<CallOptions, 'signal' | 'traceparent'> {
  /** Offset of the first row; 0 unless set. */
  offset?: number | undefined;
  /** Name of the stream: one of the same name and table that is still open ends first. Give one if the stream is resumed. */
  stream?: string | undefined;
  /** How long a stream that makes no progress is resumed, in milliseconds; 30,000 unless set. Only with rows as a function. */
  patience?: number | undefined;
  /** Called with each error after which the stream is resumed. */
  onRetry?: RetryOptions['onRetry'] | undefined;
}

/**
 * What became of rows. `ack`: every row before this offset is written, or was refused by name. `refused`: the row at this offset cannot
 * be written. `end` is the last one.
 */
export type IngestPart = { ack: number } | { refused: number; error: SidecarError }
  | { end: { next: number; rows: number; refused: number } };

const most = 100; // rows in a part

/**
 * Writes rows and yields what becomes of them. Rows as a function (from an offset on) are resumed after errors that are safe to retry:
 * what was not acknowledged is sent again.
 */
export async function* ingest(
  transport: () => Promise<Transport>, table: string, rows: WriteRows | ((from: number) => WriteRows), options: IngestOptions,
  call: () => Call,
): AsyncGenerator<IngestPart, void, undefined> {
  const { stream = '', offset = 0 } = options;
  if (typeof rows !== 'function') {
    for await (const lines of (await transport()).ingest({ table, offset, stream }, parts(rows), call())) yield* lines.map(read);
    return;
  }
  const total = new Progress(offset);
  const open = async () => (await transport()).ingest({ table, offset: total.next, stream }, parts(rows(total.next)), call());
  const limits = () => new Backoff({ ...options, timeout: options.patience ?? 30_000 });
  let backoff = limits();
  let lines = await open();
  try {
    for (let begun = Date.now(); ; begun = Date.now()) {
      let next;
      try {
        next = await lines.next();
      } catch (error) {
        if (options.signal?.aborted || !repeatable(error)) throw error;
        if (Date.now() - begun > (options.patience ?? 30_000)) backoff = limits(); // there was nothing to acknowledge for so long
        await backoff.wait(error);
        lines = await open();
        continue;
      }
      if (next.done) return;
      backoff = limits();
      yield* total.add(next.value.map(read));
    }
  } finally {
    await lines.return();
  }
}

// How far a stream has come, over all its connections.
class Progress {
  next: number;
  #refused = 0;
  readonly #first: number;
  readonly #named = new Set<number>(); // refused offsets that are not acknowledged, which come again

  constructor(first: number) {
    this.#first = this.next = first;
  }

  * add(parts: IngestPart[]): Generator<IngestPart, void, undefined> {
    for (const part of parts) {
      if ('refused' in part) {
        if (this.#named.has(part.refused)) continue;
        this.#named.add(part.refused);
        this.#refused++;
      } else {
        this.next = 'ack' in part ? part.ack : part.end.next;
        for (const offset of this.#named) if (offset < this.next) this.#named.delete(offset);
      }
      yield 'end' in part ? { end: { next: this.next, rows: this.next - this.#first - this.#refused, refused: this.#refused } } : part;
    }
  }
}

function read(line: IngestLine): IngestPart {
  if ('ack' in line) return { ack: Number(line.ack.next) };
  if ('refused' in line) return { refused: Number(line.refused.offset), error: problem(line.refused.error) };
  const { next, rows, refused } = line.end;
  return { end: { next: Number(next), rows: Number(rows), refused: Number(refused) } };
}

// Rows that are there go together, rows that are waited for go at once.
async function* parts(rows: WriteRows): AsyncGenerator<Rows, void, undefined> {
  if (Symbol.asyncIterator in rows) {
    for await (const row of rows) yield [row];
    return;
  }
  let part: WriteRow[] = [];
  for (const row of rows) {
    part.push(row);
    if (part.length === most) {
      yield part;
      part = [];
    }
  }
  if (part.length > 0) yield part;
}

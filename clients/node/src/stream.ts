// A result that is read as it comes.
import { readEnd, type Column, type Row, type StreamEnd } from './results.js';
import type { StreamLine } from './transport.js';
import type { Decoders } from './values.js';

/** One part of a stream: the columns of a result set, one of its rows, or the end. */
export type StreamPart<R = Row> = { set: number; columns: Column[] } | { row: R } | { end: StreamEnd };

/**
 * Rows of a statement as they come: `for await (const row of stream)`. Nothing holds the whole result, and reading slowly slows the
 * database down. Leaving the loop ends the statement and frees its session. A stream can be read once; if it fails in the middle, the
 * loop throws.
 */
export class RowStream<R = Row> implements AsyncIterable<R> {
  /** Columns of the result set that is being read; empty before the first row. */
  columns: Column[] = [];
  /** Number of the result set that is being read, from 0. */
  set = 0;
  /** Counts, statistics and times, after the last row. */
  end: StreamEnd | undefined;
  readonly #lines: () => AsyncIterable<StreamLine[]>;
  readonly #decoders: Decoders;
  #read = false;

  /** @internal */
  constructor(lines: () => AsyncIterable<StreamLine[]>, decoders: Decoders) {
    this.#lines = lines;
    this.#decoders = decoders;
  }

  async* [Symbol.asyncIterator](): AsyncGenerator<R, void, undefined> {
    for await (const part of this.parts()) if ('row' in part) yield part.row;
  }

  /** Yields what the stream consists of, for statements with several result sets. */
  async* parts(): AsyncGenerator<StreamPart<R>, void, undefined> {
    if (this.#read) throw new Error('a stream can be read once');
    this.#read = true;
    let row: (values: any[]) => R = () => { throw new Error('a row before its columns'); };
    for await (const lines of this.#lines()) {
      for (const line of lines) {
        if ('row' in line) yield { row: row(line.row) };
        else if ('columns' in line) {
          this.set = line.set ?? 0;
          this.columns = line.columns;
          row = this.#decoders.row(line.columns);
          yield { set: this.set, columns: line.columns };
        } else if ('end' in line) {
          this.end = readEnd(line.end);
          yield { end: this.end };
        }
      }
    }
  }
}

// The key-value API: rows of the tables in kv.tables by their key.
import { SidecarError, unreadable } from './errors.js';
import type { CallOptions } from './options.js';
import type { Call, KvRequest, Transport } from './transport.js';
import { bytes } from './values.js';

/** A key: one value, or one for each column of the key, in the order of the primary key. */
export type KvId = string | number | bigint | Uint8Array | Date | readonly (string | number | bigint | Uint8Array | Date)[];

/** Conditions of a call; an `etag` of an earlier answer, several, or `*` for any row. */
export interface KvOptions extends CallOptions {
  /** The row must be there and have one of these versions. */
  ifMatch?: string | readonly string[] | undefined;
  /** The row must not be there, or have none of these versions. */
  ifNoneMatch?: string | readonly string[] | undefined;
}

/** A row that was found. */
export interface KvFound<T> {
  /** null if the value is NULL, or `notModified`. */
  value: T | null;
  /** Version of the row, if the table has a version column. */
  etag: string | undefined;
  /** The row still has a version of `ifNoneMatch`. */
  notModified: boolean;
  /** Type of the value's content, such as `application/json`. */
  contentType: string;
}

/** A row that {@link KeyValue.getMany} found, with its id as docs/reference/types.md writes the key's type: 64-bit integers are text. */
export interface KvItem<T> {
  id: any;
  value: T | null;
  etag: string | undefined;
}

/** What values of a table are: the `json` of an app's own type, `text`, or `bytes` for a column of type String. */
export type KvForm = 'json' | 'text' | 'bytes';

/** One table of the key-value API. Calls without conditions may run twice, so the sidecar repeats them by itself. */
export class KeyValue<T> {
  readonly #transport: () => Promise<Transport>;
  readonly #table: string;
  readonly #form: KvForm;
  readonly #call: (options: CallOptions, keeps: Call['keeps']) => Call;

  /** @internal */
  constructor(
    transport: () => Promise<Transport>, table: string, form: KvForm, call: (options: CallOptions, keeps: Call['keeps']) => Call,
  ) {
    this.#transport = transport;
    this.#table = table;
    this.#form = form;
    this.#call = call;
  }

  /** Reads a row; undefined if there is none. */
  async get(id: KvId, options: KvOptions = {}): Promise<KvFound<T> | undefined> {
    try {
      const transport = await this.#transport();
      const { value, ...found } = await transport.kv('GET', this.#request(id, options), this.#call(options, 'nothing'));
      return { value: value && this.#read(value), etag: found.etag, notModified: found.notModified, contentType: found.contentType };
    } catch (error) {
      if (error instanceof SidecarError && error.code === 'KEY_NOT_FOUND') return undefined;
      throw error;
    }
  }

  /** Writes a row. `created` says that this call made it; false: it was there, or a plain put did not look. */
  async put(id: KvId, value: T, options: KvOptions = {}): Promise<{ created: boolean; etag: string | undefined }> {
    const transport = await this.#transport();
    const request = { ...this.#request(id, options), value: this.#write(value) };
    const { created, etag } = await transport.kv('PUT', request, this.#call(options, keeps(options)));
    return { created, etag };
  }

  /** Deletes a row, whether or not it is there. */
  async delete(id: KvId, options: KvOptions = {}): Promise<void> {
    await (await this.#transport()).kv('DELETE', this.#request(id, options), this.#call(options, keeps(options)));
  }

  /** Reads up to 100 rows as they are at one moment. `missing` are the ids without a row. */
  async getMany(ids: readonly KvId[], options: CallOptions = {}): Promise<{ items: KvItem<T>[]; missing: any[] }> {
    const transport = await this.#transport();
    const answer = await transport.batchGet(this.#table, ids, options.priority, this.#call(options, 'nothing'));
    return { items: answer.items.map((item: Record<string, any>) => this.#item(item)), missing: answer.missing };
  }

  #item({ id, value: raw, version }: Record<string, any>): KvItem<T> {
    const value = typeof raw === 'string' ? Buffer.from(raw, this.#form === 'bytes' ? 'base64' : 'utf8') : raw;
    return { id, value: value ? this.#read(value) : null, etag: version ? `"${version}"` : undefined };
  }

  #request(id: KvId, options: KvOptions): KvRequest {
    return {
      table: this.#table, id: Array.isArray(id) ? id : [id], match: list(options.ifMatch), noneMatch: list(options.ifNoneMatch),
      priority: options.priority,
    };
  }

  #read(value: Buffer): T {
    if (this.#form === 'bytes') return value as T;
    if (this.#form === 'text') return value.toString() as T;
    try {
      return JSON.parse(value.toString()) as T;
    } catch (error) {
      throw unreadable(`a value of ${this.#table} is not JSON: ${value.toString().slice(0, 200)}`, error);
    }
  }

  #write(value: T): Buffer {
    if (this.#form === 'bytes') return bytes(value as Uint8Array);
    return Buffer.from(this.#form === 'text' ? value as string : JSON.stringify(value));
  }
}

// A call with a condition fails when it is repeated after it was done.
function keeps(options: KvOptions): Call['keeps'] {
  return options.ifMatch === undefined && options.ifNoneMatch === undefined ? 'twice' : 'unknown';
}

function list(tags: string | readonly string[] | undefined): readonly string[] {
  return tags === undefined ? [] : typeof tags === 'string' ? [tags] : tags;
}

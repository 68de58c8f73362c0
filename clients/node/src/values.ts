// Values of parameters and rows: docs/reference/types.md has the JSON form of each YQL type.

/** A parameter with its YQL type; made by {@link typed}. */
export class Typed {
  constructor(readonly type: string, readonly value: Value) {}
}

/**
 * A value that can be sent. Integers (`number`, `bigint`) fit columns of every integer type; other numbers are `Double`, text is `Utf8`,
 * bytes are `String`, a `Date` is a `Timestamp`, an array is a `List`, a `Map` a `Dict`, a `Set` a `Set`, an object a `Struct`.
 */
export type Value = null | boolean | number | bigint | string | Uint8Array | Date | Typed
  | readonly Value[] | ReadonlyMap<Value, Value> | ReadonlySet<Value> | { readonly [name: string]: Value | undefined };

/** Parameters by name, with or without `$`. */
export type Params = { readonly [name: string]: Value | undefined };

/** How `Int64` and `Uint64` are read: `number` throws a RangeError for what a number cannot hold. */
export type Ints = 'bigint' | 'number' | 'string';

/** Gives a parameter its YQL type: `typed('Date', '2024-01-31')`, `typed('Optional<Utf8>', null)`. */
export function typed(type: string, value: Value): Typed {
  return new Typed(type, value);
}

/** Writes a value as JSON. Integers keep all their digits, and what is undefined in an object is left out. */
export function encode(value: Value | undefined): string {
  switch (typeof value) {
    case 'string': return JSON.stringify(value);
    case 'boolean': return String(value);
    case 'bigint': return value.toString();
    case 'number': return Number.isFinite(value) ? JSON.stringify(value) : `"${value}"`;
    case 'object': return encodeObject(value);
    default: throw new TypeError(`a ${typeof value} is no value of YQL`);
  }
}

function encodeObject(value: Exclude<Value, string | boolean | bigint | number>): string {
  if (value === null) return 'null';
  if (value instanceof Uint8Array) return `{"base64":"${bytes(value).toString('base64')}"}`;
  if (value instanceof Date) return `"${value.toISOString()}"`;
  if (value instanceof Typed) return `{"type":${JSON.stringify(value.type)},"value":${encode(value.value)}}`;
  if (value instanceof Map) return encode([...value].map((pair) => pair as Value));
  if (Array.isArray(value) || value instanceof Set) return `[${Array.from(value as Iterable<Value>, encode).join()}]`;
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${encode(member)}`).join()}}`;
}

/** The same bytes as a Buffer. */
export function bytes(value: Uint8Array): Buffer {
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
}

/**
 * Prepares parameters. JSON has no bytes, dates and infinite numbers, so these get their type, except where the statement or `types`
 * names one.
 */
export function prepare(sql: string, params: Params, types: Readonly<Record<string, string>> = {}): Record<string, Value> {
  const out: Record<string, Value> = {};
  for (const [name, value] of Object.entries(params)) {
    if (value === undefined) throw new TypeError(`parameter ${name} is undefined; write null for NULL`);
    const type = untold(value);
    const plain = name.replace(/^\$/, '');
    const declared = type !== '' && (plain in types || `$${plain}` in types || declares(sql, plain));
    out[name] = type === '' || declared ? value : typed(type, value);
  }
  return out;
}

// The type of a value whose JSON does not tell it.
function untold(value: Value): string {
  if (value instanceof Uint8Array) return 'String';
  if (value instanceof Date) return 'Timestamp';
  return typeof value === 'number' && !Number.isFinite(value) ? 'Double' : '';
}

function declares(sql: string, name: string): boolean {
  return new RegExp(`\\bdeclare\\s+\\$${name}\\s`, 'i').test(sql);
}

/** Reads a value of one type; undefined leaves it as it is. */
export type Decode = ((value: any) => any) | undefined;

/** Where values come from: the JSON of types.md, or messages that {@link decoder}'s caller brought into the same shape. */
export type Source = 'json' | 'grpc';

/** Readers of types, by the type's text. */
export class Decoders {
  readonly #known = new Map<string, Decode>();

  constructor(readonly source: Source, readonly ints: Ints) {}

  /** Reads rows as objects by these columns. */
  row(columns: readonly { name: string; type: string }[]): (values: any[]) => any {
    const names = keys(columns.map((column) => column.name));
    const decoders = columns.map((column) => this.of(column.type));
    return (values) => {
      const row: Record<string, unknown> = {};
      for (let i = 0; i < names.length; i++) {
        const decode = decoders[i];
        row[names[i]!] = decode ? decode(values[i]) : values[i];
      }
      return row;
    };
  }

  of(type: string): Decode {
    if (!this.#known.has(type)) {
      if (this.#known.size >= 1000) this.#known.clear(); // types of texts that are never the same
      this.#known.set(type, this.#make(type));
    }
    return this.#known.get(type);
  }

  #make(type: string): Decode {
    const open = type.indexOf('<');
    if (open < 0) return this.#leaf(type);
    const items = split(type.slice(open + 1, -1));
    switch (type.slice(0, open)) {
      case 'Optional': return this.#optional(items[0]!);
      case 'List': case 'Set': return each(this.of(items[0]!));
      case 'Tuple': return tuple(items.map((item) => this.of(item)));
      case 'Dict': return each(tuple(items.map((item) => this.of(item))));
      case 'Struct': return members(items.map((item) => this.#member(item)));
      case 'Variant': return items[0] !== undefined && isMember(items[0])
        ? members(items.map((item) => this.#member(item))) : variant(items.map((item) => this.of(item)));
      case 'Tagged': return this.of(items[0]!);
      default: return undefined;
    }
  }

  // A value of Optional<T> is null or T's; of Optional<Optional<T>> it is null or a list of one.
  #optional(item: string): Decode {
    const decode = this.of(item);
    if (!decode) return undefined;
    const inner = /^Optional</.test(item) ? each(decode)! : decode;
    return (value) => value === null ? null : inner(value);
  }

  #member(text: string): [string, Decode] {
    const quoted = text.startsWith("'");
    const end = quoted ? literalEnd(text, 0) : text.indexOf(':');
    const name = quoted ? text.slice(1, end - 1).replace(/\\(.)/gs, '$1') : text.slice(0, end);
    return [name, this.of(text.slice(end + 1))];
  }

  #leaf(type: string): Decode {
    const json = this.source === 'json';
    switch (type) {
      case 'Int64': case 'Uint64': return integer[this.ints];
      case 'Int8': case 'Int16': case 'Int32': case 'Uint8': case 'Uint16': case 'Uint32': return json ? undefined : Number;
      case 'Float': case 'Double': return json ? Number : undefined;
      case 'String': return json ? (value: string) => Buffer.from(value, 'base64') : undefined;
      case 'Yson': return json ? binary : undefined;
      default: return json && type.startsWith('pg') ? binary : undefined;
    }
  }
}

const integer: Record<Ints, Decode> = {
  bigint: BigInt,
  string: undefined,
  number: (value: string) => {
    const number = Number(value);
    if (!Number.isSafeInteger(number)) throw new RangeError(`${value} does not fit a number; read 64-bit integers as bigint`);
    return number;
  },
};

function binary(value: any): any {
  return value !== null && typeof value === 'object' ? Buffer.from(value.base64, 'base64') : value;
}

function each(decode: Decode): Decode {
  return decode && ((values: any[]) => values.map((value) => decode(value)));
}

function tuple(decoders: Decode[]): Decode {
  if (decoders.every((decode) => !decode)) return undefined;
  return (values: any[]) => values.map((value, i) => decoders[i]?.(value) ?? value);
}

function members(list: [string, Decode][]): Decode {
  const decoders = new Map(list);
  if (list.every(([, decode]) => !decode)) return undefined;
  return (value: Record<string, any>) => Object.fromEntries(
    Object.entries(value).map(([name, member]) => [name, decoders.get(name)?.(member) ?? member]));
}

function variant(decoders: Decode[]): Decode {
  if (decoders.every((decode) => !decode)) return undefined;
  return ({ index, value }: { index: number; value: any }) => ({ index, value: decoders[index]?.(value) ?? value });
}

/** The items of a list in a type, which commas part. */
function split(text: string): string[] {
  const items: string[] = [];
  let depth = 0;
  let from = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text[i]!;
    if (c === "'") i = literalEnd(text, i) - 1;
    else if (c === '<' || c === '(') depth++;
    else if (c === '>' || c === ')') depth--;
    else if (c === ',' && depth === 0) {
      items.push(text.slice(from, i));
      from = i + 1;
    }
  }
  if (from < text.length) items.push(text.slice(from));
  return items;
}

// The place after the literal that begins at a quote.
function literalEnd(text: string, at: number): number {
  for (let i = at + 1; i < text.length; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === "'") return i + 1;
  }
  return text.length;
}

function isMember(item: string): boolean {
  return /^(\w+|'(\\.|[^'\\])*'):/s.test(item);
}

/** Names of columns as keys of a row: the second column of one name is name_2, or the next number that no column has. */
export function keys(names: string[]): string[] {
  const taken = new Set(names);
  const seen = new Set<string>();
  const last = new Map<string, number>();
  return names.map((name) => {
    let key = name;
    if (seen.has(name)) {
      let number = last.get(name) ?? 1;
      do key = `${name}_${++number}`; while (taken.has(key));
      last.set(name, number);
      taken.add(key);
    }
    seen.add(name);
    return key;
  });
}

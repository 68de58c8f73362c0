// Values and requests as messages of sidecar.proto.
import { duration } from './transport.js';
import { bytes, Typed, type Value } from './values.js';

/** Brings a request into the form of its message. */
export function pack(request: Record<string, any>, timeout: number | undefined): Record<string, any> {
  const out: Record<string, any> = { ...request };
  if (timeout !== undefined) out.timeout = duration(timeout);
  if (out.params) out.params = fields(out.params);
  if (out.statements) out.statements = out.statements.map((statement: Record<string, any>) => pack(statement, undefined));
  if (out.rows) out.rows = out.rows.map((row: Record<string, Value | undefined>) => ({ columns: fields(row) }));
  return out;
}

function fields(values: Record<string, Value | undefined>): Record<string, unknown> {
  const given = Object.entries(values).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given.map(([name, value]) => [name, packOne(value!)]));
}

/** Brings a value into the form of the message Value. */
export function packOne(value: Value): Record<string, unknown> {
  switch (typeof value) {
    case 'boolean': return { bool_value: value };
    case 'bigint': return value < 1n << 63n ? { int64_value: String(value) } : { uint64_value: String(value) };
    case 'number': return Number.isInteger(value) && Math.abs(value) < 1e18 ? { int64_value: String(value) } : { double_value: value };
    case 'string': return { text_value: value };
    case 'object': return packObject(value);
    default: throw new TypeError(`a ${typeof value} is no value of YQL`);
  }
}

function packObject(value: Exclude<Value, string | boolean | bigint | number>): Record<string, unknown> {
  if (value === null) return { null_value: true };
  if (value instanceof Uint8Array) return { bytes_value: bytes(value) };
  if (value instanceof Date) return { text_value: value.toISOString() };
  if (value instanceof Typed) return { typed_value: { type: value.type, value: packOne(value.value) } };
  if (value instanceof Map) {
    const pairs = Array.from(value as Map<Value, Value>, ([key, item]) => ({ key: packOne(key), value: packOne(item) }));
    return { dict_value: { pairs } };
  }
  if (value instanceof Set) return { dict_value: { pairs: Array.from(value as Set<Value>, (key) => ({ key: packOne(key) })) } };
  if (Array.isArray(value)) return { list_value: { items: value.map(packOne) } };
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return { struct_value: { fields: members.map(([name, member]) => ({ name, value: packOne(member!) })) } };
}

/** Reads a message Value into the shape that the JSON of its type has, with all integers as text. */
export function unpack(value: Record<string, any> | null): any {
  if (!value) return null;
  switch (value.kind) {
    case undefined: case 'null_value': return null;
    case 'list_value': return value.list_value.items.map(unpack);
    case 'struct_value': return Object.fromEntries(value.struct_value.fields.map((one: any) => [one.name, unpack(one.value)]));
    case 'dict_value':
      return value.dict_value.pairs.map((pair: any) => pair.value ? [unpack(pair.key), unpack(pair.value)] : unpack(pair.key));
    case 'variant_value': {
      const { tag, index, value: inner } = value.variant_value;
      return tag ? { [tag]: unpack(inner) } : { index, value: unpack(inner) };
    }
    default: return value[value.kind];
  }
}

/** Reads an answer with result sets: its rows become arrays of values. */
export function readMessage(answer: Record<string, any>): Record<string, any> {
  const out: Record<string, any> = { ...answer };
  if (Array.isArray(out.rows)) out.rows = out.rows.map((row: any) => row.values.map(unpack));
  if (out.sets) out.sets = out.sets.map(readMessage);
  if (out.results) out.results = out.results.map(readMessage);
  return out;
}

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pack, packOne, unpack } from '../dist/messages.js';
import { Decoders, encode, keys, prepare, typed } from '../dist/values.js';

test('values are written as JSON that keeps every digit', () => {
  for (const [value, want] of [
    [null, 'null'], [true, 'true'], [42, '42'], [0.5, '0.5'], [1e300, '1e+300'], [NaN, '"NaN"'], [-Infinity, '"-Infinity"'],
    [18446744073709551615n, '18446744073709551615'], ['a"b\n', '"a\\"b\\n"'], [Buffer.from([0, 255]), '{"base64":"AP8="}'],
    [new Uint8Array([1, 2, 3]).subarray(1), '{"base64":"AgM="}'], [new Date(0), '"1970-01-01T00:00:00.000Z"'],
    [[1n, null, ['x']], '[1,null,["x"]]'], [{ a: 1n, b: undefined, c: { d: [] } }, '{"a":1,"c":{"d":[]}}'],
    [new Map([[1n, 'a']]), '[[1,"a"]]'], [new Set(['a', 'b']), '["a","b"]'], [typed('Decimal(22,9)', '1.50'), '{"type":"Decimal(22,9)","value":"1.50"}'],
  ]) assert.equal(encode(value), want);
  for (const value of [undefined, () => {}, Symbol('x')]) assert.throws(() => encode(value), TypeError);
});

test('what JSON cannot tell gets its type, unless the statement or the call names one', () => {
  const bytes = Buffer.from('x');
  assert.deepEqual(prepare('SELECT $a, $b, $c, $d', { a: bytes, $b: new Date(0), c: NaN, d: 1 }),
    { a: typed('String', bytes), $b: typed('Timestamp', new Date(0)), c: typed('Double', NaN), d: 1 });
  assert.deepEqual(prepare('declare $a  AS Bytes; SELECT $a', { a: bytes }), { a: bytes });
  assert.deepEqual(prepare('DECLARE $ab AS Utf8; SELECT $a', { a: bytes }), { a: typed('String', bytes) });
  assert.deepEqual(prepare('SELECT $a', { $a: bytes }, { a: 'Yson' }), { $a: bytes });
  assert.throws(() => prepare('SELECT $a', { a: undefined }), /parameter a is undefined; write null for NULL/);
});

test('values are read by their types', () => {
  const types = new Decoders('json', 'bigint');
  for (const [type, value, want] of [
    ['Int64', '-9223372036854775808', -9223372036854775808n], ['Uint64', '18446744073709551615', 18446744073709551615n], ['Int32', 5, 5],
    ['Double', 'NaN', NaN], ['Float', 1.5, 1.5], ['Double', '-Infinity', -Infinity], ['String', 'AP8=', Buffer.from([0, 255])],
    ['Yson', '{a=1}', '{a=1}'], ['Yson', { base64: '/w==' }, Buffer.from([255])], ['pgint4', null, null],
    ['Optional<Int64>', null, null], ['Optional<Int64>', '5', 5n], ['Optional<Optional<Int64>>', null, null],
    ['Optional<Optional<Int64>>', [null], [null]], ['Optional<Optional<Int64>>', ['5'], [5n]], ['List<Uint64>', ['1', '2'], [1n, 2n]],
    ['List<Utf8>', ['a'], ['a']], ['Tuple<Int64,Utf8,String>', ['1', 'a', 'eA=='], [1n, 'a', Buffer.from('x')]],
    ["Struct<a:Int64,b:Optional<Struct<'x:y,\\'z':Uint64>>>", { a: '0', b: { "x:y,'z": '7' } }, { a: 0n, b: { "x:y,'z": 7n } }],
    ['Dict<Uint64,Tuple<Int64,Decimal(22,9)>>', [['1', ['2', '3.5']]], [[1n, [2n, '3.5']]]], ['Set<Int64>', ['1'], [1n]],
    ['Variant<num:Int64,txt:Utf8>', { num: '5' }, { num: 5n }], ['Variant<Int64,Utf8>', { index: 1, value: 'a' }, { index: 1, value: 'a' }],
    ['Variant<Int64,Decimal(2,1)>', { index: 0, value: '1' }, { index: 0, value: 1n }], ["Tagged<Int64,'a,b'>", '5', 5n],
    ['Timestamp', '2024-01-31T10:00:00.123456Z', '2024-01-31T10:00:00.123456Z'], ['EmptyList', [], []], ['Unknown(7)', 'x', 'x'],
  ]) assert.deepEqual(types.of(type) ? types.of(type)(value) : value, want, type);
});

test('64-bit integers are read as asked, and never rounded', () => {
  assert.equal(new Decoders('json', 'number').of('Int64')('42'), 42);
  assert.throws(() => new Decoders('json', 'number').of('Uint64')('9007199254740993'), RangeError);
  assert.equal(new Decoders('json', 'string').of('Int64'), undefined);
});

test('columns of one name have different keys', () => {
  assert.deepEqual(keys(['a', 'b', 'a', 'a_2', 'a']), ['a', 'b', 'a_3', 'a_2', 'a_4']);
  const row = new Decoders('json', 'bigint').row([{ name: 'a', type: 'Int64' }, { name: 'a', type: 'Utf8' }]);
  assert.deepEqual(row(['1', 'x']), { a: 1n, a_2: 'x' });
});

test('messages have the shape of JSON', () => {
  const types = new Decoders('grpc', 'bigint');
  assert.deepEqual(pack({ sql: 's', params: { a: 1, b: undefined }, statements: [{ sql: 't', params: { c: 'x' } }] }, 800),
    { sql: 's', timeout: '800ms', params: { a: { int64_value: '1' } }, statements: [{ sql: 't', params: { c: { text_value: 'x' } } }] });
  assert.deepEqual(packOne(2n ** 63n), { uint64_value: '9223372036854775808' });
  assert.deepEqual(packOne(new Map([['a', 1.5]])), { dict_value: { pairs: [{ key: { text_value: 'a' }, value: { double_value: 1.5 } }] } });
  const int = (text) => ({ kind: 'int64_value', int64_value: text });
  for (const [type, value, want] of [
    ['Int32', int('5'), 5], ['Int64', int('5'), 5n], ['Optional<Int64>', null, null],
    ['Optional<Optional<Int32>>', { kind: 'list_value', list_value: { items: [int('5')] } }, [5]],
    ['Struct<a:Uint8>', { kind: 'struct_value', struct_value: { fields: [{ name: 'a', value: int('1') }] } }, { a: 1 }],
    ['Dict<Utf8,Int64>', { kind: 'dict_value', dict_value: { pairs: [{ key: { kind: 'text_value', text_value: 'k' }, value: int('1') }] } }, [['k', 1n]]],
    ['Set<Int64>', { kind: 'dict_value', dict_value: { pairs: [{ key: int('1'), value: null }] } }, [1n]],
    ['Variant<a:Int64,b:Utf8>', { kind: 'variant_value', variant_value: { tag: 'a', index: 0, value: int('1') } }, { a: 1n }],
    ['Variant<Int64,Utf8>', { kind: 'variant_value', variant_value: { tag: '', index: 0, value: int('1') } }, { index: 0, value: 1n }],
  ]) {
    const got = unpack(value);
    assert.deepEqual(types.of(type) ? types.of(type)(got) : got, want, type);
  }
});

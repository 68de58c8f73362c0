// Calls a sidecar with openapi-fetch by the types that openapi-typescript generated as sidecar.d.ts: check.js URL
import assert from 'node:assert/strict'
import createClient from 'openapi-fetch'
import type { components, paths } from './sidecar.d.ts'

type Row = components['schemas']['Row']
type Statement = components['schemas']['Statement']

const client = createClient<paths>({ baseUrl: process.argv[2]! })

// The reply of a call that must succeed.
function good<T>(reply: { data?: T; error?: unknown }): T {
  assert.ok(reply.data !== undefined, JSON.stringify(reply.error))
  return reply.data
}

function column(row: Row | undefined, name: string): unknown {
  assert.ok(row !== undefined && !Array.isArray(row))
  return row[name]
}

const execute = async (body: components['schemas']['ExecuteRequest']) => good(await client.POST('/v1/query', { body }))

assert.equal(good(await client.GET('/v1/status')).state, 'serving')
await execute({ sql: 'CREATE TABLE node (id Uint64, name Utf8, PRIMARY KEY (id))' })

const reply = await execute({ sql: 'SELECT $a + 1 AS b, $c AS c', params: { a: 41, c: 'text' } })
assert.equal(column(reply.rows[0], 'b'), '42')
assert.equal(column(reply.rows[0], 'c'), 'text')
assert.deepEqual(reply.columns.map((c) => c.name), ['b', 'c'])
assert.equal(reply.info.attempts, 1)
assert.deepEqual((await execute({ sql: 'SELECT 1 AS a', rows: 'arrays' })).rows, [[1]])

const insert = (id: number, name: string): Statement => ({
  sql: 'UPSERT INTO node (id, name) VALUES ($id, $name)',
  params: { id, name },
  types: { id: 'Uint64', name: 'Utf8' },
})
const both = good(await client.POST('/v1/tx', { body: { statements: [insert(1, 'one'), insert(2, 'two')] } }))
assert.equal(both.results.length, 2)

const { tx } = good(await client.POST('/v1/tx/begin', { body: {} }))
await execute({ ...insert(3, 'three'), tx: { id: tx.id, seq: 1 } })
good(await client.POST('/v1/tx/{id}/commit', { params: { path: { id: tx.id } }, body: {} }))
const names = await execute({ sql: 'SELECT name FROM node ORDER BY name' })
assert.deepEqual(names.rows.map((row) => column(row, 'name')), ['one', 'three', 'two'])

const outcomes = good(await client.POST('/v1/batch', { body: { statements: [{ sql: 'SELECT 1 AS a' }, { sql: 'SELECT nothing' }] } }))
assert.equal(column(outcomes.results[0]?.rows?.[0], 'a'), 1)
assert.ok(outcomes.results[1]?.error?.code)

const more = good(await client.POST('/v1/bulk', { body: { table: 'node', rows: [{ id: 4, name: 'four' }] } }))
assert.equal(more.rows, 1)

const at = (id: string) => ({ path: { table: 'names' }, query: { id: [id] } })
const put = await client.PUT('/v1/kv/{table}', {
  params: at('7'),
  body: 'seven',
  bodySerializer: (body) => body,
  headers: { 'content-type': 'application/octet-stream' },
})
assert.ok(put.response.ok, JSON.stringify(put.error))
assert.equal(good(await client.GET('/v1/kv/{table}', { params: at('7'), parseAs: 'text' })), 'seven')
assert.equal((await client.GET('/v1/kv/{table}', { params: at('8'), parseAs: 'text' })).error?.code, 'KEY_NOT_FOUND')

const wrong = await client.POST('/v1/query', { body: { sql: 'SELECT nothing' } })
assert.equal(wrong.data, undefined)
assert.equal(wrong.error?.status, 400)
assert.equal(wrong.error?.code, 'YDB_GENERIC_ERROR')
assert.equal(wrong.error?.safe_to_retry, false)

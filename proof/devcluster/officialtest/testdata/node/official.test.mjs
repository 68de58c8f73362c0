// Drives a development cluster with YDB's official Node clients: @ydbjs (new) and
// ydb-sdk (old). The Go test starts the cluster and says where it is in
// YDB_ENDPOINT (host:port) and YDB_CONTROL (host:port of the control API). An
// unhandled rejection fails the run.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import { AccessTokenCredentialsProvider } from '@ydbjs/auth/access-token'
import { StaticCredentialsProvider } from '@ydbjs/auth/static'
import { Driver } from '@ydbjs/core'
import { query } from '@ydbjs/query'
import old from 'ydb-sdk'

const endpoint = process.env.YDB_ENDPOINT
const url = `grpc://${endpoint}/local`

async function control(path) {
  return (await fetch(`http://${process.env.YDB_CONTROL}${path}`)).json()
}

// The endpoint is a sidecar that lends its own sessions, which stay at rest.
const virtual = process.env.YDB_SIDECAR === 'virtual'

const sessions = async () => (await control('/sessions')).sessions.filter((s) => !virtual || s.state === 'busy' || s.transactions > 0)

const counters = async () => {
  const sum = {}
  for (const node of (await control('/nodes')).nodes) {
    for (const [name, n] of Object.entries(node.counters)) sum[name] = (sum[name] ?? 0) + n
  }
  return sum
}

async function eventually(what, ok) {
  for (const deadline = Date.now() + 20_000; !(await ok()); await sleep(5)) {
    assert.ok(Date.now() < deadline, `never: ${what}`)
  }
}

async function withNew(use, credentialsProvider = new AccessTokenCredentialsProvider({ token: 'fixed' })) {
  const driver = new Driver(url, { credentialsProvider })
  try {
    await driver.ready(AbortSignal.timeout(20_000))
    return await use(query(driver))
  } finally {
    driver.close()
  }
}

test('rules 8, 9, 12 and 20: a session for every query; DeleteSession comes after the stream is gone', async () => {
  const before = await counters()
  await withNew(async (sql) => {
    for (let i = 0; i < 20; i++) {
      const [rows] = await sql`SELECT 1 AS one`
      assert.equal(rows[0].one, 1)
    }
    await eventually('all sessions are deleted', async () => (await sessions()).length === 0)
  })
  const after = await counters()
  const created = after.sessions_created - before.sessions_created
  assert.ok(virtual ? created < 10 : created >= 20, `${created} sessions`)
  await sleep(50) // an unhandled rejection of a late DeleteSession would end the process now
})

test('rule 11: transactions drop their attach stream and never delete their session', async () => {
  await withNew(async (sql) => {
    await sql`CREATE TABLE new_js (id Uint64, PRIMARY KEY (id))`
    for (let i = 0; i < 5; i++) {
      await sql.begin(async (tx) => {
        await tx`UPSERT INTO new_js (id) VALUES (CAST(${i} AS Uint64))`
      })
    }
    await assert.rejects(sql.begin(async (tx) => {
      await tx`UPSERT INTO new_js (id) VALUES (100ul)`
      throw new Error('stop')
    }))
    const [rows] = await sql`SELECT COUNT(*) AS n FROM new_js`
    assert.equal(rows[0].n, 5n)
    await eventually('all sessions are deleted', async () => (await sessions()).length === 0)
  })
})

test('rule 13: statements without a result', async () => {
  await withNew(async (sql) => {
    assert.deepEqual(await sql`CREATE TABLE new_ddl (id Uint64, PRIMARY KEY (id))`, [])
    await sql`DROP TABLE new_ddl`
  })
})

test('rule 19: tickets of Login', async () => {
  const provider = (password) => new StaticCredentialsProvider({ username: process.env.YDB_USER, password }, `grpc://${endpoint}`)
  await withNew(async (sql) => {
    const [rows] = await sql`SELECT 1 AS one`
    assert.equal(rows[0].one, 1)
  }, provider(process.env.YDB_PASSWORD))
})

test('rule 15 and the old client: table and query sessions stay where they were made', async () => {
  const driver = new old.Driver({
    endpoint: `grpc://${endpoint}`,
    database: '/local',
    authService: new old.TokenAuthService('fixed'),
    logger: { fatal() {}, error() {}, warn() {}, info() {}, debug() {}, trace() {} },
  })
  try {
    assert.ok(await driver.ready(20_000))
    await driver.tableClient.withSession(async (session) => {
      await session.createTable('old_js', new old.TableDescription()
        .withColumn(new old.Column('id', old.Types.UINT64))
        .withColumn(new old.Column('v', old.Types.optional(old.Types.UTF8)))
        .withPrimaryKey('id'))
      const prepared = await session.prepareQuery('DECLARE $id AS Uint64; UPSERT INTO old_js (id, v) VALUES ($id, "a"u)')
      await session.executeQuery(prepared, { $id: old.TypedValues.uint64(7) })
      const { resultSets } = await session.executeQuery('SELECT id, v FROM old_js')
      assert.equal(resultSets[0].rows.length, 1)
      assert.equal((await session.describeTable('old_js')).columns.length, 2)
    })
    await driver.queryClient.do({
      fn: async (session) => {
        const { resultSets } = await session.execute({ text: 'SELECT 1 AS one' })
        for await (const set of resultSets) {
          for await (const row of set.rows) assert.equal(row.one, 1)
        }
      },
    })
    await driver.tableClient.withSession((session) => session.dropTable('old_js'))
  } finally {
    await driver.destroy()
  }
  await eventually('all sessions are deleted', async () => (await sessions()).length === 0)
})

// ydb-sdk: CLIENT is query or table.
import old from 'ydb-sdk'

import { main, rows, sql, tables, text } from './steps.mjs'

const url = new URL(process.env.YDB_URL.replace(/^grpc/, 'http'))
const database = url.pathname
const nothing = () => {}
const driver = new old.Driver({
  endpoint: `grpc://${url.host}`, database, authService: process.env.YDB_TOKEN ? new old.TokenAuthService(process.env.YDB_TOKEN) : new old.AnonymousAuthService(), poolSettings: { maxLimit: 10 },
  logger: { fatal: nothing, error: nothing, warn: nothing, info: nothing, debug: nothing, trace: nothing },
})
if (!await driver.ready(20_000)) throw new Error('not ready')

const { Types, TypedValues, StatusCode, Ydb } = old
const declared = (name) => ['id', 'n'].filter((p) => sql[name].includes(`$${p}`)).map((p) => `DECLARE $${p} AS Uint64; `).join('') + sql[name]
const values = (params) => Object.fromEntries(Object.entries(params ?? {}).map(([k, v]) => [`$${k}`, TypedValues.uint64(v)]))
const status = (error) => StatusCode[error?.constructor?.status] ?? (error?.code === 14 ? 'TRANSPORT_UNAVAILABLE' : error?.cause && status(error.cause))

const rowType = Types.struct({ id: Types.UINT64, text: Types.UTF8 })
const bulk = (from, to) => again(() => driver.tableClient.withSession((session) =>
  session.bulkUpsert(`${tables}big`, TypedValues.list(rowType, Array.from({ length: to - from }, (_, i) => ({ id: from + i, text }))))))

// again repeats what the SDK's own retries of single calls do not: a whole transaction, and what a lost node failed.
async function again(work) {
  const repeatable = ['ABORTED', 'BAD_SESSION', 'SESSION_BUSY', 'UNAVAILABLE', 'OVERLOADED', 'UNDETERMINED', 'NOT_FOUND', 'TRANSPORT_UNAVAILABLE']
  for (let tries = 1; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (tries === 100 || !repeatable.includes(status(error))) throw error
      await new Promise((resolve) => setTimeout(resolve, 10 * Math.min(tries, 20)))
    }
  }
}

// The client of the query service.
const queryClient = {
  scheme: (name) => queryClient.run(name),
  run: (name, params) => driver.queryClient.do({ idempotent: true, fn: (session) => queryClient.execute(session, name, params) }),
  async execute(session, name, params) {
    const { resultSets, opFinished } = await session.execute({ text: declared(name), parameters: values(params), rowMode: 1 })
    opFinished.catch(() => {}) // or it ends the process, if a row is not to be had
    const found = []
    for await (const set of resultSets) {
      for await (const row of set.rows) found.push(row.items.map((v) => Number(v.uint64Value)))
    }
    await opFinished
    return found
  },
  bulk,
  stream: (begin, each) => driver.queryClient.do({
    idempotent: true,
    fn: async (session) => {
      begin()
      const { resultSets, opFinished } = await session.execute({ text: sql.big, rowMode: 1 })
      opFinished.catch(() => {}) // or it ends the process
      for await (const set of resultSets) {
        for await (const row of set.rows) each(Number(row.items[0].uint64Value))
      }
      await opFinished
    },
  }),
  tx: (body) => driver.queryClient.do({
    idempotent: true,
    fn: async (session) => {
      await session.beginTransaction({ serializableReadWrite: {} })
      try {
        await body((name, params) => queryClient.execute(session, name, params))
        await session.commitTransaction()
      } catch (error) {
        if (session.txId && !status(error)) await session.rollbackTransaction()
        throw error
      }
    },
  }),
  async prepared(ids) { // it has none: by a parameter
    const found = []
    for (const id of ids) found.push((await queryClient.run('one', { id }))[0][0])
    return found
  },
  async cancel() {
    // A child, because a context that is made with cancel does not work in the ES module.
    const { ctx, cancel } = old.Context.createNew().ctx.createChild({ cancel: true })
    let seen = 0
    try {
      await driver.queryClient.do({
        ctx,
        fn: async (session) => {
          const { resultSets, opFinished } = await session.execute({ text: sql.big, rowMode: 1 })
          opFinished.catch(() => {}) // or it ends the process
          for await (const set of resultSets) {
            for await (const _ of set.rows) if (++seen === 1) cancel(new Error('enough'))
          }
        },
      })
    } catch (error) {
      return seen
    }
  },
}

// The client of the table service.
const tableClient = {
  with: (work) => again(() => driver.tableClient.withSession(work)),
  async scheme(name) {
    const [what, table] = name.split(' ')
    await tableClient.with((session) => {
      if (what === 'drop') return session.dropTable(tables + table)
      const description = new old.TableDescription().withColumn(new old.Column('id', Types.optional(Types.UINT64))).withPrimaryKey('id')
      return session.createTable(tables + table, description.withColumn(table === 'few' ? new old.Column('n', Types.optional(Types.UINT64)) : new old.Column('text', Types.optional(Types.UTF8))))
    })
  },
  numbers: ({ resultSets }) => (resultSets[0]?.rows ?? []).map((row) => row.items.map((v) => Number(v.uint64Value))),
  run: (name, params) => tableClient.with(async (session) => tableClient.numbers(await session.executeQuery(declared(name), values(params)))),
  bulk,
  stream: (begin, each) => tableClient.with(async (session) => {
    begin()
    await session.streamExecuteScanQuery(sql.big, (part) => { for (const row of part.resultSet.rows) each(Number(row.items[0].uint64Value)) })
  }),
  tx: (body) => tableClient.with(async (session) => {
    const { id: txId } = await session.beginTransaction({ serializableReadWrite: {} })
    try {
      await body(async (name, params) => tableClient.numbers(await session.executeQuery(declared(name), values(params), { txId })))
    } catch (error) {
      if (!status(error)) await session.rollbackTransaction({ txId })
      throw error
    }
    await session.commitTransaction({ txId })
  }),
  prepared: (ids) => tableClient.with(async (session) => {
    const statement = await session.prepareQuery(declared('one'))
    const found = []
    for (const id of ids) found.push(tableClient.numbers(await session.executeQuery(statement, values({ id })))[0][0])
    return found
  }),
  async cancel() { // it has no word for it: the consumer throws
    let seen = 0
    try {
      await driver.tableClient.withSession((session) => session.streamExecuteScanQuery(sql.big, (part) => {
        seen += part.resultSet.rows.length
        throw new Error('enough')
      }))
    } catch {
      return Math.min(seen, rows - 1)
    }
  },
}

await main({ status, close: () => driver.destroy(), ...(process.env.CLIENT === 'table' ? tableClient : queryClient) })

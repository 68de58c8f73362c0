// @ydbjs/core and @ydbjs/query: a session for each statement, results as a whole.
import { AccessTokenCredentialsProvider } from '@ydbjs/auth/access-token'
import { AnonymousCredentialsProvider } from '@ydbjs/auth/anonymous'
import { Driver } from '@ydbjs/core'
import { query } from '@ydbjs/query'
import { List } from '@ydbjs/value/list'
import { Text, Uint64 } from '@ydbjs/value/primitive'
import { Struct } from '@ydbjs/value/struct'

import { main, named, sql, text } from './steps.mjs'

const token = process.env.YDB_TOKEN
const credentialsProvider = token ? new AccessTokenCredentialsProvider({ token }) : new AnonymousCredentialsProvider()
const driver = new Driver(process.env.YDB_URL, { credentialsProvider })
await driver.ready(AbortSignal.timeout(20_000))
const db = query(driver)

const statement = (on, name, params) => {
  let q = on(sql[name])
  for (const [k, v] of Object.entries(params ?? {})) q = q.parameter(k, new Uint64(BigInt(v)))
  return q
}

const numbers = (sets) => (sets[0] ?? []).map((row) => Object.values(row).map(Number))

// status unwraps errors: a transaction wraps what failed it.
const status = (error) => error?.code !== undefined && error.constructor.codes ? error.constructor.codes[error.code] : error?.cause && status(error.cause)

await main({
  status,
  scheme: (name) => db(sql[name]).idempotent(),
  run: async (name, params) => numbers(await statement(db, name, params).idempotent()),
  async bulk(from, to) { // it has no bulk upsert: rows go as one parameter
    const list = new List(...Array.from({ length: to - from }, (_, i) => new Struct({ id: new Uint64(BigInt(from + i)), text: new Text(text) })))
    await db(named('UPSERT INTO big SELECT id, text FROM AS_TABLE($rows)')).parameter('rows', list).idempotent()
  },
  async stream(begin, each) {
    const [set] = await db(sql.big).idempotent()
    begin()
    for (const row of set) each(Number(row.id))
  },
  tx: (body) => db.begin({ idempotent: true }, (tx) => body(async (name, params) => numbers(await statement(tx, name, params)))),
  async prepared(ids) { // it has none: by a parameter
    const found = []
    for (const id of ids) found.push((await this.run('one', { id }))[0][0])
    return found
  },
  async cancel() { // after a time that is far less than so many results take
    const q = db(`${sql.big};`.repeat(20))
    const timer = setTimeout(() => q.cancel(), 100)
    try {
      await q
    } catch (error) {
      if (q.cancelled) return 1
      throw error
    } finally {
      clearTimeout(timer)
    }
  },
  close: () => driver.close(),
})

// Queries of @ydbjs, a session for each, which it makes, attaches to, and deletes. YDB_URLS are
// the databases, separated by commas, that are asked in turn, YDB_ROUNDS times; each time YDB_QUERIES queries
// are made, YDB_IN_FLIGHT at a time. If YDB_CONTROL is given, the calls of the cluster's nodes
// are counted, and YDB_PIDS are processes whose CPU time is. The last line of the output is JSON: for each database and
// round, the time of a query in microseconds (those of all divided by their number), its median, the CPU time of
// a query in this process and in the others, and the nodes' calls and new sessions.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

import { AnonymousCredentialsProvider } from '@ydbjs/auth/anonymous'
import { Driver } from '@ydbjs/core'
import { query } from '@ydbjs/query'

const urls = process.env.YDB_URLS.split(',')
const rounds = Number(process.env.YDB_ROUNDS ?? 1)
const queries = Number(process.env.YDB_QUERIES ?? 100)
const inFlight = Number(process.env.YDB_IN_FLIGHT ?? 1)

// What the client does not wait for, such as DeleteSession, is counted with the rest.
async function calls() {
  if (!process.env.YDB_CONTROL) return { calls: 0, statements: 0, sessions: 0 }
  const sum = async () => {
    const { nodes } = await (await fetch(`http://${process.env.YDB_CONTROL}/nodes`)).json()
    return nodes.reduce((a, { counters: c }) => ({
      calls: a.calls + c.calls, statements: a.statements + c.statements, sessions: a.sessions + c.sessions_created,
    }), { calls: 0, statements: 0, sessions: 0 })
  }
  for (let before = await sum(); ;) {
    await sleep(50)
    const now = await sum()
    if (now.calls === before.calls) return now
    before = now
  }
}

// cpu reads the CPU time of this process and the others, in microseconds; theirs has a grain of 10 ms.
function cpu() {
  const { user, system } = process.cpuUsage()
  const others = (process.env.YDB_PIDS ?? '').split(',').filter(Boolean).map((pid) => {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return (Number(fields[11]) + Number(fields[12])) * 10_000
  })
  return [user + system, ...others]
}

async function measure(sql) {
  const took = []
  let left = queries
  const begun = process.hrtime.bigint()
  const used = cpu()
  await Promise.all(Array.from({ length: inFlight }, async () => {
    while (left-- > 0) {
      const start = process.hrtime.bigint()
      const [rows] = await sql`SELECT 1 AS one`
      took.push(Number(process.hrtime.bigint() - start) / 1000)
      assert.equal(rows[0].one, 1)
    }
  }))
  const all = Number(process.hrtime.bigint() - begun) / 1000
  took.sort((a, b) => a - b)
  return { us: all / queries, median: took[took.length >> 1], cpu: cpu().map((n, i) => (n - used[i]) / queries) }
}

const drivers = urls.map((url) => new Driver(url, { credentialsProvider: new AnonymousCredentialsProvider() }))
const clients = drivers.map((driver) => query(driver))
for (const [i, driver] of drivers.entries()) {
  await driver.ready(AbortSignal.timeout(20_000))
  await measure(clients[i]) // not counted: what is made once
}
const result = urls.map(() => [])
for (let round = 0; round < rounds; round++) {
  for (let i = 0; i < urls.length; i++) {
    const at = round % 2 === 0 ? i : urls.length - 1 - i
    const before = await calls()
    const one = await measure(clients[at])
    const after = await calls()
    result[at].push({
      ...one, calls: after.calls - before.calls, statements: after.statements - before.statements, sessions: after.sessions - before.sessions,
    })
  }
}
for (const driver of drivers) driver.close()
console.log(JSON.stringify({ queries, result }))

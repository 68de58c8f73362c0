// A Node app that reads rows by their key, with one of YDB's SDKs or through a sidecar: one of the apps of `loadtest sdks`.
//
//   node loadtest/sdks/read.mjs --way ydb-sdk --address grpc://127.0.0.1:2136/local --in-flight 16 --warm 1 --window 2
//   node loadtest/sdks/read.mjs --way plain --address grpc://127.0.0.1:7400 ...     # or http://127.0.0.1:7401
//
// Each call in flight is a promise. The app warms up, prints {"ready": true}, measures one window for each SIGUSR2 and prints
// the window as JSON on one line: calls, failed calls, the first failure, the length in seconds, p50 and p99 in microseconds,
// and the CPU seconds of all threads of this process. SIGTERM ends the app.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'

const ROWS = 1000
const SQL = 'DECLARE $id AS Uint64; SELECT id, payload FROM bench WHERE id = $id'
const PAYLOAD = 'x'.repeat(100)

// The SDKs that proof/sdktest installs.
const sdks = createRequire(new URL('../../proof/sdktest/testdata/node/package.json', import.meta.url))
const load = (name) => import(pathToFileURL(sdks.resolve(name)))

// A way makes a read, which returns the rows of a key, and a close. The server chooses the transaction mode.
const ways = {
  // The SDK with a pool: a session for each call in flight.
  async 'ydb-sdk'(address, inFlight) {
    const { default: old } = await load('ydb-sdk')
    const url = new URL(address)
    const nothing = () => {}
    const driver = new old.Driver({
      endpoint: `grpc://${url.host}`, database: url.pathname, authService: new old.AnonymousAuthService(),
      poolSettings: { minLimit: inFlight, maxLimit: inFlight },
      logger: { fatal: nothing, error: nothing, warn: nothing, info: nothing, debug: nothing, trace: nothing },
    })
    if (!await driver.ready(20_000)) throw new Error('not ready')
    return {
      read: (id) => driver.queryClient.do({
        idempotent: true,
        fn: async (session) => {
          const { resultSets, opFinished } = await session.execute({ text: SQL, parameters: { $id: old.TypedValues.uint64(id) } })
          const found = []
          for await (const set of resultSets) {
            for await (const row of set.rows) found.push(row)
          }
          await opFinished
          return found
        },
      }),
      close: () => driver.destroy(),
    }
  },
  // The SDK without a pool, which makes a session for each statement.
  async ydbjs(address) {
    const [{ AnonymousCredentialsProvider }, { Driver }, { query }, { Uint64 }] =
      await Promise.all(['@ydbjs/auth/anonymous', '@ydbjs/core', '@ydbjs/query', '@ydbjs/value/primitive'].map(load))
    const driver = new Driver(address, { credentialsProvider: new AnonymousCredentialsProvider() })
    await driver.ready(AbortSignal.timeout(20_000))
    const db = query(driver)
    return { read: async (id) => (await db(SQL).parameter('id', new Uint64(BigInt(id))).idempotent())[0], close: () => driver.close() }
  },
  // The npm package of clients/node, over gRPC or HTTP as the address says.
  async plain(address) {
    const examples = createRequire(new URL('../../examples/node/package.json', import.meta.url))
    const { connect } = await import(pathToFileURL(examples.resolve('ydb-sidecar')))
    const client = connect(address)
    return { read: async (id) => (await client.query(SQL, { id })).rows, close: () => client.close() }
  },
}

async function measure(read, inFlight, seconds) {
  const took = []
  let failed = 0
  let first = ''
  const used = process.cpuUsage()
  const begun = performance.now()
  const until = begun + seconds * 1000
  await Promise.all(Array.from({ length: inFlight }, async () => {
    for (let start; (start = performance.now()) < until;) {
      const id = Math.floor(Math.random() * ROWS)
      let error = ''
      try {
        const rows = await read(id)
        if (rows.length !== 1 || Number(rows[0].id) !== id || rows[0].payload !== PAYLOAD) error = `row ${id}: got ${rows.length} rows, ${rows[0]?.id}`
      } catch (err) {
        error = String(err)
      }
      took.push((performance.now() - start) * 1000)
      if (error) {
        failed++
        first ||= error.slice(0, 300)
      }
    }
  }))
  const lasted = (performance.now() - begun) / 1000
  const { user, system } = process.cpuUsage(used)
  took.sort((a, b) => a - b)
  return { calls: took.length, failed, first, seconds: lasted, cpu_seconds: (user + system) / 1e6, p50_us: took[took.length >> 1], p99_us: took[Math.floor(took.length * 0.99)] }
}

const { values: flags } = parseArgs({ options: {
  way: { type: 'string' }, address: { type: 'string' }, 'in-flight': { type: 'string', default: '1' }, warm: { type: 'string', default: '1' }, window: { type: 'string', default: '2' },
} })
const inFlight = Number(flags['in-flight'])
const { read, close } = await ways[flags.way](flags.address, inFlight)
const warm = await measure(read, inFlight, Number(flags.warm))
if (warm.failed) throw new Error(`${warm.failed} of ${warm.calls} calls of the warm-up failed: ${warm.first}`)
const alive = setInterval(() => {}, 60_000)
process.on('SIGUSR2', async () => console.log(JSON.stringify(await measure(read, inFlight, Number(flags.window)))))
process.on('SIGTERM', async () => {
  clearInterval(alive)
  await close()
  process.exit()
})
console.log('{"ready": true}')

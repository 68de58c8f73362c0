// Takes one of the Node clients through the steps of package sdktest. CLIENT says which one, YDB_URL
// (grpc://host:port/database) where, YDB_TOKEN with which ticket ("": none), TABLES in which directory ("" or "name/"), ROWS
// how many rows the large table has, and KILL, where a POST kills a node; without it none is. Each step prints one line, without anything that differs from run to run.
//
// A client has these methods, told that all they do is safe to repeat. Statements go by their names below.
//   scheme(name)           creates or drops a table
//   run(name, params)      runs a statement on its own and returns its rows
//   bulk(from, to)         writes rows of table big
//   stream(begin, each)    streams table big: begin() for each try, each(id) for each row
//   tx(body)               runs a transaction; body(run) gets a function such as run
//   prepared(ids)          reads n of rows by one prepared statement
//   cancel()               gives up a stream of table big in the middle; returns how many rows came
//   close()
//   status(error)          the name of YDB's status in an error

export const rows = Number(process.env.ROWS)
export const text = 'x'.repeat((20 << 20) / rows)
const batch = rows / 20
const writers = 4, loadRows = 25

// The statements; DECLAREs of their parameters, which are all Uint64, come before.
export const sql = {
  'create few': 'CREATE TABLE few (id Uint64, n Uint64, PRIMARY KEY (id))',
  'create big': 'CREATE TABLE big (id Uint64, text Utf8, PRIMARY KEY (id))',
  upsert: 'UPSERT INTO few (id, n) VALUES ($id, $n)',
  insert: 'INSERT INTO few (id, n) VALUES ($id, $n)',
  few: 'SELECT id, n FROM few WHERE id < 100ul ORDER BY id',
  one: 'SELECT n FROM few WHERE id = $id',
  'count few': 'SELECT COUNT(*) AS n FROM few WHERE id < 100ul',
  'count load': 'SELECT COUNT(*) AS n FROM few WHERE id >= 100ul',
  'count big': 'SELECT COUNT(*) AS n FROM big',
  big: 'SELECT id, text FROM big',
  'delete few': 'DELETE FROM few',
  'drop few': 'DROP TABLE few',
  'drop big': 'DROP TABLE big',
}

// named is a statement with the tables in their directory.
export const tables = process.env.TABLES ?? ''
export const named = (text) => text.replace(/\b(few|big)\b/g, `\`${tables}$1\``)
for (const name in sql) sql[name] = named(sql[name])

let client

const say = (step, ...outcome) => console.log(`${step}:`, ...outcome)

const show = (found) => `[${(found ?? []).map((row) => `[${row.join(' ')}]`).join(' ')}]`

// attempt returns what work returns and ok, or nothing and what is wrong.
async function attempt(work) {
  try {
    return [await work(), 'ok']
  } catch (error) {
    console.error(error)
    return [undefined, client.status(error) ?? String(error)]
  }
}

async function count(name) {
  const [found, ok] = await attempt(() => client.run(name))
  return found ? String(found[0][0]) : ok
}

export async function main(c) {
  client = c
  say('connect', 'ok')
  for (const name of ['create few', 'create big']) say('create', (await attempt(() => client.scheme(name)))[1])
  await all()
  await load()
  if (process.env.KILL) {
    say('clean', (await attempt(() => client.run('delete few')))[1])
    await all()
  }
  for (const name of ['drop few', 'drop big']) say('drop', (await attempt(() => client.scheme(name)))[1])
  say('close', (await attempt(() => client.close()))[1])
}

async function all() {
  let found, ok
  ;[, ok] = await attempt(async () => {
    for (const id of [1, 2, 3]) await client.run('upsert', { id, n: 0 })
  })
  say('write', ok)
  ;[found, ok] = await attempt(() => client.run('few'))
  say('read', show(found), ok)
  ;[, ok] = await attempt(async () => {
    for (let from = 0; from < rows; from += batch) await client.bulk(from, Math.min(from + batch, rows))
  })
  say('bulk', await count('count big'), 'rows', ok)
  say('stream', await whole())
  await transactions()
  await conflict()
  ;[found, ok] = await attempt(() => client.prepared([1, 2, 4]))
  say('prepared', `[${(found ?? []).join(' ')}]`, ok)
  ;[found, ok] = await attempt(() => client.cancel())
  say('cancel in the middle', found > 0 && found < rows ? 'true' : ok, 'then', await count('count few'), 'rows')
}

async function whole() {
  let seen = 0, sum = 0
  const [, ok] = await attempt(() => client.stream(() => { seen = sum = 0 }, (id) => { seen++; sum += id }))
  return ok === 'ok' ? `${seen} rows sum ${sum}` : ok
}

class Undo extends Error {}

// undone says whether the transaction failed for the reason that its body gave.
const undone = (error) => error instanceof Undo || error?.cause instanceof Undo

async function transactions() {
  const write = async (id, end) => {
    let inside
    try {
      await client.tx(async (run) => {
        await run('upsert', { id, n: 0 })
        inside = (await run('count few'))[0][0]
        if (end) throw end
      })
      return [inside, 'ok']
    } catch (error) {
      return [inside, undone(error) ? 'true' : client.status(error) ?? String(error)]
    }
  }
  let [inside, ok] = await write(4)
  say('commit', String(inside), 'inside', await count('count few'), 'after', ok)
  ;[inside, ok] = await write(5, new Undo())
  say('rollback', String(inside), 'inside', await count('count few'), 'after', ok)
  ok = 'none'
  try {
    await client.tx(async (run) => {
      await run('upsert', { id: 6, n: 0 })
      await run('insert', { id: 1, n: 0 })
    })
  } catch (error) {
    ok = client.status(error) ?? String(error)
  }
  say('error inside', ok, await count('count few'), 'after')
}

// conflict has two transactions read the same row before either writes it.
async function conflict() {
  let tries = 0, read = 0, go
  const both = new Promise((resolve) => { go = resolve })
  const add = async () => {
    let first = true
    await client.tx(async (run) => {
      tries++
      const n = (await run('one', { id: 1 }))[0][0]
      if (first) {
        first = false
        if (++read === 2) go()
        await both
      }
      await run('upsert', { id: 1, n: n + 1 })
    })
  }
  const ends = await Promise.all([attempt(add), attempt(add)])
  const [found, ok] = await attempt(() => client.run('one', { id: 1 }))
  say('conflict', show(found), 'retried', String(tries > 2), ends.map((end) => end[1]).find((end) => end !== 'ok') ?? ok)
}

// load writes rows, each on its own and in transactions, and streams beside that.
async function load() {
  let done = 0, wrong
  const write = async (writer) => {
    for (let i = 0; i < loadRows; i++) {
      const id = 100 + writer * loadRows + i
      const [, ok] = await attempt(() => writer % 2 === 0 ? client.run('upsert', { id, n: id }) : client.tx(async (run) => {
        await run('upsert', { id, n: id })
        await run('one', { id })
      }))
      if (ok !== 'ok') wrong = ok
      if (++done === writers * loadRows / 2 && process.env.KILL) await fetch(process.env.KILL, { method: 'POST' })
    }
  }
  const read = async () => {
    for (let written = false; !written;) {
      written = done === writers * loadRows // one more after the last row
      const got = await whole()
      if (got !== `${rows} rows sum ${rows * (rows - 1) / 2}`) wrong = `a stream has ${got}`
    }
  }
  await Promise.all([...Array(writers).keys()].map(write).concat(read()))
  say('load', await count('count load'), 'rows', wrong ?? 'ok streams whole')
}

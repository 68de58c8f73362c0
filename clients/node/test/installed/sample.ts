// What an app writes, checked by tsc --strict. It is not run.
import {
  AlreadyExistsError, connect, ConnectionError, retry, SidecarError, typed, type Client, type Params, type QueryOptions, type RowStream, type Transaction,
} from 'ydb-sidecar';

interface User {
  id: bigint;
  name: string | null;
}

export async function app(db: Client = connect('unix:/run/ydb-sidecar/http', { app: 'shop', timeout: 5000 })): Promise<void> {
  const params: Params = { id: 42, day: typed('Date', '2024-01-31'), tags: ['a', 'b'], point: { x: 1, y: [2n, null] } };
  const options: QueryOptions = { mode: 'snapshot_ro', timeout: undefined, signal: undefined, limits: { rows: 10 } };
  const { rows, info, rowsAffected } = await db.query<User>('SELECT id, name FROM users WHERE id = $id', params, options);
  const first: User | undefined = rows[0];
  console.log(first?.id === 42n, info.attempts + (rowsAffected ?? 0));

  const stream: RowStream<User> = db.stream<User>('SELECT id, name FROM users');
  for await (const user of stream) console.log(user.id + 1n, stream.columns[0]?.type, stream.end?.rows);

  const left: bigint = await db.transaction(async (tx: Transaction) => {
    const { rows: [account] } = await tx.query<{ amount: bigint }>('SELECT amount FROM accounts WHERE id = $id', { id: 1 });
    if (!account) throw new Error('no such account');
    await tx.query('UPDATE accounts SET amount = $amount WHERE id = $id', { id: 1, amount: account.amount - 1n }, { commit: true });
    return account.amount - 1n;
  }, { timeout: 2000, mode: 'serializable_rw', onRetry: (error, pause) => console.log(error.code, pause) });

  for (const one of await db.batch([{ sql: 'SELECT 1', mode: 'snapshot_ro' }])) {
    if (one.error) console.log(one.error.code);
    else console.log(one.rows.length);
  }

  const users = db.kv<{ name: string }>('users', 'json');
  const found = await users.get(42);
  if (found?.value) await users.put(42, { name: found.value.name.toUpperCase() }, found.etag === undefined ? {} : { ifMatch: found.etag });
  const photo: Buffer | null | undefined = (await db.kv('photos', 'bytes').get([42, 'front']))?.value;

  for await (const part of db.ingest('prices', (from) => [{ id: from, price: 1n }], { stream: 'feed' })) {
    if ('ack' in part) console.log(part.ack);
    else if ('refused' in part) console.log(part.refused, part.error.hint);
    else console.log(part.end.rows);
  }

  try {
    await retry(() => db.query('INSERT INTO users (id) VALUES (1)'), { timeout: 1000 });
  } catch (error) {
    if (error instanceof AlreadyExistsError || error instanceof ConnectionError) console.log(error.retryAfter);
    else if (error instanceof SidecarError && error.outcomeUnknown) console.log(error.traceId);
    else throw error;
  }
  console.log(left, photo?.length);

  // @ts-expect-error a mode that does not exist
  await db.query('SELECT 1', {}, { mode: 'dirty' });
  // @ts-expect-error a function is no value
  await db.query('SELECT $a', { a: () => 1 });
  // @ts-expect-error users has objects with a name
  await users.put(1, { nick: 'x' });
  db.close();
}

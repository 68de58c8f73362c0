//! Takes the Rust client through the steps of package sdktest. YDB_URL (grpc://host:port/database) says where, YDB_TOKEN with
//! which ticket ("": none), TABLES in which directory ("" or "name/"), ROWS how many rows the large table has, and KILL, where a
//! POST kills a node; without it none is. Each step prints one line, without anything that differs from run to run.
#![recursion_limit = "256"]

use std::env::var;
use std::fmt::Display;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Barrier;
use ydb::{closure, ydb_struct, AccessTokenCredentials, Client, ClientBuilder, ResultSet, Transaction, Value, YdbError, YdbOrCustomerError, YdbResult};

const WRITERS: u64 = 4;
const LOAD_ROWS: u64 = 25;
const LIMIT: Duration = Duration::from_secs(60);

type Rows = Vec<Vec<u64>>;
type Params<'a> = &'a [(&'a str, u64)];

/// The statements. All numbers are Uint64.
struct Sql {
    create_few: String,
    create_big: String,
    upsert: String,
    insert: String,
    few: String,
    one: String,
    count_few: String,
    count_load: String,
    count_big: String,
    big: String,
    delete_few: String,
    drop_few: String,
    drop_big: String,
}

fn statements(tables: &str) -> Sql {
    let (few, big) = (format!("`{tables}few`"), format!("`{tables}big`"));
    let row = "DECLARE $id AS Uint64; DECLARE $n AS Uint64;";
    Sql {
        create_few: format!("CREATE TABLE {few} (id Uint64, n Uint64, PRIMARY KEY (id))"),
        create_big: format!("CREATE TABLE {big} (id Uint64, text Utf8, PRIMARY KEY (id))"),
        upsert: format!("{row} UPSERT INTO {few} (id, n) VALUES ($id, $n)"),
        insert: format!("{row} INSERT INTO {few} (id, n) VALUES ($id, $n)"),
        few: format!("SELECT id, n FROM {few} WHERE id < 100ul ORDER BY id"),
        one: format!("DECLARE $id AS Uint64; SELECT n FROM {few} WHERE id = $id"),
        count_few: format!("SELECT COUNT(*) AS n FROM {few} WHERE id < 100ul"),
        count_load: format!("SELECT COUNT(*) AS n FROM {few} WHERE id >= 100ul"),
        count_big: format!("SELECT COUNT(*) AS n FROM {big}"),
        big: format!("SELECT id, text FROM {big}"),
        delete_few: format!("DELETE FROM {few}"),
        drop_few: format!("DROP TABLE {few}"),
        drop_big: format!("DROP TABLE {big}"),
    }
}

struct Steps {
    client: Client,
    sql: Sql,
    tables: String,
    rows: u64,
}

#[tokio::main]
async fn main() {
    let tables = var("TABLES").unwrap_or_default();
    let mut builder = ClientBuilder::new_from_connection_string(var("YDB_URL").unwrap()).unwrap();
    if let Some(token) = var("YDB_TOKEN").ok().filter(|t| !t.is_empty()) {
        builder = builder.with_credentials(AccessTokenCredentials::from(token));
    }
    let steps = Arc::new(Steps {
        client: builder.build().await.unwrap(),
        sql: statements(&tables),
        tables,
        rows: var("ROWS").unwrap().parse().unwrap(),
    });
    let s = &steps;
    println!("connect: ok");
    println!("create: {}", ok(s.run(&s.sql.create_few, &[]).await));
    println!("create: {}", ok(s.run(&s.sql.create_big, &[]).await));
    all(s).await;
    load(s).await;
    if var("KILL").is_ok() {
        println!("clean: {}", ok(s.run(&s.sql.delete_few, &[]).await));
        all(s).await;
    }
    println!("drop: {}", ok(s.run(&s.sql.drop_few, &[]).await));
    println!("drop: {}", ok(s.run(&s.sql.drop_big, &[]).await));
    drop(steps);
    println!("close: ok");
}

/// ok, or what is wrong.
fn ok<T, E: Into<YdbOrCustomerError>>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "ok".into(),
        Err(error) => status(error.into()),
    }
}

fn status(error: YdbOrCustomerError) -> String {
    eprintln!("{error:?}");
    match error {
        YdbOrCustomerError::YDB(YdbError::YdbStatusError(e)) => match e.operation_status() {
            Ok(code) => code.as_str_name().into(),
            Err(e) => e.to_string(),
        },
        other => other.to_string().replace('\n', " "),
    }
}

fn numbers(set: ResultSet) -> YdbResult<Rows> {
    let mut rows = vec![];
    for mut row in set.rows() {
        let mut values = vec![];
        while let Ok(value) = row.remove_field(values.len()) {
            values.push(Option::<u64>::try_from(value)?.unwrap_or(u64::MAX));
        }
        rows.push(values);
    }
    Ok(rows)
}

fn text<T: Display>(values: impl IntoIterator<Item = T>) -> String {
    format!("[{}]", values.into_iter().map(|v| v.to_string()).collect::<Vec<_>>().join(" "))
}

fn show(rows: &Rows) -> String {
    text(rows.iter().map(text))
}

fn returns(sql: &str) -> bool {
    sql.contains("SELECT")
}

/// Repeats what is safe to repeat: the client does not run a transaction again whose commit failed.
macro_rules! again {
    ($work:expr) => {{
        let mut tries = 0;
        loop {
            let end: Result<(), YdbOrCustomerError> = $work;
            tries += 1;
            match end {
                Err(ref error) if tries < 50 && repeatable(error) => tokio::time::sleep(Duration::from_millis(20 * tries.min(20))).await,
                end => break end,
            }
        }
    }};
}

fn repeatable(error: &YdbOrCustomerError) -> bool {
    match error {
        YdbOrCustomerError::YDB(YdbError::YdbStatusError(e)) => e.operation_status().is_ok_and(|code| {
            ["ABORTED", "UNAVAILABLE", "OVERLOADED", "BAD_SESSION", "SESSION_BUSY", "UNDETERMINED", "NOT_FOUND"].contains(&code.as_str_name())
        }),
        YdbOrCustomerError::YDB(YdbError::TransportGRPCStatus(_) | YdbError::Transport(_) | YdbError::TransportDial(_)) => true,
        _ => false,
    }
}

/// Runs a statement of a transaction.
async fn within(tx: &mut Transaction, sql: &str, params: Params<'_>) -> YdbResult<Rows> {
    if returns(sql) {
        let mut call = tx.query_result_set(sql);
        for (name, value) in params {
            call = call.param(*name, *value);
        }
        return numbers(call.await?);
    }
    let mut call = tx.exec(sql);
    for (name, value) in params {
        call = call.param(*name, *value);
    }
    call.await?;
    Ok(vec![])
}

impl Steps {
    /// Runs a statement on its own; all are safe to repeat.
    async fn run(&self, sql: &str, params: Params<'_>) -> YdbResult<Rows> {
        let mut query = self.client.query_client();
        if returns(sql) {
            let mut call = query.query_result_set(sql).idempotent(true).timeout(LIMIT);
            for (name, value) in params {
                call = call.param(*name, *value);
            }
            return numbers(call.await?);
        }
        let mut call = query.exec(sql).idempotent(true).timeout(LIMIT);
        for (name, value) in params {
            call = call.param(*name, *value);
        }
        call.await?;
        Ok(vec![])
    }

    async fn count(&self, sql: &str) -> String {
        match self.run(sql, &[]).await {
            Ok(rows) => rows[0][0].to_string(),
            Err(error) => status(error.into()),
        }
    }

    async fn bulk(&self) -> YdbResult<()> {
        let table = format!("{}/{}big", self.client.database(), self.tables);
        let filling = "x".repeat((20 << 20) / self.rows as usize);
        let batch = self.rows / 20;
        for from in (0..self.rows).step_by(batch as usize) {
            let rows: Vec<Value> =
                (from..(from + batch).min(self.rows)).map(|id| ydb_struct!("id" => id, "text" => Value::Text(filling.clone()))).collect();
            self.client.table_client().bulk_upsert(table.clone(), rows).timeout(LIMIT).await?;
        }
        Ok(())
    }

    /// Reads table big; the client reads a result set whole.
    async fn whole(&self) -> String {
        let mut query = self.client.query_client();
        let found: YdbResult<(u64, u64)> = async {
            let set = query.query_result_set(&self.sql.big).idempotent(true).timeout(LIMIT).await?;
            let (mut seen, mut sum) = (0, 0);
            for mut row in set.rows() {
                seen += 1;
                sum += Option::<u64>::try_from(row.remove_field(0)?)?.unwrap_or(0);
            }
            Ok((seen, sum))
        }
        .await;
        match found {
            Ok((seen, sum)) => format!("{seen} rows sum {sum}"),
            Err(error) => status(error.into()),
        }
    }

    /// Gives up a stream when its first result set is there and the second one comes.
    async fn cancel(&self) -> YdbResult<usize> {
        let mut query = self.client.query_client();
        let mut stream = query.query(format!("{}; {}", self.sql.few, self.sql.big)).idempotent(true).await?;
        let first = stream.next_result_set().await?;
        Ok(first.map_or(0, |set| set.rows().count()))
    }

    async fn prepared(&self) -> YdbResult<Vec<u64>> {
        let mut found = vec![];
        for id in [1, 2, 4] {
            found.push(self.run(&self.sql.one, &[("$id", id)]).await?[0][0]);
        }
        Ok(found)
    }
}

async fn all(s: &Arc<Steps>) {
    let mut wrote = Ok(vec![]);
    for id in 1..=3 {
        wrote = match s.run(&s.sql.upsert, &[("$id", id), ("$n", 0)]).await {
            Err(error) => Err(error),
            Ok(rows) => wrote.map(|_| rows),
        };
    }
    println!("write: {}", ok(wrote));
    let read = s.run(&s.sql.few, &[]).await;
    println!("read: {} {}", show(&read.clone().unwrap_or_default()), ok(read));
    let wrote = s.bulk().await;
    println!("bulk: {} rows {}", s.count(&s.sql.count_big).await, ok(wrote));
    println!("stream: {}", s.whole().await);
    write(s, "commit", 4, false).await;
    write(s, "rollback", 5, true).await;
    let wrong = again!(s
        .client
        .query_client()
        .retry_tx(closure!([&s], async |tx: &mut Transaction| {
            within(tx, &s.sql.upsert, &[("$id", 6), ("$n", 0)]).await?;
            within(tx, &s.sql.insert, &[("$id", 1), ("$n", 0)]).await?;
            Ok(())
        }))
        .idempotent(true)
        .timeout(LIMIT)
        .await);
    println!("error inside: {} {} after", ok(wrong), s.count(&s.sql.count_few).await);
    conflict(s).await;
    let found = s.prepared().await;
    println!("prepared: {} {}", text(found.clone().unwrap_or_default()), ok(found));
    let seen = s.cancel().await;
    let middle = match seen {
        Ok(n) => (0 < n && (n as u64) < s.rows).to_string(),
        Err(_) => ok(seen),
    };
    println!("cancel in the middle: {middle} then {} rows", s.count(&s.sql.count_few).await);
}

async fn write(s: &Arc<Steps>, step: &str, id: u64, undo: bool) {
    let inside = AtomicU64::new(0);
    let wrote = again!(s
        .client
        .query_client()
        .retry_tx(closure!([&s, id, undo, &inside], async |tx: &mut Transaction| {
            within(tx, &s.sql.upsert, &[("$id", *id), ("$n", 0)]).await?;
            inside.store(within(tx, &s.sql.count_few, &[]).await?[0][0], SeqCst);
            if *undo {
                return Err(YdbOrCustomerError::from_err(std::io::Error::other("undo")));
            }
            Ok(())
        }))
        .idempotent(true)
        .timeout(LIMIT)
        .await);
    let end = match wrote {
        Err(YdbOrCustomerError::Customer(_)) => "true".into(),
        other => ok(other),
    };
    println!("{step}: {} inside {} after {end}", inside.load(SeqCst), s.count(&s.sql.count_few).await);
}

/// Two transactions read the same row before either writes it.
async fn conflict(s: &Arc<Steps>) {
    let (both, tries) = (Arc::new(Barrier::new(2)), Arc::new(AtomicU64::new(0)));
    let mut adding = vec![];
    for _ in 0..2 {
        let (s, both, tries) = (s.clone(), both.clone(), tries.clone());
        adding.push(tokio::spawn(async move {
            let first = AtomicBool::new(true);
            again!(s.client
                .query_client()
                .retry_tx(closure!([&s, &both, &tries, &first], async |tx: &mut Transaction| {
                    tries.fetch_add(1, SeqCst);
                    let n = within(tx, &s.sql.one, &[("$id", 1)]).await?[0][0];
                    if first.swap(false, SeqCst) {
                        both.wait().await;
                    }
                    within(tx, &s.sql.upsert, &[("$id", 1), ("$n", n + 1)]).await?;
                    Ok(())
                }))
                .idempotent(true)
                .timeout(LIMIT)
                .await)
        }));
    }
    let mut wrong = "ok".to_string();
    for one in adding {
        let end = ok(one.await.unwrap());
        if end != "ok" {
            wrong = end;
        }
    }
    let rows = s.run(&s.sql.one, &[("$id", 1)]).await.unwrap_or_default();
    println!("conflict: {} retried {} {wrong}", show(&rows), tries.load(SeqCst) > 2);
}

/// Rows are written, each on its own and in transactions, and the large table is read beside that.
async fn load(s: &Arc<Steps>) {
    let done = Arc::new(AtomicU64::new(0));
    let wrong = Arc::new(Mutex::new("ok streams whole".to_string()));
    let mut writing = vec![];
    for writer in 0..WRITERS {
        let (s, done, wrong) = (s.clone(), done.clone(), wrong.clone());
        writing.push(tokio::spawn(async move {
            for i in 0..LOAD_ROWS {
                let id = 100 + writer * LOAD_ROWS + i;
                let end = if writer % 2 == 0 { ok(s.run(&s.sql.upsert, &[("$id", id), ("$n", id)]).await) } else { ok(transaction(&s, id).await) };
                if end != "ok" {
                    *wrong.lock().unwrap() = end;
                }
                if done.fetch_add(1, SeqCst) + 1 == WRITERS * LOAD_ROWS / 2 {
                    tokio::task::spawn_blocking(kill).await.unwrap();
                }
            }
        }));
    }
    let want = format!("{} rows sum {}", s.rows, s.rows * (s.rows - 1) / 2);
    let mut written = false;
    while !written {
        written = done.load(SeqCst) == WRITERS * LOAD_ROWS; // one more after the last row
        let got = s.whole().await;
        if got != want {
            *wrong.lock().unwrap() = format!("a stream has {got}");
        }
    }
    for one in writing {
        one.await.unwrap();
    }
    println!("load: {} rows {}", s.count(&s.sql.count_load).await, wrong.lock().unwrap());
}

async fn transaction(s: &Arc<Steps>, id: u64) -> Result<(), YdbOrCustomerError> {
    again!(s
        .client
        .query_client()
        .retry_tx(closure!([&s, id], async |tx: &mut Transaction| {
            within(tx, &s.sql.upsert, &[("$id", *id), ("$n", *id)]).await?;
            within(tx, &s.sql.one, &[("$id", *id)]).await?;
            Ok(())
        }))
        .idempotent(true)
        .timeout(LIMIT)
        .await)
}

/// POSTs to KILL, http://host:port/path.
fn kill() {
    let Ok(url) = var("KILL") else { return };
    let (host, path) = url.trim_start_matches("http://").split_once('/').unwrap();
    let mut connection = std::net::TcpStream::connect(host).unwrap();
    write!(connection, "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    connection.read_to_end(&mut vec![]).unwrap();
}

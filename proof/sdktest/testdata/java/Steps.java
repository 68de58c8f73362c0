import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongConsumer;

import tech.ydb.common.transaction.TxMode;
import tech.ydb.core.Result;
import tech.ydb.core.Status;
import tech.ydb.core.auth.TokenAuthProvider;
import tech.ydb.core.grpc.GrpcReadStream;
import tech.ydb.core.grpc.GrpcTransport;
import tech.ydb.core.grpc.GrpcTransportBuilder;
import tech.ydb.query.QueryClient;
import tech.ydb.query.QuerySession;
import tech.ydb.query.QueryStream;
import tech.ydb.query.QueryTransaction;
import tech.ydb.query.tools.QueryReader;
import tech.ydb.table.Session;
import tech.ydb.table.TableClient;
import tech.ydb.table.query.DataQuery;
import tech.ydb.table.query.DataQueryResult;
import tech.ydb.table.query.Params;
import tech.ydb.table.result.ResultSetReader;
import tech.ydb.table.settings.BulkUpsertSettings;
import tech.ydb.table.settings.ExecuteScanQuerySettings;
import tech.ydb.table.transaction.TableTransaction;
import tech.ydb.table.transaction.TxControl;
import tech.ydb.table.values.ListType;
import tech.ydb.table.values.ListValue;
import tech.ydb.table.values.OptionalType;
import tech.ydb.table.values.PrimitiveType;
import tech.ydb.table.values.PrimitiveValue;
import tech.ydb.table.values.StructType;
import tech.ydb.table.values.Value;

/**
 * Takes one of the Java clients through the steps of package sdktest. CLIENT says which one (query, table,
 * table-over-query, or jdbc, which is in Jdbc.java), YDB_URL (grpc://host:port/database) where, YDB_TOKEN with which ticket ("": none),
 * TABLES in which directory ("" or "name/"), ROWS how many rows the large table has, and KILL, where a POST kills a node; without it none is. Each step prints one line, without anything that differs from run to run.
 */
public class Steps {
    static final long ROWS = Long.parseLong(System.getenv("ROWS"));
    static final long BATCH = ROWS / 20;
    static final String TEXT = "x".repeat((int) ((20 << 20) / ROWS));
    static final int WRITERS = 4;
    static final int LOAD_ROWS = 25;

    static final String DATABASE = URI.create(System.getenv("YDB_URL")).getPath();
    static final String TABLES = System.getenv().getOrDefault("TABLES", "");

    // The statements. All numbers are Uint64.
    static final String CREATE_FEW = named("CREATE TABLE few (id Uint64, n Uint64, PRIMARY KEY (id))");
    static final String CREATE_BIG = named("CREATE TABLE big (id Uint64, text Utf8, PRIMARY KEY (id))");
    static final String UPSERT = named("DECLARE $id AS Uint64; DECLARE $n AS Uint64; UPSERT INTO few (id, n) VALUES ($id, $n)");
    static final String INSERT = named("DECLARE $id AS Uint64; DECLARE $n AS Uint64; INSERT INTO few (id, n) VALUES ($id, $n)");
    static final String FEW = named("SELECT id, n FROM few WHERE id < 100ul ORDER BY id");
    static final String ONE = named("DECLARE $id AS Uint64; SELECT n FROM few WHERE id = $id");
    static final String COUNT_FEW = named("SELECT COUNT(*) AS n FROM few WHERE id < 100ul");
    static final String COUNT_LOAD = named("SELECT COUNT(*) AS n FROM few WHERE id >= 100ul");
    static final String COUNT_BIG = named("SELECT COUNT(*) AS n FROM big");
    static final String BIG = named("SELECT id, text FROM big");

    /** The statement with the tables in their directory. */
    static String named(String sql) {
        return sql.replaceAll("\\b(few|big)\\b", "`" + TABLES + "$1`");
    }

    /** What a call failed with. */
    static class Failure extends RuntimeException {
        final Status status;

        Failure(Status status) {
            super(status.toString());
            this.status = status;
        }
    }

    /** Is thrown in a transaction that shall be rolled back. */
    static class Undo extends RuntimeException {
    }

    /** Runs statements. */
    interface Runner {
        List<List<Long>> run(String sql, Params params);
    }

    interface Body {
        void run(Runner tx);
    }

    /** A client, which is told that all it does is safe to repeat. */
    interface Client extends Runner, AutoCloseable {
        void scheme(String sql);

        /** Calls begin for each try and each for each row of table big. */
        void stream(Runnable begin, LongConsumer each);

        void tx(Body body);

        /** Reads n of rows by one prepared statement. */
        List<Long> prepared(List<Long> ids);

        /** Writes rows of table big. */
        default void bulk(long from, long to) {
            Steps.bulk(from, to);
        }

        /** Gives up a stream of table big in the middle; returns how many rows came. */
        long cancel();

        @Override
        void close();
    }

    static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });

    static TableClient bulk;
    static Client client;

    public static void main(String[] args) throws Exception {
        GrpcTransportBuilder builder = GrpcTransport.forConnectionString(System.getenv("YDB_URL"));
        if (!System.getenv("YDB_TOKEN").isEmpty()) {
            builder = builder.withAuthProvider(new TokenAuthProvider(System.getenv("YDB_TOKEN")));
        }
        if (System.getenv("CLIENT").equals("jdbc")) { // has a transport of its own
            client = (Client) Class.forName("Jdbc").getDeclaredConstructor().newInstance();
            run();
            return;
        }
        try (GrpcTransport transport = builder.build()) {
            bulk = TableClient.newClient(transport).sessionPoolSize(0, 10).build();
            switch (System.getenv("CLIENT")) {
                case "query":
                    client = new OfQuery(QueryClient.newClient(transport).sessionPoolMaxSize(10).build());
                    break;
                case "table":
                    client = new OfTable(TableClient.newClient(transport).sessionPoolSize(0, 10).build());
                    break;
                default:
                    client = new OfTable(QueryClient.newTableClient(transport).sessionPoolSize(0, 10).build());
            }
            run();
            bulk.close();
        }
    }

    static void run() throws Exception {
        say("connect", "ok");
        say("create", attempt(() -> client.scheme(CREATE_FEW)));
        say("create", attempt(() -> client.scheme(CREATE_BIG)));
        all();
        load();
        if (System.getenv("KILL") != null) {
            say("clean", attempt(() -> client.run(named("DELETE FROM few"), Params.empty())));
            all();
        }
        say("drop", attempt(() -> client.scheme(named("DROP TABLE few"))));
        say("drop", attempt(() -> client.scheme(named("DROP TABLE big"))));
        say("close", attempt(client::close));
        THREADS.shutdown();
    }

    static void say(String step, String outcome) {
        System.out.println(step + ": " + outcome);
    }

    /** Returns ok, or what is wrong. */
    static String attempt(Runnable work) {
        try {
            work.run();
            return "ok";
        } catch (RuntimeException error) {
            error.printStackTrace();
            return status(error);
        }
    }

    static String status(RuntimeException error) {
        return error instanceof Failure ? ((Failure) error).status.getCode().name() : error.toString();
    }

    static String show(List<List<Long>> rows) {
        StringBuilder text = new StringBuilder("[");
        for (List<Long> row : rows) {
            text.append(text.length() > 1 ? " " : "").append(list(row));
        }
        return text.append("]").toString();
    }

    static String list(List<Long> row) {
        return row.toString().replace(",", "");
    }

    static String count(Runner on, String sql) {
        try {
            return on.run(sql, Params.empty()).get(0).get(0).toString();
        } catch (RuntimeException error) {
            error.printStackTrace();
            return status(error);
        }
    }

    static Params id(long id) {
        return Params.of("$id", PrimitiveValue.newUint64(id));
    }

    static Params row(long id, long n) {
        return Params.of("$id", PrimitiveValue.newUint64(id), "$n", PrimitiveValue.newUint64(n));
    }

    static void all() throws Exception {
        say("write", attempt(() -> {
            for (long id = 1; id <= 3; id++) {
                client.run(UPSERT, row(id, 0));
            }
        }));
        AtomicReference<List<List<Long>>> read = new AtomicReference<>(List.of());
        String ok = attempt(() -> read.set(client.run(FEW, Params.empty())));
        say("read", show(read.get()) + " " + ok);
        ok = attempt(() -> {
            for (long from = 0; from < ROWS; from += BATCH) {
                client.bulk(from, Math.min(from + BATCH, ROWS));
            }
        });
        say("bulk", count(client, COUNT_BIG) + " rows " + ok);
        say("stream", whole());
        transactions();
        conflict();
        AtomicReference<List<Long>> found = new AtomicReference<>(List.of());
        ok = attempt(() -> found.set(client.prepared(List.of(1L, 2L, 4L))));
        say("prepared", list(found.get()) + " " + ok);
        AtomicLong seen = new AtomicLong();
        ok = attempt(() -> seen.set(client.cancel()));
        say("cancel in the middle", (0 < seen.get() && seen.get() < ROWS ? "true" : ok) + " then " + count(client, COUNT_FEW) + " rows");
    }

    static void bulk(long from, long to) {
        StructType type = StructType.of("id", OptionalType.of(PrimitiveType.Uint64), "text", OptionalType.of(PrimitiveType.Text));
        List<Value<?>> rows = new ArrayList<>();
        for (long id = from; id < to; id++) {
            rows.add(type.newValue("id", PrimitiveValue.newUint64(id).makeOptional(), "text", PrimitiveValue.newText(TEXT).makeOptional()));
        }
        ListValue list = ListType.of(type).newValue(rows);
        ok(ofTable(bulk).supplyStatus(s -> s.executeBulkUpsert(DATABASE + "/" + TABLES + "big", list, new BulkUpsertSettings())).join());
    }

    static tech.ydb.table.SessionRetryContext ofTable(TableClient client) {
        return tech.ydb.table.SessionRetryContext.create(client).executor(THREADS).idempotent(true).maxRetries(50)
                .sessionCreationTimeout(Duration.ofSeconds(10)).build();
    }

    static void ok(Status status) {
        if (!status.isSuccess()) {
            throw new Failure(status);
        }
    }

    static <T> T ok(Result<T> result) {
        ok(result.getStatus());
        return result.getValue();
    }

    /** Streams table big. */
    static String whole() {
        AtomicLong seen = new AtomicLong();
        AtomicLong sum = new AtomicLong();
        String ok = attempt(() -> client.stream(() -> {
            seen.set(0);
            sum.set(0);
        }, id -> {
            seen.incrementAndGet();
            sum.addAndGet(id);
        }));
        return ok.equals("ok") ? seen + " rows sum " + sum : ok;
    }

    static void transactions() {
        write("commit", 4, false);
        write("rollback", 5, true);
        String status = "none";
        try {
            client.tx(tx -> {
                tx.run(UPSERT, row(6, 0));
                tx.run(INSERT, row(1, 0));
            });
        } catch (RuntimeException error) {
            status = status(error);
        }
        say("error inside", status + " " + count(client, COUNT_FEW) + " after");
    }

    static void write(String step, long id, boolean undo) {
        AtomicReference<String> inside = new AtomicReference<>();
        String ok = "ok";
        try {
            client.tx(tx -> {
                tx.run(UPSERT, row(id, 0));
                inside.set(count(tx, COUNT_FEW));
                if (undo) {
                    throw new Undo();
                }
            });
        } catch (Undo undone) {
            ok = "true";
        } catch (RuntimeException error) {
            ok = status(error);
        }
        say(step, inside + " inside " + count(client, COUNT_FEW) + " after " + ok);
    }

    /** Two transactions read the same row before either writes it. */
    static void conflict() throws Exception {
        CountDownLatch both = new CountDownLatch(2);
        AtomicInteger tries = new AtomicInteger();
        List<CompletableFuture<String>> adding = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            AtomicInteger mine = new AtomicInteger();
            adding.add(CompletableFuture.supplyAsync(() -> attempt(() -> client.tx(tx -> {
                tries.incrementAndGet();
                long n = tx.run(ONE, id(1)).get(0).get(0);
                if (mine.incrementAndGet() == 1) {
                    both.countDown();
                    try {
                        both.await();
                    } catch (InterruptedException error) {
                        throw new IllegalStateException(error);
                    }
                }
                tx.run(UPSERT, row(1, n + 1));
            })), THREADS));
        }
        String wrong = "ok";
        for (CompletableFuture<String> one : adding) {
            wrong = one.get().equals("ok") ? wrong : one.get();
        }
        say("conflict", show(client.run(ONE, id(1))) + " retried " + (tries.get() > 2) + " " + wrong);
    }

    /** Rows are written, each on its own and in transactions, and streamed beside that. */
    static void load() throws Exception {
        AtomicInteger done = new AtomicInteger();
        AtomicReference<String> wrong = new AtomicReference<>("ok streams whole");
        List<CompletableFuture<Void>> work = new ArrayList<>();
        for (int w = 0; w < WRITERS; w++) {
            int writer = w;
            work.add(CompletableFuture.runAsync(() -> {
                for (int i = 0; i < LOAD_ROWS; i++) {
                    long id = 100 + writer * LOAD_ROWS + i;
                    String ok = attempt(() -> {
                        if (writer % 2 == 0) {
                            client.run(UPSERT, row(id, id));
                            return;
                        }
                        client.tx(tx -> {
                            tx.run(UPSERT, row(id, id));
                            tx.run(ONE, id(id));
                        });
                    });
                    if (!ok.equals("ok")) {
                        wrong.set(ok);
                    }
                    if (done.incrementAndGet() == WRITERS * LOAD_ROWS / 2) {
                        kill();
                    }
                }
            }, THREADS));
        }
        String want = ROWS + " rows sum " + ROWS * (ROWS - 1) / 2;
        for (boolean written = false; !written;) {
            written = done.get() == WRITERS * LOAD_ROWS; // one more after the last row
            String got = whole();
            if (!got.equals(want)) {
                wrong.set("a stream has " + got);
            }
        }
        CompletableFuture.allOf(work.toArray(new CompletableFuture<?>[0])).get();
        say("load", count(client, COUNT_LOAD) + " rows " + wrong.get());
    }

    static void kill() {
        if (System.getenv("KILL") == null) {
            return;
        }
        try {
            HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(System.getenv("KILL"))).POST(HttpRequest.BodyPublishers.noBody()).build(),
                    HttpResponse.BodyHandlers.discarding());
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static List<List<Long>> numbers(ResultSetReader set) {
        List<List<Long>> rows = new ArrayList<>();
        while (set.next()) {
            List<Long> row = new ArrayList<>();
            for (int i = 0; i < set.getColumnCount(); i++) {
                row.add(set.getColumn(i).getUint64());
            }
            rows.add(row);
        }
        return rows;
    }

    /** Runs a transaction's body: undo is told apart from what the server says, and is not tried again. */
    static class Attempt<T> {
        RuntimeException undone;

        CompletableFuture<Result<T>> of(java.util.function.Supplier<T> work, Runnable rollback) {
            try {
                return CompletableFuture.completedFuture(Result.success(work.get()));
            } catch (Failure failure) {
                rollback.run();
                return CompletableFuture.completedFuture(Result.fail(failure.status));
            } catch (RuntimeException error) {
                rollback.run();
                undone = error;
                return CompletableFuture.completedFuture(Result.success(null));
            }
        }

        T end(CompletableFuture<Result<T>> result) {
            T value = ok(result.join());
            if (undone != null) {
                throw undone;
            }
            return value;
        }
    }

    static class OfQuery implements Client {
        final QueryClient client;
        final tech.ydb.query.tools.SessionRetryContext retry;

        OfQuery(QueryClient client) {
            this.client = client;
            retry = tech.ydb.query.tools.SessionRetryContext.create(client).executor(THREADS).idempotent(true).maxRetries(50)
                    .sessionCreationTimeout(Duration.ofSeconds(10)).build();
        }

        public void scheme(String sql) {
            ok(retry.supplyResult(s -> s.createQuery(sql, TxMode.NONE, Params.empty()).execute()).join());
        }

        public List<List<Long>> run(String sql, Params params) {
            return read(ok(retry.supplyResult(s -> QueryReader.readFrom(s.createQuery(sql, TxMode.SERIALIZABLE_RW, params))).join()));
        }

        static List<List<Long>> read(QueryReader reader) {
            List<List<Long>> rows = new ArrayList<>();
            for (ResultSetReader set : reader) {
                rows.addAll(numbers(set));
            }
            return rows;
        }

        public void stream(Runnable begin, LongConsumer each) {
            ok(retry.supplyResult(s -> {
                begin.run();
                return s.createQuery(BIG, TxMode.SNAPSHOT_RO).execute(part -> {
                    ResultSetReader set = part.getResultSetReader();
                    while (set.next()) {
                        each.accept(set.getColumn(0).getUint64());
                    }
                });
            }).join());
        }

        public void tx(Body body) {
            Attempt<Void> attempt = new Attempt<>();
            attempt.end(retry.supplyResult(s -> {
                QueryTransaction tx = s.createNewTransaction(TxMode.SERIALIZABLE_RW);
                return attempt.of(() -> {
                    body.run((sql, params) -> read(ok(QueryReader.readFrom(tx.createQuery(sql, params)).join())));
                    ok(tx.commit().join());
                    return null;
                }, () -> {
                    if (tx.isActive()) {
                        tx.rollback().join();
                    }
                });
            }));
        }

        /** It has none: by a parameter. */
        public List<Long> prepared(List<Long> ids) {
            List<Long> found = new ArrayList<>();
            for (long i : ids) {
                found.add(run(ONE, id(i)).get(0).get(0));
            }
            return found;
        }

        public long cancel() {
            AtomicLong seen = new AtomicLong();
            QuerySession session = ok(client.createSession(Duration.ofSeconds(10)).join());
            try {
                QueryStream stream = session.createQuery(BIG, TxMode.SNAPSHOT_RO);
                Status status = stream.execute(part -> {
                    if (seen.getAndAdd(part.getResultSetReader().getRowCount()) == 0) {
                        stream.cancel();
                    }
                }).join().getStatus();
                return status.isSuccess() ? -1 : seen.get();
            } finally {
                session.close();
            }
        }

        public void close() {
            client.close();
        }
    }

    static class OfTable implements Client {
        final TableClient client;
        final tech.ydb.table.SessionRetryContext retry;

        OfTable(TableClient client) {
            this.client = client;
            retry = ofTable(client);
        }

        public void scheme(String sql) {
            ok(retry.supplyStatus(s -> s.executeSchemeQuery(sql)).join());
        }

        public List<List<Long>> run(String sql, Params params) {
            return read(ok(retry.supplyResult(s -> s.executeDataQuery(sql, TxControl.serializableRw().setCommitTx(true), params)).join()));
        }

        static List<List<Long>> read(DataQueryResult result) {
            return result.getResultSetCount() == 0 ? List.of() : numbers(result.getResultSet(0));
        }

        static ExecuteScanQuerySettings patient() {
            return ExecuteScanQuerySettings.newBuilder().withRequestTimeout(Duration.ofSeconds(60)).build();
        }

        public void stream(Runnable begin, LongConsumer each) {
            ok(retry.supplyStatus(s -> {
                begin.run();
                return s.executeScanQuery(BIG, Params.empty(), patient()).start(part -> {
                    while (part.next()) {
                        each.accept(part.getColumn(0).getUint64());
                    }
                });
            }).join());
        }

        public void tx(Body body) {
            Attempt<Void> attempt = new Attempt<>();
            attempt.end(retry.supplyResult(s -> {
                TableTransaction tx = s.createNewTransaction(TxMode.SERIALIZABLE_RW);
                return attempt.of(() -> {
                    body.run((sql, params) -> read(ok(tx.executeDataQuery(sql, params).join())));
                    ok(tx.commit().join());
                    return null;
                }, () -> {
                    if (tx.isActive()) {
                        tx.rollback().join();
                    }
                });
            }));
        }

        public List<Long> prepared(List<Long> ids) {
            Attempt<List<Long>> attempt = new Attempt<>();
            return attempt.end(retry.supplyResult(s -> attempt.of(() -> {
                DataQuery query = ok(s.prepareDataQuery(ONE).join());
                List<Long> found = new ArrayList<>();
                for (long i : ids) {
                    found.add(read(ok(query.execute(TxControl.serializableRw().setCommitTx(true), id(i)).join())).get(0).get(0));
                }
                return found;
            }, () -> { })));
        }

        public long cancel() {
            AtomicLong seen = new AtomicLong();
            Session session = ok(client.createSession(Duration.ofSeconds(10)).join());
            try {
                GrpcReadStream<ResultSetReader> stream = session.executeScanQuery(BIG, Params.empty(), patient());
                Status status = stream.start(part -> {
                    if (seen.getAndAdd(part.getRowCount()) == 0) {
                        stream.cancel();
                    }
                }).join();
                return status.isSuccess() ? -1 : seen.get();
            } finally {
                session.close();
            }
        }

        public void close() {
            client.close();
        }
    }
}

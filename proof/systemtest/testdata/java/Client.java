import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;

import tech.ydb.common.transaction.TxMode;
import tech.ydb.core.Result;
import tech.ydb.core.Status;
import tech.ydb.core.auth.StaticCredentials;
import tech.ydb.core.grpc.GrpcTransport;
import tech.ydb.core.grpc.GrpcTransportBuilder;
import tech.ydb.query.QueryClient;
import tech.ydb.query.QuerySession;
import tech.ydb.query.QueryTransaction;
import tech.ydb.query.tools.QueryReader;
import tech.ydb.query.tools.SessionRetryContext;
import tech.ydb.table.TableClient;
import tech.ydb.table.query.DataQueryResult;
import tech.ydb.table.query.Params;
import tech.ydb.table.result.ResultSetReader;
import tech.ydb.table.settings.BulkUpsertSettings;
import tech.ydb.table.transaction.TxControl;
import tech.ydb.table.values.ListType;
import tech.ydb.table.values.ListValue;
import tech.ydb.table.values.OptionalType;
import tech.ydb.table.values.PrimitiveType;
import tech.ydb.table.values.PrimitiveValue;
import tech.ydb.table.values.StructType;
import tech.ydb.table.values.Value;

/**
 * Uses YDB's official Java client and prints what came of each step, without anything that differs from run to run:
 * directly and through a sidecar the output must be the same. Environment: YDB_URL (grpc[s]://host:port/database),
 * YDB_USER and YDB_PASSWORD (none: anonymous), YDB_CA (a PEM file, with grpcs).
 */
public class Client {
    static final int ROWS = 12000;
    static final String DECLARE = "DECLARE $id AS Uint64; ";

    public static void main(String[] args) throws Exception {
        GrpcTransportBuilder builder = GrpcTransport.forConnectionString(System.getenv("YDB_URL"));
        if (System.getenv("YDB_USER") != null) {
            builder.withAuthProvider(new StaticCredentials(System.getenv("YDB_USER"), System.getenv("YDB_PASSWORD")));
        }
        if (System.getenv("YDB_CA") != null) {
            builder.withSecureConnection(Files.readAllBytes(Path.of(System.getenv("YDB_CA"))));
        }
        try (GrpcTransport transport = builder.build()) {
            try (QueryClient query = QueryClient.newClient(transport).sessionPoolMaxSize(10).build()) {
                query(query);
            }
            try (TableClient table = QueryClient.newTableClient(transport).sessionPoolSize(0, 10).build()) {
                table(tech.ydb.table.SessionRetryContext.create(table).build());
            }
            try (TableClient table = TableClient.newClient(transport).sessionPoolSize(0, 10).build()) {
                table(tech.ydb.table.SessionRetryContext.create(table).build());
            }
        }
        say("closed", "ok");
    }

    static void say(String step, Object outcome) {
        System.out.println(step + ": " + outcome);
    }

    static void query(QueryClient client) throws Exception {
        SessionRetryContext retry = SessionRetryContext.create(client).build();
        say("create", run(retry, "CREATE TABLE java (id Uint64, n Int64, PRIMARY KEY (id))", Params.empty(), TxMode.NONE));
        for (long id = 1; id <= 3; id++) {
            say("write", run(retry, DECLARE + "UPSERT INTO java (id, n) VALUES ($id, 0l)", id(id), TxMode.SERIALIZABLE_RW));
        }
        say("read", rows(retry, "SELECT id, n FROM java ORDER BY id"));
        say("wrong", run(retry, "SELEKT 1", Params.empty(), TxMode.NONE));
        say("missing", run(retry, "SELECT * FROM missing", Params.empty(), TxMode.SNAPSHOT_RO));

        say("transaction", retry.supplyStatus(session -> transaction(session, 4, true)).join().getCode());
        say("undone", retry.supplyStatus(session -> transaction(session, 5, false)).join().getCode());
        say("read", rows(retry, "SELECT id FROM java ORDER BY id"));

        // Conflicting transactions, which the client repeats.
        List<CompletableFuture<Status>> adding = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            adding.add(SessionRetryContext.create(client).maxRetries(100).build().supplyStatus(Client::add));
        }
        for (CompletableFuture<Status> one : adding) {
            say("added", one.join().getCode());
        }
        say("counter", rows(retry, "SELECT n FROM java WHERE id = 1ul"));
    }

    static CompletableFuture<Status> transaction(QuerySession session, long id, boolean commit) {
        QueryTransaction tx = session.beginTransaction(TxMode.SERIALIZABLE_RW).join().getValue();
        Status status = tx.createQuery(DECLARE + "UPSERT INTO java (id, n) VALUES ($id, 0l)", id(id)).execute().join().getStatus();
        if (!status.isSuccess()) {
            return CompletableFuture.completedFuture(status);
        }
        return commit ? tx.commit().thenApply(Result::getStatus) : tx.rollback();
    }

    static CompletableFuture<Status> add(QuerySession session) {
        QueryTransaction tx = session.createNewTransaction(TxMode.SERIALIZABLE_RW);
        Result<QueryReader> read = QueryReader.readFrom(tx.createQuery("SELECT n FROM java WHERE id = 1ul")).join();
        if (!read.isSuccess()) {
            return CompletableFuture.completedFuture(read.getStatus());
        }
        ResultSetReader set = read.getValue().getResultSet(0);
        set.next();
        Params n = Params.of("$n", PrimitiveValue.newInt64(set.getColumn(0).getInt64() + 1));
        return tx.createQueryWithCommit("DECLARE $n AS Int64; UPSERT INTO java (id, n) VALUES (1ul, $n)", n).execute().thenApply(Result::getStatus);
    }

    static Params id(long id) {
        return Params.of("$id", PrimitiveValue.newUint64(id));
    }

    static Object run(SessionRetryContext retry, String sql, Params params, TxMode mode) {
        return retry.supplyResult(session -> session.createQuery(sql, mode, params).execute()).join().getStatus().getCode();
    }

    static Object rows(SessionRetryContext retry, String sql) {
        Result<QueryReader> read = retry.supplyResult(session -> QueryReader.readFrom(session.createQuery(sql, TxMode.SNAPSHOT_RO))).join();
        if (!read.isSuccess()) {
            return read.getStatus();
        }
        StringBuilder text = new StringBuilder();
        for (ResultSetReader set : read.getValue()) {
            while (set.next()) {
                for (int i = 0; i < set.getColumnCount(); i++) {
                    text.append(set.getColumn(i)).append(' ');
                }
                text.append("; ");
            }
        }
        return text;
    }

    static void table(tech.ydb.table.SessionRetryContext retry) {
        say("scheme", retry.supplyStatus(s -> s.executeSchemeQuery("CREATE TABLE java_large (id Uint64, text Utf8, PRIMARY KEY (id))")).join().getCode());
        StructType row = StructType.of("id", OptionalType.of(PrimitiveType.Uint64), "text", OptionalType.of(PrimitiveType.Text));
        String text = "x".repeat(1000);
        for (long from = 0; from < ROWS; from += 2000) {
            List<Value<?>> values = new ArrayList<>();
            for (long id = from; id < from + 2000; id++) {
                values.add(row.newValue("id", PrimitiveValue.newUint64(id).makeOptional(), "text", PrimitiveValue.newText(text).makeOptional()));
            }
            ListValue list = ListType.of(row).newValue(values);
            say("bulk", retry.supplyStatus(s -> s.executeBulkUpsert("/local/java_large", list, new BulkUpsertSettings())).join().getCode());
        }
        Result<DataQueryResult> answer = retry.supplyResult(s -> s.executeDataQuery("SELECT COUNT(*) FROM java_large", TxControl.serializableRw().setCommitTx(true))).join();
        ResultSetReader set = answer.getValue().getResultSet(0);
        set.next();
        say("count", set.getColumn(0));
        AtomicLong seen = new AtomicLong();
        AtomicLong octets = new AtomicLong();
        say("stream", retry.supplyStatus(s -> {
            seen.set(0);
            octets.set(0);
            return s.executeScanQuery("SELECT id, text FROM java_large", Params.empty(), tech.ydb.table.settings.ExecuteScanQuerySettings.newBuilder()
                    .withRequestTimeout(Duration.ofSeconds(30)).build()).start(part -> {
                        while (part.next()) {
                            seen.incrementAndGet();
                            octets.addAndGet(part.getColumn(1).getText().length());
                        }
                    });
        }).join().getCode());
        say("rows", seen + " " + octets);
        say("drop", retry.supplyStatus(s -> s.executeSchemeQuery("DROP TABLE java_large")).join().getCode());
    }
}

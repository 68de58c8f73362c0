import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLRecoverableException;
import java.sql.SQLTransientException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.function.LongConsumer;

import tech.ydb.jdbc.YdbPreparedStatement;
import tech.ydb.jdbc.exception.YdbStatusable;
import tech.ydb.table.query.Params;

/** The JDBC driver. It repeats nothing by itself, so retries are here. */
public class Jdbc implements Steps.Client {
    interface Work<T> {
        T run(Connection connection) throws SQLException;
    }

    final Properties properties = new Properties();
    final Connection open; // the driver closes its sessions with the last connection

    public Jdbc() throws SQLException {
        properties.setProperty("useStreamResultSets", "true");
        if (!System.getenv("YDB_TOKEN").isEmpty()) {
            properties.setProperty("token", System.getenv("YDB_TOKEN"));
        }
        open = connect();
    }

    Connection connect() throws SQLException {
        return DriverManager.getConnection("jdbc:ydb:" + System.getenv("YDB_URL"), properties);
    }

    <T> T again(boolean transaction, Work<T> work) {
        for (int tries = 1;; tries++) {
            try (Connection connection = connect()) {
                connection.setAutoCommit(!transaction);
                try {
                    T found = work.run(connection);
                    if (transaction) {
                        connection.commit();
                    }
                    return found;
                } catch (SQLException | RuntimeException error) {
                    if (transaction) {
                        connection.rollback();
                    }
                    throw error;
                }
            } catch (SQLException error) {
                if (tries == 50 || !(error instanceof SQLRecoverableException || error instanceof SQLTransientException)) {
                    throw error instanceof YdbStatusable ? new Steps.Failure(((YdbStatusable) error).getStatus()) : new IllegalStateException(error);
                }
            } catch (Steps.Failure failure) { // of a statement of the transaction
                if (tries == 50 || !failure.status.getCode().isRetryable(true)) {
                    throw failure;
                }
            }
            try {
                Thread.sleep(20L * Math.min(tries, 20));
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    static List<List<Long>> execute(Connection connection, String sql, Params params) throws SQLException {
        List<List<Long>> rows = new ArrayList<>();
        if (params.isEmpty()) {
            try (Statement statement = connection.createStatement()) {
                if (statement.execute(sql)) {
                    read(statement.getResultSet(), rows);
                }
            }
            return rows;
        }
        try (YdbPreparedStatement statement = connection.prepareStatement(sql).unwrap(YdbPreparedStatement.class)) {
            read(statement, params, rows);
        }
        return rows;
    }

    static void read(YdbPreparedStatement statement, Params params, List<List<Long>> rows) throws SQLException {
        for (var param : params.values().entrySet()) {
            statement.setObject(param.getKey().substring(1), param.getValue());
        }
        if (statement.execute()) {
            read(statement.getResultSet(), rows);
        }
    }

    static void read(ResultSet set, List<List<Long>> rows) throws SQLException {
        while (set.next()) {
            List<Long> row = new ArrayList<>();
            for (int i = 1; i <= set.getMetaData().getColumnCount(); i++) {
                row.add(set.getLong(i));
            }
            rows.add(row);
        }
    }

    public void scheme(String sql) {
        run(sql, Params.empty());
    }

    public List<List<Long>> run(String sql, Params params) {
        return again(false, connection -> execute(connection, sql, params));
    }

    public void bulk(long from, long to) {
        again(false, connection -> {
            try (PreparedStatement statement = connection.prepareStatement(Steps.named("BULK UPSERT INTO big (id, text) VALUES (?, ?)"))) {
                for (long id = from; id < to; id++) {
                    statement.setLong(1, id);
                    statement.setString(2, Steps.TEXT);
                    statement.addBatch();
                }
                return statement.executeBatch();
            }
        });
    }

    public void stream(Runnable begin, LongConsumer each) {
        again(false, connection -> {
            begin.run();
            try (Statement statement = connection.createStatement(ResultSet.TYPE_FORWARD_ONLY, ResultSet.CONCUR_READ_ONLY);
                    ResultSet set = statement.executeQuery(Steps.BIG)) {
                while (set.next()) {
                    each.accept(set.getLong(1));
                }
            }
            return null;
        });
    }

    public void tx(Steps.Body body) {
        again(true, connection -> {
            body.run((sql, params) -> {
                try {
                    return execute(connection, sql, params);
                } catch (SQLException error) {
                    throw error instanceof YdbStatusable ? new Steps.Failure(((YdbStatusable) error).getStatus()) : new IllegalStateException(error);
                }
            });
            return null;
        });
    }

    public List<Long> prepared(List<Long> ids) {
        return again(false, connection -> {
            List<List<Long>> found = new ArrayList<>();
            try (YdbPreparedStatement statement = connection.prepareStatement(Steps.ONE).unwrap(YdbPreparedStatement.class)) {
                for (long id : ids) {
                    read(statement, Steps.id(id), found);
                }
            }
            return found.stream().map(row -> row.get(0)).toList();
        });
    }

    public long cancel() {
        return again(false, connection -> {
            long seen = 0;
            try (Statement statement = connection.createStatement(ResultSet.TYPE_FORWARD_ONLY, ResultSet.CONCUR_READ_ONLY);
                    ResultSet set = statement.executeQuery(Steps.BIG)) {
                if (set.next()) {
                    seen++;
                }
            }
            return seen;
        });
    }

    public void close() {
        try {
            open.close();
        } catch (SQLException error) {
            throw new IllegalStateException(error);
        }
    }
}

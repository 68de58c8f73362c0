package main

import (
	"context"
	"database/sql"
	"errors"
	"io"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/retry"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/table/result"
	"github.com/ydb-platform/ydb-go-sdk/v3/table/result/indexed"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"
)

// queryClient is the client of the query service.
type queryClient struct{ db *ydbsdk.Driver }

func (c queryClient) close() error { return nil }

func (c queryClient) scheme(ctx context.Context, sql string) error { return c.exec(ctx, sql) }

func (c queryClient) exec(ctx context.Context, sql string, params ...param) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.db.Query().Exec(ctx, sql, queryOptions(params, query.WithIdempotent())...)
}

func queryOptions(params []param, more ...query.ExecuteOption) []query.ExecuteOption {
	if len(params) == 0 {
		return more
	}
	b := ydbsdk.ParamsBuilder()
	for _, p := range params {
		b = b.Param("$" + p.name).Uint64(p.value)
	}
	return append(more, query.WithParameters(b.Build()))
}

func (c queryClient) rows(ctx context.Context, sql string, params ...param) ([][]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return queryRows(ctx, c.db.Query(), sql, queryOptions(params, query.WithIdempotent())...)
}

func queryRows(ctx context.Context, on query.Executor, sql string, options ...query.ExecuteOption) (rows [][]uint64, err error) {
	set, err := on.QueryResultSet(ctx, sql, options...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close(ctx)) }()
	for {
		row, err := set.NextRow(ctx)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		values := make([]uint64, len(set.Columns()))
		into := make([]any, len(values))
		for i := range into {
			into[i] = &values[i]
		}
		if err := row.Scan(into...); err != nil {
			return nil, err
		}
		rows = append(rows, values)
	}
}

func (c queryClient) bulk(ctx context.Context, from, to uint64, text string) error {
	return tableClient(c).bulk(ctx, from, to, text)
}

func (c queryClient) stream(ctx context.Context, sql string, begin func(), each func(uint64) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
		begin()
		r, err := s.Query(ctx, sql)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close(ctx) }()
		for set, err := range r.ResultSets(ctx) {
			if err != nil {
				return err
			}
			for row, err := range set.Rows(ctx) {
				if err != nil {
					return err
				}
				var id uint64
				var text string
				if err := row.Scan(&id, &text); err != nil {
					return err
				}
				if err := each(id); err != nil {
					return err
				}
			}
		}
		return nil
	}, query.WithIdempotent())
}

func (c queryClient) tx(ctx context.Context, body func(context.Context, transaction) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error { return body(ctx, queryTx{tx}) },
		query.WithIdempotent())
}

// prepared: this service has none; a statement with parameters is compiled once by the node.
func (c queryClient) prepared(ctx context.Context, ids []uint64) ([]uint64, error) {
	return oneByOne(ctx, c, ids)
}

func oneByOne(ctx context.Context, on transaction, ids []uint64) (found []uint64, err error) {
	for _, i := range ids {
		rows, err := on.rows(ctx, selectOne, id(i))
		if err != nil {
			return nil, err
		}
		found = append(found, rows[0][0])
	}
	return found, nil
}

type queryTx struct{ query.TxActor }

func (t queryTx) exec(ctx context.Context, sql string, params ...param) error {
	return t.Exec(ctx, sql, queryOptions(params)...)
}

func (t queryTx) rows(ctx context.Context, sql string, params ...param) ([][]uint64, error) {
	return queryRows(ctx, t, sql, queryOptions(params)...)
}

// tableClient is the client of the table service, with scan queries and bulk upsert.
type tableClient struct{ db *ydbsdk.Driver }

func (c tableClient) close() error { return nil }

func (c tableClient) do(ctx context.Context, f func(context.Context, table.Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.db.Table().Do(ctx, f, table.WithIdempotent())
}

func (c tableClient) scheme(ctx context.Context, sql string) error {
	return c.do(ctx, func(ctx context.Context, s table.Session) error { return s.ExecuteSchemeQuery(ctx, sql) })
}

func (c tableClient) exec(ctx context.Context, sql string, params ...param) error {
	_, err := c.rows(ctx, sql, params...)
	return err
}

func tableParams(params []param) *table.QueryParameters {
	var all []table.ParameterOption
	for _, p := range params {
		all = append(all, table.ValueParam("$"+p.name, types.Uint64Value(p.value)))
	}
	return table.NewQueryParameters(all...)
}

func (c tableClient) rows(ctx context.Context, sql string, params ...param) (rows [][]uint64, err error) {
	err = c.do(ctx, func(ctx context.Context, s table.Session) error {
		_, r, err := s.Execute(ctx, table.DefaultTxControl(), sql, tableParams(params))
		if err == nil {
			rows, err = tableRows(ctx, r)
		}
		return err
	})
	return rows, err
}

func tableRows(ctx context.Context, r result.Result) (rows [][]uint64, err error) {
	defer func() { err = errors.Join(err, r.Close()) }()
	for r.NextResultSet(ctx) {
		for r.NextRow() {
			values := make([]uint64, r.CurrentResultSet().ColumnCount())
			into := make([]indexed.Required, len(values))
			for i := range into {
				into[i] = &values[i]
			}
			if err := r.ScanWithDefaults(into...); err != nil {
				return nil, err
			}
			rows = append(rows, values)
		}
	}
	return rows, r.Err()
}

func (c tableClient) bulk(ctx context.Context, from, to uint64, text string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var rows []types.Value
	for id := from; id < to; id++ {
		rows = append(rows,
			types.StructValue(types.StructFieldValue("id", types.Uint64Value(id)), types.StructFieldValue("text", types.TextValue(text))))
	}
	return c.db.Table().BulkUpsert(ctx, c.db.Name()+"/"+tables+"big", table.BulkUpsertDataRows(types.ListValue(rows...)),
		table.WithIdempotent())
}

// stream is a scan query.
func (c tableClient) stream(ctx context.Context, sql string, begin func(), each func(uint64) error) error {
	return c.do(ctx, func(ctx context.Context, s table.Session) error {
		begin()
		r, err := s.StreamExecuteScanQuery(ctx, sql, nil)
		if err != nil {
			return err
		}
		defer r.Close()
		for r.NextResultSet(ctx) {
			for r.NextRow() {
				var id uint64
				var text string
				if err := r.ScanWithDefaults(&id, &text); err != nil {
					return err
				}
				if err := each(id); err != nil {
					return err
				}
			}
		}
		return r.Err()
	})
}

func (c tableClient) tx(ctx context.Context, body func(context.Context, transaction) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.db.Table().DoTx(ctx,
		func(ctx context.Context, tx table.TransactionActor) error { return body(ctx, tableTx{tx}) },
		table.WithIdempotent())
}

func (c tableClient) prepared(ctx context.Context, ids []uint64) (found []uint64, err error) {
	err = c.do(ctx, func(ctx context.Context, s table.Session) error {
		found = nil
		statement, err := s.Prepare(ctx, selectOne)
		if err != nil {
			return err
		}
		for _, i := range ids {
			_, r, err := statement.Execute(ctx, table.DefaultTxControl(), tableParams([]param{id(i)}))
			if err != nil {
				return err
			}
			rows, err := tableRows(ctx, r)
			if err != nil {
				return err
			}
			found = append(found, rows[0][0])
		}
		return nil
	})
	return found, err
}

type tableTx struct{ table.TransactionActor }

func (t tableTx) exec(ctx context.Context, sql string, params ...param) error {
	_, err := t.rows(ctx, sql, params...)
	return err
}

func (t tableTx) rows(ctx context.Context, sql string, params ...param) ([][]uint64, error) {
	r, err := t.Execute(ctx, sql, tableParams(params))
	if err != nil {
		return nil, err
	}
	return tableRows(ctx, r)
}

// sqlClient is database/sql.
type sqlClient struct {
	db   *sql.DB
	conn io.Closer
	bulkUpsert
}

// bulkUpsert is what database/sql has no word for.
type bulkUpsert interface {
	bulk(ctx context.Context, from, to uint64, text string) error
}

func newSQLClient(db *ydbsdk.Driver, queryService bool) (sqlClient, error) {
	connector, err := ydbsdk.Connector(db, ydbsdk.WithQueryService(queryService))
	if err != nil {
		return sqlClient{}, err
	}
	return sqlClient{db: sql.OpenDB(connector), conn: connector, bulkUpsert: tableClient{db}}, nil
}

func (c sqlClient) close() error { return errors.Join(c.db.Close(), c.conn.Close()) }

func (c sqlClient) do(ctx context.Context, f func(context.Context, *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return retry.Do(ctx, c.db, f, retry.WithIdempotent(true))
}

func (c sqlClient) scheme(ctx context.Context, sql string) error {
	return c.exec(ydbsdk.WithQueryMode(ctx, ydbsdk.SchemeQueryMode), sql)
}

// sqlRunner is a *sql.Conn or a *sql.Tx.
type sqlRunner interface {
	ExecContext(ctx context.Context, sql string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, sql string, args ...any) (*sql.Rows, error)
}

func sqlArgs(params []param) (args []any) {
	for _, p := range params {
		args = append(args, sql.Named(p.name, p.value))
	}
	return args
}

func (c sqlClient) exec(ctx context.Context, text string, params ...param) error {
	return c.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, text, sqlArgs(params)...)
		return err
	})
}

func (c sqlClient) rows(ctx context.Context, text string, params ...param) (rows [][]uint64, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		rows, err = sqlRows(ctx, conn, text, params)
		return err
	})
	return rows, err
}

func sqlRows(ctx context.Context, on sqlRunner, text string, params []param) (rows [][]uint64, err error) {
	r, err := on.QueryContext(ctx, text, sqlArgs(params)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	columns, err := r.Columns()
	if err != nil {
		return nil, err
	}
	for r.Next() {
		values := make([]uint64, len(columns))
		into := make([]any, len(values))
		for i := range into {
			into[i] = &values[i]
		}
		if err := r.Scan(into...); err != nil {
			return nil, err
		}
		rows = append(rows, values)
	}
	return rows, r.Err()
}

func (c sqlClient) stream(ctx context.Context, text string, begin func(), each func(uint64) error) error {
	return c.do(ydbsdk.WithQueryMode(ctx, ydbsdk.ScanQueryMode), func(ctx context.Context, conn *sql.Conn) error {
		begin()
		r, err := conn.QueryContext(ctx, text)
		if err != nil {
			return err
		}
		defer r.Close()
		for more := true; more; more = r.NextResultSet() { // over the table service each part is a result set
			for r.Next() {
				var id uint64
				var text string
				if err := r.Scan(&id, &text); err != nil {
					return err
				}
				if err := each(id); err != nil {
					return err
				}
			}
		}
		return r.Err()
	})
}

func (c sqlClient) tx(ctx context.Context, body func(context.Context, transaction) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return retry.DoTx(ctx, c.db, func(ctx context.Context, tx *sql.Tx) error { return body(ctx, sqlTx{tx}) }, retry.WithIdempotent(true))
}

func (c sqlClient) prepared(ctx context.Context, ids []uint64) (found []uint64, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		found = nil
		statement, err := conn.PrepareContext(ctx, selectOne)
		if err != nil {
			return err
		}
		defer statement.Close()
		for _, i := range ids {
			var n uint64
			if err := statement.QueryRowContext(ctx, sqlArgs([]param{id(i)})...).Scan(&n); err != nil {
				return err
			}
			found = append(found, n)
		}
		return nil
	})
	return found, err
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) exec(ctx context.Context, text string, params ...param) error {
	_, err := t.tx.ExecContext(ctx, text, sqlArgs(params)...)
	return err
}

func (t sqlTx) rows(ctx context.Context, text string, params ...param) ([][]uint64, error) {
	return sqlRows(ctx, t.tx, text, params)
}

package contract

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
)

// AppLimits is what apps.limits has to be for the cases of apps, with tables in a directory of the database; "": in its root.
func AppLimits(directory string) string {
	if directory != "" {
		directory += "/"
	}
	return strings.Join([]string{
		"contract_keys calls=kv", "contract_statements calls=statements", "contract_reader read_only=yes",
		"contract_here tables=" + directory + "contract_*", "contract_there tables=" + directory + "nowhere/*",
		"contract_few rows=2", "contract_hasty timeout=1ms", "contract_seldom calls_per_second=1 calls_burst=1",
	}, ",")
}

// appCases is what apps may and may not do; they need AppLimits.
var appCases = []contractCase{
	{"grants", grants},
	{"rows_of_a_grant", grantedRows},
	{"time_of_a_grant", grantedTime},
	{"a_quota", quota},
}

// headerApp names the app that calls.
const headerApp = "X-Sidecar-App"

type appKey struct{}

// As returns a context whose calls name an app.
func As(ctx context.Context, app string) context.Context {
	return context.WithValue(metadata.AppendToOutgoingContext(ctx, strings.ToLower(headerApp), app), appKey{}, app)
}

// appOf is the app that calls of a context name; "": none.
func appOf(ctx context.Context) string {
	app, _ := ctx.Value(appKey{}).(string)
	return app
}

// grants: each kind of call, by apps that may make it and by apps that may not. A denial names the app, and nothing was sent.
func grants(t *test) {
	table := t.table()
	calls := t.grantCalls(table)
	for app, denied := range map[string]string{
		"contract_free": "", "contract_here": "", "contract_keys": "read write stream list bulk describe ingest",
		"contract_statements": "bulk describe ingest", "contract_reader": "write list bulk ingest",
		"contract_there": "read write stream list bulk describe ingest",
	} {
		for name, call := range calls {
			err := call(As(t.ctx, app))
			if !strings.Contains(" "+denied+" ", " "+name+" ") {
				if err != nil {
					t.Errorf("%s, %s: %v; want that it may", app, name, err)
				}
				continue
			}
			if e := t.refused(err, "APP_DENIED", false, false); e.Status != 403 || !strings.Contains(e.Message, app) || e.Operator == "" {
				t.Errorf("%s, %s: status %d, %q, operator %q; want 403 with the app and a hint for the operator", app, name, e.Status,
					e.Message, e.Operator)
			}
		}
	}
	_, err := t.Get(As(t.ctx, "contract_statements"), KV{Table: kvPlain, ID: []any{"1"}})
	t.refused(err, "APP_DENIED", false, false)
}

// grantCalls is one call of each kind, about a table.
func (t *test) grantCalls(table string) map[string]func(context.Context) error {
	read, write := "SELECT id FROM "+table, "UPSERT INTO "+table+" (id, n) VALUES (1ul, 1)"
	return map[string]func(context.Context) error{
		"read": func(ctx context.Context) error {
			_, err := t.Execute(ctx, Statement{SQL: read})
			return err
		},
		"write": func(ctx context.Context) error {
			_, err := t.Execute(ctx, Statement{SQL: write, Idempotent: true})
			return err
		},
		"stream": func(ctx context.Context) error {
			_, err := t.Stream(ctx, Statement{SQL: read})
			return err
		},
		"list": func(ctx context.Context) error {
			_, err := t.Transact(ctx, Transaction{Statements: []Statement{{SQL: "SELECT 1"}, {SQL: write}}, Idempotent: true})
			return err
		},
		"bulk": func(ctx context.Context) error {
			_, err := t.BulkUpsert(ctx, Bulk{Table: pathOf(table), Rows: []map[string]any{{"id": 1, "n": 1}}})
			return err
		},
		"describe": func(ctx context.Context) error {
			_, err := t.Describe(ctx, pathOf(table))
			return err
		},
		"ingest": func(ctx context.Context) error {
			s, err := t.Ingest(ctx, IngestOpen{Table: pathOf(table)})
			if err == nil {
				defer s.Close()
				if err = s.CloseSend(); err == nil {
					_, err = s.Next()
				}
			}
			return err
		},
		"version": func(ctx context.Context) error {
			_, _, err := t.Version(ctx)
			return err
		},
	}
}

func grantedRows(t *test) {
	table := t.table()
	t.fill(table, 5)
	for app, want := range map[string]int{"contract_few": 2, "contract_free": 5} {
		for _, run := range []func(context.Context, Statement) (*Reply, error){t.Execute, t.Stream} {
			r, err := run(As(t.ctx, app), Statement{SQL: "SELECT id FROM " + table, Mode: "snapshot_ro"})
			if err != nil || len(r.Rows) != want || r.Truncated != (want < 5) {
				t.Errorf("%s: %+v, %v; want %d rows", app, r, err, want)
			}
		}
	}
}

// grantedTime: a call lasts no longer than its app may, whatever it asks for.
func grantedTime(t *test) {
	table := t.table()
	rows := t.of(3000, 1000)
	t.fill(table, rows)
	for range 50 { // a fast machine may answer in time now and then
		_, err := t.Execute(As(t.ctx, "contract_hasty"), Statement{
			SQL: "SELECT id, name FROM " + table + " ORDER BY name, id", Timeout: "1m", Mode: "snapshot_ro",
		})
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != "DEADLINE_EXCEEDED" || !strings.Contains(e.Message, "timeout=1ms") {
			t.Errorf("got %v; want the end of its time, by the grant", err)
		}
		return
	}
	t.Errorf("%d rows came in a millisecond, 50 times", rows)
}

// quota: what exceeds it is refused before anything is sent, with the time after which it may come again.
func quota(t *test) {
	began := time.Now()
	for range 50 { // a slow machine may let more than one pass
		_, err := t.Execute(As(t.ctx, "contract_seldom"), Statement{SQL: "SELECT 1"})
		if err == nil {
			continue
		}
		if e := t.refused(err, "QUOTA_EXCEEDED", true, false); e.Status != 429 || e.RetryAfter <= 0 || e.RetryAfter > time.Second {
			t.Errorf("status %d, again after %v; want 429 and at most a second", e.Status, e.RetryAfter)
		}
		return
	}
	t.Errorf("none of 50 calls in %v was refused; the quota is one a second", time.Since(began))
}

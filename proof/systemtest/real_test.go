package systemtest

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// endpoint is what the TestReal tests run against: the endpoint named by
// SIDECAR_TEST_YDB (`make test-real YDB=...`), or a development cluster.
func endpoint(t *testing.T) string {
	t.Helper()
	if url := os.Getenv("SIDECAR_TEST_YDB"); url != "" {
		return url
	}
	return startCluster(t, nil).Endpoint()
}

// directory is where the TestReal tests make their tables, as a path in the database: that named
// by SIDECAR_TEST_DIRECTORY, or one of a development cluster.
func directory() string { return cmp.Or(os.Getenv("SIDECAR_TEST_DIRECTORY"), "real/tables") }

// access are the settings by which a sidecar gets into the endpoint: the variables SIDECAR_YDB_...
// of the user who runs the tests, which programs started here do not get otherwise.
func access() (env []string) {
	if os.Getenv("SIDECAR_TEST_YDB") == "" {
		return nil
	}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "SIDECAR_YDB_") {
			env = append(env, v)
		}
	}
	return env
}

// database is the path of the database in the connection string.
func database(t *testing.T, connection string) string {
	t.Helper()
	u, err := url.Parse(connection)
	if err != nil {
		t.Fatal(err)
	}
	return cmp.Or(u.Query().Get("database"), u.Path)
}

// sdkAccess is access for the official Go SDK.
func sdkAccess() (options []ydbsdk.Option, err error) {
	of := map[string]string{}
	for _, v := range access() {
		name, value, _ := strings.Cut(v, "=")
		of[strings.TrimPrefix(name, "SIDECAR_YDB_")] = value
	}
	if file := of["AUTH_TOKEN_FILE"]; file != "" {
		token, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		of["AUTH_TOKEN"] = strings.TrimSpace(string(token))
	}
	switch of["AUTH_KIND"] {
	case "token", "token_file":
		options = append(options, ydbsdk.WithAccessTokenCredentials(of["AUTH_TOKEN"]))
	case "static":
		options = append(options, ydbsdk.WithStaticCredentials(of["AUTH_USER"], of["AUTH_PASSWORD"]))
	}
	if file := of["CA_FILE"]; file != "" {
		options = append(options, ydbsdk.WithCertificatesFromFile(file))
	}
	return options, nil
}

// The apps beside each other on one set of tables, with nothing going wrong.
func TestRealApps(t *testing.T) {
	ydb := endpoint(t)
	s := startSidecarAt(t, ydb, access(), "kv.tables=drafts="+path.Join(directory(), "drafts")+" key=id:Uint64 value=lines:Json")
	all := apps(t, s)
	for i := range all {
		all[i].spec.Env = append(all[i].spec.Env, "SHOP_DIRECTORY="+path.Join(database(t, ydb), directory()))
	}
	all[0].run(t, "init")
	var args []string
	processes := make([]*stand.Process, len(all))
	for i, a := range all {
		ledger := filepath.Join(t.TempDir(), "ledger")
		args = append(args, "--ledger", ledger)
		processes[i] = a.start(t, nil, "run", "--seconds", "3", "--ledger", ledger)
	}
	for i, a := range all {
		if said := a.finish(t, processes[i]); said["placed"] == nil || said["gave up"] != nil {
			t.Errorf("%s placed %v orders and gave up on %v; want some and none", a.name, said["placed"], said["gave up"])
		} else if said["drafts"] == nil || said["drafts unread"] != nil || said["draft differs"] != nil {
			t.Errorf("%s kept and read %v drafts, %v not, %v other ones; want some, and none", a.name, said["drafts"],
				said["drafts unread"], said["draft differs"])
		}
	}
	for _, a := range all {
		if said := a.run(t, append([]string{"check"}, args...)...); said["ok"] != true {
			t.Errorf("%s says of the books: %v", a.name, said["wrong"])
		}
	}
}

// The official Go SDK, directly against the endpoint: what the sidecar relies
// on is there.
func TestRealSDK(t *testing.T) {
	options, err := sdkAccess()
	if err != nil {
		t.Fatal(err)
	}
	at := endpoint(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	db, err := ydbsdk.Open(ctx, at, options...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()

	var viaQuery, viaTable int32
	row, err := db.Query().QueryRow(ctx, "SELECT 41 + 1 AS n", query.WithIdempotent())
	if err == nil {
		err = row.ScanNamed(query.Named("n", &viaQuery))
	}
	if err != nil || viaQuery != 42 {
		t.Errorf("the query client: %d, %v; want 42", viaQuery, err)
	}
	err = db.Table().Do(ctx, func(ctx context.Context, session table.Session) error {
		_, found, err := session.Execute(ctx, table.DefaultTxControl(), "DECLARE $n AS Int32; SELECT $n + 1 AS n",
			table.NewQueryParameters(table.ValueParam("$n", types.Int32Value(41))))
		if err != nil {
			return err
		}
		defer found.Close()
		if err := found.NextResultSetErr(ctx); err != nil || !found.NextRow() {
			return err
		}
		return found.ScanWithDefaults(&viaTable)
	}, table.WithIdempotent())
	if err != nil || viaTable != 42 {
		t.Errorf("the table client: %d, %v; want 42", viaTable, err)
	}
}

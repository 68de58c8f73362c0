package facade

import (
	"os"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// The statements of docs/reference/not-here.md run as they stand, and do what the page says.
func TestWhatTheAPIDoesNotHave(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/not-here.md")
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{"key": "Utf8", "id": "Uint64", "after": "Uint64", "from": "Utf8", "to": "Utf8"}
	values := map[string]any{"key": "order-77", "id": 7, "after": 0, "from": "order-", "to": "order."}
	client := newWorld(t, Default(), nil).faces(t)[1]
	run := func(sql string) (*contract.Reply, error) {
		s := contract.Statement{SQL: sql, Params: map[string]any{}, Types: map[string]string{}}
		if strings.HasPrefix(sql, "SELECT") {
			s.Mode = "snapshot_ro"
		}
		for name := range types {
			if strings.Contains(sql, "$"+name) {
				s.Params[name], s.Types[name] = values[name], types[name]
			}
		}
		return client.Execute(t.Context(), s)
	}
	rows := map[string]int{ // of the statements that return some
		"SELECT id, name FROM accounts WHERE id > $after ORDER BY id LIMIT 2;":              2,
		"SELECT key FROM requests WHERE key >= $from AND key < $to ORDER BY key LIMIT 100;": 1,
	}
	found, fenced := 0, false
	for line := range strings.Lines(string(page)) {
		sql := strings.TrimRight(line, "\n")
		if strings.HasPrefix(sql, "```") {
			fenced = sql == "```sql"
			continue
		}
		if !fenced {
			continue
		}
		found++
		r, err := run(sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if len(r.Rows) != rows[sql] {
			t.Errorf("%s: rows %v; want %d", sql, r.Rows, rows[sql])
		}
		switch {
		case strings.HasPrefix(sql, "CREATE TABLE accounts"):
			if _, err := run("UPSERT INTO accounts (id, balance) VALUES (1, 0), (7, 100), (9, 0)"); err != nil {
				t.Fatal(err)
			}
		case strings.HasPrefix(sql, "INSERT"):
			_, err := run(sql) // a second row with this key changes nothing
			refused(t, err, "YDB_PRECONDITION_FAILED", false, false)
		}
	}
	if want := 7; found != want {
		t.Errorf("%d statements on the page; want %d", found, want)
	}
	r, err := run("SELECT balance FROM accounts WHERE id = $id")
	if err != nil || len(r.Rows) != 1 || r.Rows[0][0] != "97" { // 100 - 5, and twice 1 more
		t.Errorf("%v, %v; want a balance of 97", r, err)
	}
}

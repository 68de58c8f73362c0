package systemtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The check that the other tests rely on must itself find every kind of fault.
func TestTheBooksShowEveryFault(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil)
	both := []app{python(t, "http://"+s.HTTP), node(t, "grpc://"+s.GRPC)}
	both[0].run(t, "init")
	checkBooks(t, s, 1000, nil)

	for _, sql := range []string{
		"UPSERT INTO stock (product, quantity) VALUES ('p000001'u, -1)",
		"UPSERT INTO orders (id, customer, processed) VALUES (2ul, 'x'u, Datetime('2026-01-01T00:00:00Z'))",
		"UPSERT INTO orderLines (id_order, product, quantity) VALUES (2ul, 'p000002'u, 5)",
		"UPSERT INTO orders (id, customer) VALUES (3ul, 'x'u)",
		"UPSERT INTO orderLines (id_order, product, quantity) VALUES (4ul, 'p000003'u, 1)",
	} {
		if _, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql}); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	ledger := filepath.Join(t.TempDir(), "ledger")
	said := func(order, state, lines string) string {
		return fmt.Sprintf(`{"order":%q,"state":%q,"customer":"x","lines":{%s}}`+"\n", order, state, lines)
	}
	if err := os.WriteFile(ledger, []byte(
		said("1", "placed", `"p000001":1`)+said("2", "refused", `"p000002":6`)+said("5", "processed", "")+
			`{"order":"6","state":"pla`), 0o600); err != nil { // the last line is cut off, as by a kill
		t.Fatal(err)
	}
	for _, a := range both {
		wrong := a.faults(t, "check", "--complete", "--ledger", ledger)
		for _, want := range []string{
			"p000001: -1 left", "p000001: stock says 1001 sold, processed orders say 0",
			"p000002: stock says 0 sold, processed orders say 5",
			"order 3 has no lines", "lines of order 4 without it",
			"order 1 was acknowledged and is lost", "order 2 was refused, nothing kept, and is there",
			"order 2:", "order 5 was reported processed and is not", "order 3 is in no ledger",
		} {
			if !strings.Contains(wrong, want) {
				t.Errorf("%s does not say %q:\n%s", a.name, want, wrong)
			}
		}
	}
}

// faults runs a check that must fail, and returns what it found, a line each.
func (a app) faults(t *testing.T, args ...string) string {
	t.Helper()
	p := a.start(t, nil, args...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if code != 1 {
		t.Errorf("%s: exit code %d; want 1\n%s%s", a.name, code, p.Stdout(), p.Log())
	}
	return strings.ReplaceAll(p.Stdout(), `", "`, "\n")
}

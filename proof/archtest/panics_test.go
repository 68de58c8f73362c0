package archtest

import (
	"fmt"
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// unguarded are the goroutines that may run without a call of package panics, by the function that starts them, and why.
var unguarded = map[string]string{
	"cmd/sidecar.interruptible":          "a command that an operator waits for ends with its panic; it only waits for a signal",
	"cmd/sidecar.serve":                  "it only waits for signals and calls contexts' ends",
	"internal/admin.Run":                 "the clock of package awake calls nobody",
	"internal/app.addTo":                 "it has a server of gRPC stop",
	"internal/facade/core.HandOver":      "it ends a context",
	"internal/h2/client.Flush":           "what it calls is a turn of a shard, which catches panics",
	"internal/h2/client.New":             "a shard works in turns, which catch panics",
	"internal/h2/client.newCall":         "what it hands over runs in a turn, which catches panics",
	"internal/h2/driver.Run":             "the clock of package awake calls nobody",
	"internal/h2/driver.Together":        "jobs run in turns, which catch panics",
	"internal/h2/driver.SetReadDeadline": "it wakes those who read",
	"internal/h2/driver.roomLater":       "what it calls is a turn of a shard, which catches panics",
	"internal/h2/driver.newPoller":       "what is read goes to turns, which catch panics, as does what opens TLS; the rest copies bytes",
	"internal/h2/unary.do":               "Call.call catches the panics of a method",
	"internal/ingest.Open":               "it waits for the stream before and takes this one out of a table",
	"internal/ingest.run":                "it waits for batches and takes the stream out of a table",
	"internal/restart.accept":            "it closes a socket",
	"internal/telemetry.Write":           "it writes the log, in which a panic would be told",
	"internal/wire.GracefulStop":         "a shard works in turns, which catch panics",
	"internal/wire.reroute":              "it puts mail into a shard's list",
}

// TestGoroutinesCatchPanics fails on a goroutine of the product that calls nothing of package panics,
// those of time.AfterFunc and context.AfterFunc among them: one panic in it ends the process with the
// sessions and transactions of every app. The call is in its function, or in one of the same package
// that this calls. The function is the literal, or the one that the literal consists of or that go
// names.
func TestGoroutinesCatchPanics(t *testing.T) {
	used := map[string]bool{}
	for _, p := range list(t, "./...") {
		from, ok := unit(p.ImportPath)
		if !ok || tiers[from] > productTop || from == "internal/panics" || strings.HasSuffix(p.ImportPath, "test") {
			continue
		}
		for place, where := range bareGoroutines(t, p) {
			if used[place] = true; unguarded[place] == "" {
				t.Errorf("%s: the goroutine that %s starts calls nothing of package panics", where, place)
			}
		}
	}
	for place := range unguarded {
		if !used[place] {
			t.Errorf("%s starts no goroutine that is excused", place)
		}
	}
}

// bareGoroutines returns the functions of a package that start goroutines without a call of package panics, and where.
func bareGoroutines(t *testing.T, p listed) map[string]string {
	t.Helper()
	bodies := bodiesByName{functions: map[string][]ast.Node{}, methods: map[string][]ast.Node{}}
	var all []*ast.FuncDecl
	for _, name := range p.GoFiles {
		s, err := readSource(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				all = append(all, f)
				bodies.add(f)
			}
		}
	}
	bare := map[string]string{}
	for _, d := range all {
		ast.Inspect(d.Body, func(n ast.Node) bool {
			if started := bodies.started(n); started != nil && !bodies.guarded(bodies.of(started), true) {
				bare[strings.TrimPrefix(p.ImportPath, module)+"."+d.Name.Name] = fmt.Sprint(files.Position(n.Pos()))
			}
			return true
		})
	}
	return bare
}

// bodiesByName are the bodies of the functions of a package. Methods of all types that have one name are together.
type bodiesByName struct {
	functions, methods map[string][]ast.Node
}

func (b *bodiesByName) add(f *ast.FuncDecl) {
	to := b.functions
	if f.Recv != nil {
		to = b.methods
	}
	to[f.Name.Name] = append(to[f.Name.Name], f.Body)
}

// of returns the bodies that an expression may name.
func (b *bodiesByName) of(f ast.Expr) []ast.Node {
	switch f := f.(type) {
	case *ast.FuncLit:
		if len(f.Body.List) == 1 {
			if one, ok := f.Body.List[0].(*ast.ExprStmt); ok {
				if call, ok := one.X.(*ast.CallExpr); ok {
					if s, ok := call.Fun.(*ast.SelectorExpr); ok && b.methods[s.Sel.Name] != nil {
						return b.methods[s.Sel.Name]
					}
				}
			}
		}
		return []ast.Node{f.Body}
	case *ast.Ident:
		return b.functions[f.Name]
	case *ast.SelectorExpr:
		return b.methods[f.Sel.Name]
	}
	return nil
}

// guarded reports whether all of these bodies call package panics; if deep, what they call may do so.
func (b *bodiesByName) guarded(all []ast.Node, deep bool) bool {
	for _, body := range all {
		found := false
		ast.Inspect(body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				x, named := n.X.(*ast.Ident)
				found = found || named && x.Name == "panics"
			case *ast.CallExpr:
				found = found || deep && b.guarded(b.of(n.Fun), false)
			}
			return !found
		})
		if !found {
			return false
		}
	}
	return len(all) > 0
}

// started returns what a node of the syntax starts as a goroutine; nil if nothing.
func (b *bodiesByName) started(n ast.Node) (started ast.Expr) {
	switch n := n.(type) {
	case *ast.GoStmt:
		started = n.Call.Fun
	case *ast.CallExpr:
		// Go of a WaitGroup, or of an errgroup.
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" && len(n.Args) == 1 {
			if x, named := s.X.(*ast.Ident); !named || x.Name != "panics" {
				started = n.Args[0]
			}
		}
		// A timer's, or a context's.
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "AfterFunc" && len(n.Args) == 2 && len(b.of(n.Args[1])) > 0 {
			started = n.Args[1]
		}
	}
	return started
}

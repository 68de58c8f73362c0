package archtest

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// bubbles are the packages whose tests have helpers that wait, all of which run in
// bubbles of testing/synctest only.
var bubbles = []string{
	"internal/history",
	"internal/ingest",
	"internal/lease",
	"internal/memguard",
	"internal/pessimize",
	"internal/pool",
	"internal/virtual",
}

// real are the other functions of tests that wait, and why.
var real = map[string]string{
	"cmd/sidecar.TestSecondSignalEndsAtOnce":                         "nothing says when the first signal was taken",
	"internal/app.TestCancelledCallsKeepTheirSessions":               "callers give up after a while, which is the fault",
	"internal/app.TestNodesThatAreReplacedDepart":                    "what it hands over runs in a bubble",
	"internal/app.TestNodesThatVanishForOneAnswerLoseNothing":        "what it hands over runs in a bubble",
	"internal/app.TestRequestsInAllForms":                            "the parts of a request come apart",
	"internal/app.slowConn.Read":                                     "the reader is slow, which is the fault",
	"internal/app.newSlow":                                           "answers come late, which is the fault",
	"internal/discovery.regions.dial":                                "it runs in bubbles only",
	"internal/facade.TestAStreamThatMovesLasts":                      "the pace at which parts come is what is tested",
	"internal/facade/httpapi.silent.Read":                            "nothing comes until the end, which is the fault",
	"internal/facade/core.slowRows.Read":                             "rows take their time, which is the fault",
	"internal/facade.stuck":                                          "no event says that nothing moves any more",
	"internal/facade/httpapi.trickle.Read":                           "bytes come one by one, which is the fault",
	"internal/h2/client.TestASlowReaderHoldsBackItsOwnStream":        "no event says that a server waits for its reader",
	"internal/h2/client.TestCallsGoWhereThereIsRoom":                 "connections are made late, which is the fault",
	"internal/h2/client.TestCancelledBetweenTwoAttempts":             "the caller leaves in the pause between two attempts",
	"internal/h2/client.TestNoConnection":                            "the node comes back after a while",
	"internal/h2/client.TestStreamsGoOnWhileMemoryIsShort":           "the reader is slow, which is the fault",
	"internal/h2/client.TestTheCallersEndReachesTheNode":             "the caller leaves while its call is at the node",
	"internal/h2/driver.newFew":                                      "it runs in bubbles only",
	"internal/h2/unary.largeAnswers":                                 "no event says that calls wait for a lock",
	"internal/listen.TestHeadersAreBounded":                          "the parts of headers come apart",
	"internal/upstream.TestARequestParksAsDoWaits":                   "what it hands over runs in a bubble",
	"internal/upstream.TestATicketThatComesMeanwhileIsSeen":          "no event says that a call waits for a lock",
	"internal/upstream.cancelled":                                    "the caller leaves while its call is at the node",
	"internal/upstream.dialCase.dial":                                "it runs in bubbles only",
	"internal/upstream.openAtTheLimit":                               "it runs in bubbles only",
	"internal/upstream.probesOfADeadNode":                            "it runs in bubbles only",
	"internal/wire.TestADrainWaitsForCallsServedHere":                "a stop that is wrong gets a chance to end",
	"internal/wire.TestStop":                                         "a stop that is wrong gets a chance to end",
	"internal/wire.TestStopKeepsSessions":                            "a stop that is wrong gets a chance to end",
	"internal/wire.house.holds":                                      "a request trickles in, which is the fault",
	"loadtest/shares.modelPool.serve":                                "it runs in bubbles only",
	"loadtest/shares.station.call":                                   "it runs in bubbles only",
	"loadtest/lab.TestAttackCountsFromTheInstantARequestWasDue":      "the server takes its time, which is measured",
	"loadtest/lab.demo":                                              "it is the work that is measured",
	"proof/datapathtest.slowness":                                    "it measures how late timers are",
	"proof/datapathtest.startLoad":                                   "the pace of a load",
	"proof/devcluster/officialtest.TestIdleTableSessions":            "what it hands over runs in a bubble",
	"proof/devcluster/officialtest.TestRule01KeepalivePings":         "what it hands over runs in a bubble",
	"proof/devcluster/officialtest.TestRule19TicketsExpire":          "what it hands over runs in a bubble",
	"proof/sdktest.ydb.watch":                                        "the pace at which nodes are asked",
	"proof/systemtest.TestIngestKeepsItsWordWhileEverythingIsKilled": "what a killed sidecar has sent may be under way for that time",
	"proof/systemtest.ydb.watchSessions":                             "the pace at which nodes are asked",
	"proof/systemtest.TestOutOfDescriptors":                          "no event says that a connection could not be accepted",
	"proof/systemtest.TestOverloadWastesNothing":                     "callers that are shed pause as the answer says",
	"proof/systemtest.TestStopDespitePeersThatStall":                 "no event says that all buffers on the way are full",
	"proof/systemtest.TestStoppedTimeIsNoHang":                       "the process is stopped for that time, which is the fault",
	"proof/systemtest.faultWorld.load":                               "the pace of a load",
	"proof/systemtest.floodWith":                                     "no event says that what comes ahead of the readers has come",
	"proof/systemtest.ingestWriter.once":                             "the pace of a load",
	"proof/systemtest.ingestWriter.write":                            "the pace of a load",
	"proof/systemtest.takeoverLoad.start":                            "the pace of a load",
	"proof/systemtest.sidecar.calls":                                 "the pace of a load",
	"proof/systemtest.startDirect":                                   "the pace of a load",
	"proof/systemtest.startPageLoad":                                 "the pace of a load",
	"proof/systemtest.watchStalls":                                   "the pace at which the process is asked",
	"proof/systemtest.writeRows":                                     "callers that fail pause before they come again",
}

// waits are the functions of package time that wait, or have others do it.
var waits = []string{"Sleep", "After", "NewTicker", "Tick", "AfterFunc"}

// leastLimit is how long a test may wait for a result before it fails: what is
// longer costs a test that passes nothing, and is reached by no slow machine.
const leastLimit = 10 * time.Second

// TestSleeps fails on a test that waits in real time without a reason. A test waits
// for an event, for a condition (proof/await) or in a bubble of testing/synctest.
func TestSleeps(t *testing.T) {
	used := map[string]bool{}
	for _, p := range list(t, "./...") {
		unit := strings.TrimPrefix(p.ImportPath, module)
		names, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var tests []source
		for _, name := range names {
			s, err := readSource(name)
			if err != nil {
				t.Fatal(err)
			}
			tests = append(tests, s)
		}
		found := sleeps(tests)
		for _, function := range slices.Sorted(maps.Keys(found)) {
			key := unit + "." + function
			if slices.Contains(bubbles, unit) {
				key = unit
			}
			if used[key] = true; key != unit && real[key] == "" {
				t.Errorf("%s: %s waits in real time", found[function], key)
			}
		}
	}
	for _, key := range slices.Concat(bubbles, slices.Collect(maps.Keys(real))) {
		if !used[key] {
			t.Errorf("%s is excused and does not wait", key)
		}
	}
}

// sleeps returns the functions of the files of a package that wait outside of a
// bubble, and where. A function that makes a bubble is taken to wait in it.
func sleeps(tests []source) map[string]string {
	numbers := map[string]ast.Expr{}
	var all []*ast.FuncDecl
	for _, s := range tests {
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				all = append(all, d)
			case *ast.GenDecl:
				constants(d, numbers)
			}
		}
	}
	found := map[string]string{}
	for _, f := range all {
		if calls(f, "synctest", "Test") {
			continue
		}
		for _, n := range waitsOf(f, numbers) {
			found[functionName(f)] = fmt.Sprint(files.Position(n.Pos()))
		}
	}
	return found
}

// waitsOf returns where a function waits. A call of After or AfterFunc that ends a
// wait, or fails the test, after leastLimit or more is none, unless it is all
// that a statement waits for.
func waitsOf(f *ast.FuncDecl, numbers map[string]ast.Expr) (found []ast.Node) {
	cases, limits := map[ast.Stmt]bool{}, map[ast.Node]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			constants(n, numbers)
		case *ast.CommClause:
			cases[n.Comm] = true
		case *ast.ExprStmt:
			if from, ok := n.X.(*ast.UnaryExpr); ok && !cases[n] {
				limits[from.X] = false
			}
		case *ast.CallExpr:
			if _, alone := limits[n]; !alone && len(n.Args) > 0 {
				limits[n.Fun] = duration(n.Args[0], numbers) >= leastLimit
			}
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if !ok || of.Name != "time" || !slices.Contains(waits, n.Sel.Name) {
				break
			}
			if !limits[n] || !strings.HasPrefix(n.Sel.Name, "After") {
				found = append(found, n)
			}
		}
		return true
	})
	return found
}

// constants adds the constants of a declaration that have one value each.
func constants(d *ast.GenDecl, numbers map[string]ast.Expr) {
	for _, s := range d.Specs {
		if s, ok := s.(*ast.ValueSpec); ok && d.Tok == token.CONST && len(s.Names) == len(s.Values) {
			for i, name := range s.Names {
				numbers[name.Name] = s.Values[i]
			}
		}
	}
}

// duration returns the value of an expression of constants of package time, numbers
// and named constants; 0 if it has anything else in it.
func duration(e ast.Expr, numbers map[string]ast.Expr) time.Duration {
	units := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
	switch e := e.(type) {
	case *ast.BasicLit:
		n, _ := constant.Int64Val(constant.ToInt(constant.MakeFromLiteral(e.Value, e.Kind, 0)))
		return time.Duration(n)
	case *ast.SelectorExpr:
		if of, ok := e.X.(*ast.Ident); ok && of.Name == "time" {
			return units[e.Sel.Name]
		}
	case *ast.Ident:
		if value := numbers[e.Name]; value != nil {
			return duration(value, numbers)
		}
	case *ast.BinaryExpr:
		if e.Op == token.MUL {
			return duration(e.X, numbers) * duration(e.Y, numbers)
		}
	}
	return 0
}

// functionName is the name of a function, and before it the type of a method.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	return fmt.Sprint(of) + "." + f.Name.Name
}

// calls reports whether a function names one of a package.
func calls(f *ast.FuncDecl, pkg, name string) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == name {
			of, ok := s.X.(*ast.Ident)
			found = found || ok && of.Name == pkg
		}
		return !found
	})
	return found
}

func TestSleepsAreFound(t *testing.T) {
	const text = `package p

const long = 10 * time.Second

func sleeps() { time.Sleep(1) }
func (*world[T]) ticks() { go func() { _ = time.NewTicker(long) }() }
func alone() { <-time.After(long) }
func short() { select { case <-time.After(9 * time.Second): case <-x: } }
func shortLater() { end := time.After(time.Second); <-end }
func bounded() { const limit = time.Minute; select { case <-time.After(limit): case <-x: } }
func boundedLater() { end := time.After(2 * long); <-end; time.AfterFunc(time.Hour, f) }
func bubble() { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }
func quick() { x.Sleep(1); time.Now() }
`
	s, err := parse("p_test.go", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	found := sleeps([]source{s})
	want := []string{"alone", "short", "shortLater", "sleeps", "world.ticks"}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("found %q; want %q", got, want)
	}
}

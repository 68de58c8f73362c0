package hostile

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/soak"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The bounds of the hostile hour.
const (
	hostileLimit = "256MiB"    // GOMEMLIMIT of the sidecar
	hostilePeak  = 300 << 20   // bytes that it may have resident at any time
	hostileLeft  = 20e6        // bytes of anonymous memory that it may keep of an attack
	hostileBack  = time.Minute // after so long
	hostileShare = 0.5         // of a core, that an attacker may use
	hostileRate  = 100         // honest calls a second
	hostileFloor = 10 * time.Millisecond
	hostileTimes = 3 // of what honest calls take beside a loop; or hostileFloor, if that is more
	hostileStop  = 40 * time.Second
	hostileBurns = 7 // attacks after which the loop is measured again
	hostileAgain = 2 // times that an attack is measured again whose p99 is above the bound
)

// The figures of an attack.
const (
	hostilePeakOf = "peak-rss-B"
	hostileLeftOf = "left-B"
)

// Experiment attacks a sidecar beside a steady honest load.
func Experiment() lab.Experiment {
	seed, heaps := uint64(1), ""
	return lab.Experiment{
		Name:  "hostile",
		Title: "A hostile hour",
		Question: `One sidecar with GOMEMLIMIT=` + hostileLimit +
			` before three nodes that want tickets, with an honest load over all of its APIs and three users of the database; beside it one attacker after the other, each with at most half a core, then pairs of
them by chance (-seed). The honest callers must not fail, nor wait longer than 10 ms or three times what they wait beside a loop that uses half a core (p99, and the median of three runs where the first took longer); the sidecar must stay the same process, below 300 MiB, come back to within 20 MB of
where it began, and stop well.`,
		Flags: func(flags *flag.FlagSet) {
			flags.Uint64Var(&seed, "seed", 1, "of the pairs")
			flags.StringVar(&heaps, "heaps", "", "a directory for profiles of what the sidecar keeps, at rest and after each attack")
		},
		Defaults: func(o *lab.Options) {
			if o.Duration == 0 {
				o.Duration = [...]time.Duration{500 * time.Millisecond, 10 * time.Second, time.Minute}[o.Size]
			}
			if o.Limit == 0 {
				o.Limit = [...]time.Duration{3 * time.Minute, 45 * time.Minute, 3 * time.Hour}[o.Size]
			}
		},
		Run:      func(ctx context.Context, l *lab.Lab) error { return runHostile(ctx, l, seed, heaps) },
		Children: map[string]lab.Child{hostileAttacker: Main},
		Apart:    true, // what is attacked is not measured
	}
}

// underAttack is the experiment under way.
type underAttack struct {
	l       *lab.Lab
	sidecar *lab.Sidecar
	heaps   string // directory of profiles, or ""
	target  Target
	honest  lab.Call
	rest    int64 // anonymous memory of the sidecar before anybody means harm, bytes
	rows    []lab.Variant
	runs    [][]lab.Run
}

func runHostile(ctx context.Context, l *lab.Lab, seed uint64, heaps string) error {
	// Nodes refuse long texts where YDB's documentation says so (Database limits): their parsing is no work of the sidecar's.
	cluster, err := l.Cluster(
		ctx, 3, "-query-limit", "10240", "-token", "own", "-token", "alice", "-token", "bob", "-token", "carol",
		"-token", "mallory",
	)
	if err != nil {
		return err
	}
	s, err := l.SidecarOf(ctx, l.Sidecars[0], cluster.Endpoint(), []string{"GOMEMLIMIT=" + hostileLimit, "SIDECAR_YDB_AUTH_TOKEN=own"},
		"ydb.auth.kind=token", soak.Tables, "pool.min=5", "log.level=error", fmt.Sprint("admin.pprof=", heaps != ""))
	if err != nil {
		return err
	}
	if err := s.Warm(ctx); err != nil {
		return err
	}
	if err := traffic.Fill(ctx, s.Client); err != nil {
		return err
	}
	if _, err := s.Client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: soak.Create, Timeout: "20s"}); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	if _, err := s.Client.BulkUpsert(
		ctx,
		&sidecarv1.BulkUpsertRequest{Table: LargeTable, Timeout: "20s", Rows: []*sidecarv1.BulkRow{{Columns: map[string]*sidecarv1.Value{
			"id":      traffic.Unsigned(LargeID),
			"payload": {Kind: &sidecarv1.Value_TextValue{TextValue: strings.Repeat("x", LargeSize)}}}}}},
	); err != nil {
		return err
	}
	u := &underAttack{l: l, sidecar: s, heaps: heaps, target: Target{GRPC: s.GRPC, HTTP: s.HTTP, Ticket: "mallory"}}
	if u.honest, err = honestCalls(l, s); err != nil {
		return err
	}
	return u.hour(ctx, cluster, seed)
}

// honestFaces are the callers of the honest load: the plain API over gRPC and HTTP, and three users of YDB's protocol.
func honestFaces(l *lab.Lab, s *lab.Sidecar) (faces []traffic.Face, err error) {
	for _, kind := range []string{traffic.FaceGRPC, traffic.FaceHTTP} {
		f, err := traffic.DialFace(kind, s, 0)
		if err != nil {
			return nil, err
		}
		l.Defer(f.Close)
		faces = append(faces, f)
	}
	for _, user := range []string{"alice", "bob", "carol"} {
		with := func(ctx context.Context) context.Context {
			return metadata.AppendToOutgoingContext(ctx, "x-ydb-auth-ticket", user)
		}
		conn, err := l.Dial(s.GRPC,
			grpc.WithUnaryInterceptor(func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
				f grpc.UnaryInvoker, o ...grpc.CallOption) error {
				return f(with(ctx), method, in, out, cc, o...)
			}),
			grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string,
				f grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
				return f(with(ctx), d, cc, method, o...)
			}))
		if err != nil {
			return nil, err
		}
		f := &traffic.WireFace{Conn: conn, Client: Ydb_Query_V1.NewQueryServiceClient(conn), Sessions: make(chan *traffic.WireSession, 4)}
		l.Defer(f.Close)
		faces = append(faces, f)
	}
	return faces, nil
}

// honestCalls are those of the honest load, in turn.
func honestCalls(l *lab.Lab, s *lab.Sidecar) (lab.Call, error) {
	faces, err := honestFaces(l, s)
	if err != nil {
		return nil, err
	}
	var calls []lab.Call
	for _, f := range faces {
		calls = append(calls, func(ctx context.Context) error { return traffic.VerifiedRead(ctx, f) })
	}
	kv := sidecarv1.NewKeyValueClient(s.Conn)
	calls = append(calls,
		func(ctx context.Context) error {
			_, err := kv.Put(
				ctx,
				&sidecarv1.KvPutRequest{Table: "soak", Id: traffic.KVID(rand.Uint64N(1000)), Value: []byte("1"),
					Timeout: traffic.Within(ctx)},
			)
			return err
		},
		func(ctx context.Context) error {
			_, err := s.Client.BulkUpsert(
				ctx,
				&sidecarv1.BulkUpsertRequest{Table: "soak", Timeout: traffic.Within(ctx), Rows: []*sidecarv1.BulkRow{{
					Columns: map[string]*sidecarv1.Value{"id": traffic.Unsigned(rand.Uint64N(1000)),
						"payload": {Kind: &sidecarv1.Value_TextValue{TextValue: "2"}}}}}},
			)
			return err
		},
		func(ctx context.Context) error {
			k := soak.Soaking{Sidecar: s}
			id := 1000 + rand.Uint64N(1_000_000) // two writers of a row would be in each other's way
			return k.Transaction(ctx, &soak.Slot{ID: id}, map[string]any{"id": id, "payload": "3"})
		},
		func(ctx context.Context) error {
			seen := 0
			err := faces[1].Stream(ctx, soak.Stream+" LIMIT 50", func(n int) { seen += n })
			if err == nil && seen != 50 {
				err = fmt.Errorf("a stream has %d rows; want 50", seen)
			}
			return err
		})
	turns := lab.Turns(calls...)
	return func(ctx context.Context) error { return soak.Timely(ctx, turns) }, nil
}

// hour is the experiment from the first honest call to the stop.
func (u *underAttack) hour(ctx context.Context, cluster *lab.Cluster, seed uint64) error {
	l := u.l
	lab.Open(ctx, lab.Rate(hostileRate), l.Duration, u.honest) // what is kept for good is kept now
	rest, err := u.settled(ctx, 0)
	if err != nil {
		return err
	}
	u.rest = rest
	if err := u.heap(ctx, "rest"); err != nil {
		return err
	}
	var all [][]string
	for _, one := range Attacks {
		all = append(all, []string{one.Name})
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for range lab.At(l, 1, 5, 20) {
		pair := random.Perm(len(Attacks))[:2]
		all = append(all, []string{Attacks[pair[0]].Name, Attacks[pair[1]].Name})
	}
	all = slices.DeleteFunc(all, func(names []string) bool { return !l.Wanted(nameOf(names)) })
	for i, names := range all {
		if i%hostileBurns == 0 {
			if err := u.attack(ctx, Burn); err != nil {
				return err
			}
		}
		if err := u.attack(ctx, names...); err != nil {
			return err
		}
	}
	if err := u.attack(ctx, Burn); err != nil {
		return err
	}
	// One run has as many calls above its p99 as a pause of the machine for half a second brings: an attack that missed is measured
	// again, and its median counts.
	t := u.table()
	for _, names := range all {
		if is, _ := t.Median(nameOf(names), lab.P99); is <= boundOf(t) || l.Size == lab.Smoke {
			continue
		}
		for range hostileAgain {
			if err := u.attack(ctx, names...); err != nil {
				return err
			}
		}
	}
	u.report()
	stop, cancel := context.WithTimeout(ctx, hostileStop)
	defer cancel()
	begun := time.Now()
	if code, err := u.sidecar.Stop(stop); err != nil || code != 0 {
		l.Report.Fault("the sidecar stopped with code %d, %v, after %v", code, err, time.Since(begun))
	}
	left, err := cluster.Control.Sessions(ctx)
	if err == nil && len(left) > 0 {
		l.Report.Fault("%d sessions are left on the nodes", len(left))
	}
	return err
}

// attack measures the honest load while attackers are at work.
func (u *underAttack) attack(ctx context.Context, names ...string) error {
	l, name := u.l, nameOf(names)
	attacker, err := lab.ChildSpec(l.Experiment, hostileAttacker, u.target.Arguments(hostileShare, names...)...)
	if err != nil {
		return err
	}
	if err := resetPeak(u.sidecar.Pid()); err != nil {
		return err
	}
	v := lab.Variant{Name: name, Under: []*lab.Process{u.sidecar.Process},
		Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
			p, err := l.Spawn("attacker", attacker)
			if err != nil {
				return lab.Result{}, err
			}
			r := lab.Open(ctx, lab.Rate(hostileRate), d, u.honest)
			if code, ended := gone(p); ended {
				return r, fmt.Errorf("the attacker ended with code %d: %s", code, p.Log())
			}
			l.End(p)
			return r, nil
		}}
	run, err := l.Once(ctx, v, l.Duration)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if code, ended := gone(u.sidecar.Process); ended {
		return fmt.Errorf("%s: the sidecar ended with code %d: %s", name, code, lastOf(u.sidecar.Log()))
	}
	peak, err := lab.PeakOf(u.sidecar.Pid())
	if err != nil {
		return err
	}
	after, err := u.settled(ctx, u.rest+hostileLeft)
	if err != nil {
		return err
	}
	run.Figures[hostilePeakOf], run.Figures[hostileLeftOf] = float64(peak), float64(after-u.rest)
	i := slices.IndexFunc(u.rows, func(v lab.Variant) bool { return v.Name == name })
	if i < 0 {
		i = len(u.rows)
		u.rows, u.runs = append(u.rows, v), append(u.runs, nil)
	}
	u.runs[i] = append(u.runs[i], run)
	if err := u.heap(ctx, name); err != nil {
		return err
	}
	l.Progress("%s: %d calls, %d failed (%s), p99 %v, at most %d MiB, %d MB left", name, run.Calls, run.Failed, run.FirstFail,
		time.Duration(run.Figures[lab.P99]).Round(10*time.Microsecond), peak>>20, (after-u.rest)/1e6)
	return nil
}

// settled waits until the sidecar has no more anonymous memory than that, for hostileBack at most, and returns what it has.
func (u *underAttack) settled(ctx context.Context, most int64) (int64, error) {
	for end := time.Now().Add(lab.At(u.l, 2*time.Second, hostileBack, hostileBack)); ; {
		now, err := lab.AnonymousOf(u.sidecar.Pid())
		if err != nil || now <= most || time.Now().After(end) {
			return now, err
		}
		if most == 0 {
			end = time.Now().Add(lab.At(u.l, time.Second, 10*time.Second, 20*time.Second)) // nothing to wait for but its collector
			most = 1
		}
		if err := traffic.Pause(ctx, time.Second); err != nil {
			return 0, err
		}
	}
}

// heap saves what the sidecar keeps: a profile, and the runtime's figures.
func (u *underAttack) heap(ctx context.Context, name string) error {
	if u.heaps == "" {
		return nil
	}
	for form, end := range map[string]string{"gc=1": ".pb.gz", "gc=1&debug=1": ".txt"} {
		if err := u.save(ctx, "/debug/pprof/heap?"+form, strings.ReplaceAll(name, " ", "")+end); err != nil {
			return err
		}
	}
	return nil
}

// save writes an answer of the sidecar's admin port to a file of heaps.
func (u *underAttack) save(ctx context.Context, path, file string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+u.sidecar.Admin+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, res.Status)
	}
	return os.WriteFile(filepath.Join(u.heaps, file), data, 0o600)
}

func (u *underAttack) report() {
	l := u.l
	of := map[string]string{Burn: "a loop that uses half a core, and does nothing to anybody"}
	for _, one := range Attacks {
		of[one.Name] = one.Text
	}
	var text strings.Builder
	text.WriteString("| attack | |\n|---|---|\n")
	for _, v := range u.rows {
		if what, ok := of[v.Name]; ok {
			fmt.Fprintf(&text, "| %s | %s |\n", v.Name, what)
		}
	}
	t := u.table()
	bound := boundOf(t)
	for i, v := range u.rows {
		p99, _ := t.Median(v.Name, lab.P99)
		var peak, left float64 // the most of all runs
		for _, run := range u.runs[i] {
			peak, left = max(peak, run.Figures[hostilePeakOf]), max(left, run.Figures[hostileLeftOf])
		}
		for _, row := range []struct {
			what      string
			is, bound float64
			unit      float64
		}{{"p99 in ms", p99, bound, 1e6}, {"peak in MiB", peak, hostilePeak, 1 << 20}, {"memory left in MB", left, hostileLeft, 1e6}} {
			if row.is > row.bound && l.Size > lab.Smoke {
				l.Report.Fault("%s: %s is %.3g; want at most %.3g", v.Name, row.what, row.is/row.unit, row.bound/row.unit)
			}
		}
	}
	l.Report.Add(lab.Section{Table: t})
	l.Report.Add(lab.Section{Title: "The attacks", Text: text.String()})
}

// table is what was measured so far.
func (u *underAttack) table() *lab.Table {
	return lab.NewTable(lab.Case{Name: "hostile", Title: "The honest load while attackers are at work", Variants: u.rows,
		Text: fmt.Sprintf("%d honest calls a second; at rest before the first attack the sidecar had %d MB of anonymous memory.",
			hostileRate, u.rest/1e6),
		Figures: []string{lab.Offered, lab.P50, lab.P99, lab.Max, hostilePeakOf, hostileLeftOf}}, u.runs)
}

// boundOf is how long honest calls may take (p99), in nanoseconds.
func boundOf(t *lab.Table) float64 {
	beside, _ := t.Median(Burn, lab.P99)
	return max(float64(hostileFloor), hostileTimes*beside)
}

func nameOf(attacks []string) string { return strings.Join(attacks, " + ") }

// hostileAttacker is the name of the process of an attacker.
const hostileAttacker = "attacker"

// gone reports whether a process has ended, and with which code.
func gone(p *lab.Process) (code int, ended bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	code, err := p.Wait(ctx)
	return code, err == nil
}

func lastOf(log string) string {
	log = strings.TrimSpace(log)
	return log[max(0, len(log)-2000):]
}

// resetPeak makes lab.PeakOf count from now on (proc(5), clear_refs).
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

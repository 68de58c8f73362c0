package systemtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// ingestRow is row i of a writer: its key repeats others at random, and every third
// row leaves column b alone.
func ingestRow(seed uint64, i uint64) (key uint64, columns []string, values []any) {
	r := rand.New(rand.NewPCG(seed, i))
	key = r.Uint64N(500)
	if i%3 == 0 {
		return key, []string{"id", "a"}, []any{key, i}
	}
	return key, []string{"id", "a", "b"}, []any{key, i, fmt.Sprint("b", i)}
}

// ingestWriter writes rows of one seed into its own table, in order, however often
// its stream ends. It remembers what was acknowledged.
type ingestWriter struct {
	seed  uint64
	table string
	acked atomic.Uint64
	sent  atomic.Uint64 // the most that was ever sent
	tries atomic.Int64
}

// write goes on from the last acknowledged row until ctx ends and every row that
// was ever sent is acknowledged.
func (w *ingestWriter) write(ctx context.Context, t *testing.T, face func() contract.Client, leave <-chan struct{}) {
	for ctx.Err() == nil || w.acked.Load() < w.sent.Load() {
		w.tries.Add(1)
		if err := w.once(ctx, t, face(), leave); err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func (w *ingestWriter) once(ctx context.Context, t *testing.T, client contract.Client, leave <-chan struct{}) error {
	defer client.Close()
	alive, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := client.Ingest(alive, contract.IngestOpen{Table: w.table, Offset: w.acked.Load(), Stream: "writer"})
	if err != nil {
		return err
	}
	defer s.Close()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer s.Close()
	sending.Go(func() {
		for i := w.acked.Load(); ctx.Err() == nil || i < w.sent.Load(); i++ {
			select {
			case <-leave: // as a client that is killed
				s.Close()
				return
			default:
			}
			_, columns, values := ingestRow(w.seed, i)
			w.sent.Store(max(w.sent.Load(), i+1))
			if s.Send(columns, values) != nil {
				return
			}
			if i%10 == 0 {
				time.Sleep(time.Millisecond) // so that the test lasts longer than it has rows
			}
		}
		_ = s.CloseSend() // Next says what came of it
	})
	for {
		p, err := s.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if p.Refused != nil {
			t.Errorf("row %d was refused: %v", p.Offset, p.Refused)
		}
		if p.Next > 0 {
			w.acked.Store(p.Next)
		}
	}
}

// check compares the table with the rows: each value is as after some number of
// rows from the acknowledged ones on, up to all that were sent when it was read.
func (w *ingestWriter) check(t *testing.T, s *sidecar, acked uint64) {
	t.Helper()
	type cell struct {
		key    string
		column string
	}
	got := map[cell]string{}
	answer, err := s.Execute(
		t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT id, a, b FROM " + w.table, Idempotent: true, Timeout: "30s"},
	)
	if err != nil {
		t.Fatal(err)
	}
	sent := w.sent.Load() // after it was read: others are being written meanwhile
	for _, row := range answer.Rows {
		key := strconv.FormatUint(row.Values[0].GetUint64Value(), 10)
		got[cell{key, "a"}] = strconv.FormatUint(row.Values[1].GetUint64Value(), 10)
		if b := row.Values[2].GetTextValue(); b != "" {
			got[cell{key, "b"}] = b
		}
	}
	want, good := map[cell]string{}, map[cell]bool{}
	cells := func(i uint64) map[cell]string {
		key, columns, values := ingestRow(w.seed, i)
		out := map[cell]string{}
		for n, column := range columns[1:] {
			out[cell{strconv.FormatUint(key, 10), column}] = fmt.Sprint(values[n+1])
		}
		return out
	}
	for i := range acked {
		for at, v := range cells(i) {
			want[at] = v
		}
	}
	for at, v := range want {
		good[at] = got[at] == v
	}
	for i := acked; i < sent; i++ {
		for at, v := range cells(i) {
			good[at] = good[at] || got[at] == v || got[at] == want[at]
		}
	}
	for at, v := range got {
		if !good[at] {
			t.Errorf("%s with %d rows acknowledged and %d sent: key %s, %s is %q, and should be %q or newer", w.table,
				acked, sent, at.key, at.column, v, want[at])
		}
	}
	for at := range want {
		if _, ok := got[at]; !ok {
			t.Errorf("%s: key %s, %s is not there", w.table, at.key, at.column)
		}
	}
}

// dialOnce opens a connection for a client that closes it.
func dialOnce(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// settle is ingest.attempt and ingest.settle together, by default.
const settle = 6 * time.Second

// TestIngestKeepsItsWordWhileEverythingIsKilled: nodes, the sidecar and clients are
// killed at random moments while rows are written over both APIs. What was
// acknowledged is there at any time, and in the end each key has its last values.
func TestIngestKeepsItsWordWhileEverythingIsKilled(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	c := startCluster(t, nil, "-processes", "-data", filepath.Join(t.TempDir(), "data"))
	watcher := startSidecar(t, c, nil) // is not killed: it reads
	var now atomic.Pointer[sidecar]
	startVictim := func() { now.Store(startSidecar(t, c, nil, "ingest.batch_rows=50", "ingest.delay=5ms")) }
	startVictim()

	ctx, finish := context.WithCancel(t.Context())
	defer finish()
	var running sync.WaitGroup
	writers, leave := startWriters(ctx, t, seed, watcher, &running, func(n int) contract.Client { return now.Load().client(n%2 == 0) })
	more := func(n uint64) {
		t.Helper()
		acknowledgedMore(t, writers, n)
	}
	events := []string{"node", "sidecar", "clients", "node", "sidecar"}
	r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for _, event := range events {
		more(200 + r.Uint64N(300))
		switch event {
		case "node":
			victim := c.Nodes[r.IntN(len(c.Nodes))]
			t.Logf("node %d is killed", victim.ID)
			kill(t, c, victim.ID)
			more(100)
			c.do(t, victim.ID, "start", nil)
		case "sidecar":
			t.Log("the sidecar is killed")
			if err := now.Load().Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// What it had sent may still be under way, and who goes on elsewhere waits for it (docs/reference/ingest.md).
			c.state(t) // no node stands still
			time.Sleep(settle)
			startVictim()
		case "clients":
			t.Log("two clients are killed")
			for _, n := range []int{r.IntN(2), 2 + r.IntN(2)} {
				select {
				case leave[n] <- struct{}{}:
				default:
				}
			}
		}
		for _, w := range writers {
			w.check(t, watcher, w.acked.Load())
		}
	}
	more(300)
	finish()
	running.Wait()
	allAcknowledged(t, writers, watcher)
}

// startWriters makes a table for each of four writers and starts them. A writer whose channel gets
// something starts again with a new client.
func startWriters(ctx context.Context, t *testing.T, seed uint64, watcher *sidecar, running *sync.WaitGroup,
	client func(n int) contract.Client) (writers []*ingestWriter, leave []chan struct{}) {
	t.Helper()
	writers = make([]*ingestWriter, 4)
	leave = make([]chan struct{}, len(writers))
	for n := range writers {
		w := &ingestWriter{seed: seed + uint64(n), table: fmt.Sprint("ingested", n)}
		writers[n], leave[n] = w, make(chan struct{}, 1)
		if _, err := watcher.Execute(
			ctx,
			&sidecarv1.ExecuteRequest{Sql: "CREATE TABLE " + w.table + " (id Uint64 NOT NULL, a Uint64, b Utf8, PRIMARY KEY (id))"},
		); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			w.write(ctx, t, func() contract.Client { return client(n) }, leave[n])
		})
	}
	return writers, leave
}

// client makes a client of the plain API, with a connection of its own.
func (s *sidecar) client(overHTTP bool) contract.Client {
	if overHTTP {
		return contract.OverHTTP("http://" + s.HTTP)
	}
	conn, _ := dialOnce(s.GRPC)
	return contract.OverGRPC(conn)
}

// acknowledgedMore waits until each writer is acknowledged so many rows more.
func acknowledgedMore(t *testing.T, writers []*ingestWriter, n uint64) {
	t.Helper()
	var from []uint64
	for _, w := range writers {
		from = append(from, w.acked.Load())
	}
	eventually(t, 60*time.Second, "every writer is acknowledged more rows", func() string {
		for i, w := range writers {
			if w.acked.Load() < from[i]+n {
				return fmt.Sprint(from, " and then ", w.acked.Load(), " by writer ", i)
			}
		}
		return ""
	})
}

// allAcknowledged checks that all that was sent is acknowledged and there, although streams were cut.
func allAcknowledged(t *testing.T, writers []*ingestWriter, watcher *sidecar) {
	tries := int64(0)
	for _, w := range writers {
		if w.acked.Load() != w.sent.Load() {
			t.Errorf("%s: %d of %d rows are acknowledged at the end", w.table, w.acked.Load(), w.sent.Load())
		}
		w.check(t, watcher, w.acked.Load())
		tries += w.tries.Load()
	}
	if tries <= int64(len(writers)) {
		t.Error("no stream was cut: the kills proved nothing")
	}
}

// TestIngestKeepsOrderOfRowsThatComeLate: requests fail, and what they brought is written nevertheless, after the try
// that was answered. A newer row of the same key is not overtaken by it: either it waits until the time of the request
// that failed is over, or the shard refuses what comes after that.
func TestIngestKeepsOrderOfRowsThatComeLate(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	for n, late := range []lateRows{
		{"in_time", "UNAVAILABLE", "3s", "2s"},
		{"in_time_after_a_broken_connection", "grpc:UNAVAILABLE", "3s", "2s"},
		{"after_its_time", "UNDETERMINED", "500ms", "2500ms"},
	} {
		t.Run(late.name, func(t *testing.T) {
			table := fmt.Sprint("late", n)
			s := startSidecar(t, c, nil, "ingest.attempt="+late.attempt, "ingest.settle=500ms")
			if _, err := s.Execute(
				t.Context(),
				&sidecarv1.ExecuteRequest{Sql: "CREATE TABLE " + table + " (id Uint64 NOT NULL, a Uint64, PRIMARY KEY (id))"},
			); err != nil {
				t.Fatal(err)
			}
			lateRowsComeInOrder(t, c, s, table, late)
		})
	}
}

// lateRows are rows whose request fails with a status, and which are written nevertheless after a delay.
type lateRows struct {
	name, status, attempt, delay string
}

// lateRowsComeInOrder writes a row whose first request comes late, then a newer one of the same key, which must stay.
func lateRowsComeInOrder(t *testing.T, c *ydb, s *sidecar, table string, late lateRows) {
	t.Helper()
	client := contract.OverHTTP("http://" + s.HTTP)
	defer client.Close()
	stream, err := client.Ingest(t.Context(), contract.IngestOpen{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	write := func(a uint64) {
		t.Helper()
		if err := stream.Send([]string{"id", "a"}, []any{1, a}); err != nil {
			t.Fatal(err)
		}
	}
	acked := func(next uint64) {
		t.Helper()
		if p, err := stream.Next(); err != nil || p.Next != next {
			t.Fatalf("%+v, %v; want %d rows acknowledged", p, err, next)
		}
	}
	id, err := c.AddFault(t.Context(), stand.Fault{Kind: "late", Table: table, Share: 1, Delay: late.delay, Status: late.status})
	if err != nil {
		t.Fatal(err)
	}
	write(1)
	eventually(t, patience, "a request failed", func() string {
		if c.sum(t, "late") == 0 {
			return "none did"
		}
		return ""
	})
	if err := c.RemoveFault(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	acked(1)
	if c.sum(t, "late") == 0 {
		t.Error("nothing comes after the row was written: this proved nothing")
	}
	write(2)
	acked(2)
	eventually(t, patience, "nothing is late any more", func() string {
		if n := c.sum(t, "late"); n > 0 {
			return fmt.Sprint(n, " requests are")
		}
		return ""
	})
	answer, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT a FROM " + table})
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.Rows[0].Values[0].GetUint64Value(); got != 2 {
		t.Errorf("the value is %d, which came late; want 2, the last one", got)
	}
}

// TestIngestStopsInOrder: SIGTERM writes what was taken, acknowledges it, and says DRAINING.
func TestIngestStopsInOrder(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "ingest.delay=1h")
	if _, err := s.Execute(
		t.Context(), &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE stopped (id Uint64 NOT NULL, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	conn, err := dialOnce(s.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	for _, face := range []contract.Client{contract.OverGRPC(conn), contract.OverHTTP("http://" + s.HTTP)} {
		stream, err := face.Ingest(t.Context(), contract.IngestOpen{Table: "stopped"})
		if err != nil {
			t.Fatal(err)
		}
		defer face.Close()
		defer stream.Close()
		for i := range 100 {
			if err := stream.Send([]string{"id"}, []any{i}); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			p, err := stream.Next()
			if err != nil || p.Next != 100 {
				t.Errorf("%s: %+v, %v; want 100 rows acknowledged", face.Name(), p, err)
			}
			_, err = stream.Next()
			if e, ok := errors.AsType[*contract.Error](err); !ok || e.Code != "DRAINING" {
				t.Errorf("%s: %v; want DRAINING", face.Name(), err)
			}
		}()
	}
	eventually(t, patience, "the rows are there", func() string {
		var streams []struct{ Waiting int }
		callJSON(t, "GET", "http://"+s.Admin+"/state/ingest", "", &streams)
		if len(streams) != 2 || streams[0].Waiting+streams[1].Waiting != 200 {
			return fmt.Sprint(streams)
		}
		return ""
	})
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, err := s.Process.Wait(t.Context()); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// TestAppsIngest: both example apps write a feed over both APIs, and read it back.
func TestAppsIngest(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil)
	for _, a := range apps(t, s) {
		t.Run(a.name, func(t *testing.T) {
			said := a.run(t, "prices", "--rows", "5000", "--products", "70")
			if said["rows"] != 5000.0 || said["wrong"] != 0.0 || said["refused"] != 0.0 || said["broken"] != 0.0 {
				t.Errorf("%v", said)
			}
		})
	}
}

// TestIngestOverHTTP2: acknowledgements come while rows are sent, also over h2c.
func TestIngestOverHTTP2(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil)
	if _, err := s.Execute(
		t.Context(), &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE h2 (id Uint64 NOT NULL, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	body, rows := io.Pipe()
	defer rows.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+"/v1/ingest/h2", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.ProtoMajor != 2 {
		t.Errorf("it came over %s", answer.Proto)
	}
	lines := bufio.NewScanner(answer.Body)
	for i := range 3 {
		if _, err := fmt.Fprintf(rows, "{\"id\":%d}\n", i); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`{"ack":{"next":%d}}`, i+1); !lines.Scan() || lines.Text() != want {
			t.Errorf("%q, %v; want %s", lines.Text(), lines.Err(), want)
		}
	}
	if err := rows.Close(); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || lines.Text() != `{"end":{"next":3,"rows":3,"refused":0}}` {
		t.Errorf("the end is %q, %v", lines.Text(), lines.Err())
	}
}

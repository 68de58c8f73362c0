package app

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/restart"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// A process that asks to take over and then hangs keeps nobody else from it.
func TestAProcessThatHangsWhileItTakesOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := start(t, newCluster(t).Endpoint(), "takeover.socket="+path)
	s.restart.SetLimit(time.Millisecond)
	for range 3 {
		link, err := takeover.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if who, left, err := link.Ask(takeover.Process{PID: os.Getpid()}); err != nil || len(left) == 0 {
			t.Fatalf("%+v offers %d listeners, %v", who, len(left), err)
		} else {
			for _, l := range left {
				_ = l.Close()
			}
		}
		// It hangs until it is told that it is too late.
		err = link.Receive(func(string, net.Conn) {})
		if !restart.Refused(err) {
			t.Errorf("it was told %v; want a refusal", err)
		}
		if err := link.Receive(func(string, net.Conn) {}); err != nil { // the end of the link: the next one may ask
			t.Error(err)
		}
		_ = link.Close()
	}
	if s.restart.Replaced() {
		t.Error("it was replaced")
	}
	if _, err := s.client.Status(t.Context(), new(sidecarv1.StatusRequest)); err != nil {
		t.Errorf("it does not serve on: %v", err)
	}
}

// A process that takes over knows the nodes that operators have banned and drained.
func TestOrdersSurviveATakeover(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	url := newCluster(t).Endpoint()
	old := start(t, url, "takeover.socket="+path)
	old.core.detector.Adopt(
		[]pessimize.Override{{Node: 1, Banned: true, Until: time.Now().Add(time.Hour).UTC(), Reason: "a disk"}, {Node: 2, Drained: true}},
	)
	c, set, err := (&Origin{Assignments: []Assignment{
		{"ydb.url=" + url, "test"}, {"grpc.listen=127.0.0.1:0", "test"}, {"http.listen=127.0.0.1:0", "test"},
		{"admin.listen=127.0.0.1:0", "test"}, {"takeover.socket=" + path, "test"},
	}}).Load()
	if err != nil {
		t.Fatal(err)
	}
	next, err := Replace(c, set, "1.2.4", new(lines))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	defer next.grpc.Stop() // which Run would do
	if diff := cmp.Diff(old.core.detector.Overrides(), next.core.detector.Overrides()); diff != "" ||
		len(next.core.detector.Overrides()) != 2 {
		t.Error(diff)
	}
	var many []pessimize.Override
	for id := range cluster.NodeID(1000) {
		many = append(many, pessimize.Override{Node: id + 1, Banned: true, Reason: strings.Repeat("\"", 200)})
	}
	old.core.detector.Adopt(many)
	if n := len(old.notes()); n < takeover.MaxNotes/4 || n > takeover.MaxNotes {
		t.Errorf("notes of %d bytes; want as many orders as have room in %d", n, takeover.MaxNotes)
	}
}

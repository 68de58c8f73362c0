package app

import (
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
)

// shardOf reaches into the data path: nothing in the product holds a shard's turn.
func (s *sidecar) shardOf(number int) *driver.Shard {
	s.Helper()
	frames := reflect.ValueOf(s.wire).Elem().FieldByName("shards").Index(number).Elem()
	return *(**driver.Shard)(unsafe.Pointer(frames.FieldByName("shard").UnsafeAddr()))
}

// A shard that does not turn fails /livez and is a finding; both end with it. Nothing that
// operators ask waits for it.
func TestAStalledShard(t *testing.T) {
	t.Parallel()
	s := start(t, nowhere, "data_path.shards=2")
	s.http.Timeout = 20 * time.Second
	found := func() bool {
		var report findings.Report
		s.state("/state/findings", &report)
		for _, f := range report.Findings {
			if f.Code == findings.ShardStalled {
				return strings.Contains(f.Text, "shard 1 of 2 has not turned for ")
			}
		}
		return false
	}
	metrics := func() string {
		status, text := s.get("/metrics")
		if status != http.StatusOK || !strings.Contains(text, "ydb_sidecar_forward_connections{") {
			t.Fatalf("/metrics: %d\n%s", status, text)
		}
		return text
	}
	if text := metrics(); !strings.Contains(text, "ydb_sidecar_forward_unread_total") {
		t.Errorf("readings that fail are not counted:\n%s", text)
	}
	// A busy machine may hold up a shard for a second as well: what is waited for here comes.
	s.eventually("/livez is good before", func() bool {
		status, text := s.get("/livez?verbose")
		return status == http.StatusOK && strings.Contains(text, "[+] data path: ok")
	})
	held, over := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(over) })
	defer release()
	go s.shardOf(1).Do(func(*h2.Forwarder) { close(held); <-over })
	<-held
	s.eventually("/livez fails", func() bool {
		status, text := s.get("/livez")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "data path: shard 1 of 2 has not turned for ")
	})
	s.eventually("the finding", found)
	metrics()
	if n := s.wire.Stats().Unread; n == 0 {
		t.Error("no reading is counted as failed")
	}
	if status, text := s.get("/state/connections"); status != http.StatusOK {
		t.Errorf("/state/connections: %d %s", status, text)
	}
	s.eventually("/readyz is good", func() bool { status, _ := s.get("/readyz"); return status == http.StatusOK }) // the other shard serves
	release()
	s.eventually("/livez is good", func() bool { status, _ := s.get("/livez"); return status == http.StatusOK })
	s.eventually("no finding", func() bool { return !found() })
	s.eventually("the log has the finding's begin and end", func() bool { // a moment after /state/findings
		log := s.log.String()
		return strings.Contains(log, "SHARD_STALLED") && strings.Contains(log, "no longer: the data path is stalled")
	})
}

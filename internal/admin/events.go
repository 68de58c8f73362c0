package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Event is one thing that happened. Seq counts from 1 without gaps.
type Event struct {
	Seq    uint64         `json:"seq"`
	Time   time.Time      `json:"time"`
	Node   cluster.NodeID `json:"node,omitempty"` // 0: of no single node
	App    string         `json:"app,omitempty"`
	Kind   string         `json:"kind"`
	From   string         `json:"from,omitempty"`
	To     string         `json:"to,omitempty"`
	Reason string         `json:"reason"`
}

// maxEvents is how many events are remembered.
const maxEvents = 1000

// Events remembers what happened. Its methods may be called from any goroutine.
type Events struct {
	mu     sync.Mutex // guards all below
	last   uint64
	events []Event       // the newest, oldest first
	more   chan struct{} // closed by the next Add
}

// NewEvents returns an empty memory.
func NewEvents() *Events { return &Events{more: make(chan struct{})} }

// Add notes events, oldest first, and numbers them.
func (e *Events) Add(all ...Event) {
	if len(all) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range all {
		e.last++
		one.Seq = e.last
		if one.Time.IsZero() {
			one.Time = time.Now()
		}
		e.events = append(e.events, one)
	}
	if over := len(e.events) - maxEvents; over > 0 {
		e.events = slices.Delete(e.events, 0, over)
	}
	close(e.more)
	e.more = make(chan struct{})
}

// After returns the events with a greater number, oldest first, and what is
// closed when there is one more. A number from the future, of another process's
// life, is none: all are returned.
func (e *Events) After(seq uint64) ([]Event, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seq > e.last {
		seq = 0
	}
	n := min(len(e.events), int(e.last-seq))
	return slices.Clone(e.events[len(e.events)-n:]), e.more
}

// Bounds of streams of events.
const (
	maxStreams   = 32
	streamWrite  = 5 * time.Second  // for a reader to take what is written
	streamSilent = 15 * time.Second // then a comment says that the stream lives
)

// events answers with one JSON object a line, or with a stream.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("after")
	if text == "" {
		text = r.Header.Get("Last-Event-ID")
	}
	after := uint64(0)
	if text != "" {
		var err error
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			writeText(w, http.StatusBadRequest, fmt.Sprintf("after = %.40q; want the number of an event\n", text))
			return
		}
	}
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		s.stream(w, r, after)
		return
	}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	all, _ := s.deps.Events.After(after)
	for _, event := range all {
		if err := encoder.Encode(event); err != nil {
			writeText(w, http.StatusInternalServerError, "cannot be shown: "+err.Error()+"\n")
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = lines.WriteTo(w) // the caller went away
}

// stream sends events as they come (WHATWG HTML, 9.2: server-sent events), until
// the reader goes away, does not take them in time, or the server ends.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, after uint64) {
	if s.streams.Add(1) > maxStreams {
		s.streams.Add(-1)
		writeText(w, http.StatusServiceUnavailable, fmt.Sprintf("%d streams of events are open, as many as there may be\n", maxStreams))
		return
	}
	defer s.streams.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	to := http.NewResponseController(w)
	write := func(text string) bool {
		_ = to.SetWriteDeadline(time.Now().Add(streamWrite)) // without one, in tests
		if _, err := w.Write([]byte(text)); err != nil {
			return false
		}
		return to.Flush() == nil
	}
	defer func() { _ = to.SetWriteDeadline(time.Time{}) }()
	alive := time.NewTicker(streamSilent)
	defer alive.Stop()
	for ok := write("retry: 1000\n\n"); ok; {
		all, more := s.deps.Events.After(after)
		var text strings.Builder
		for _, event := range all {
			line, err := json.Marshal(event)
			if err != nil {
				return
			}
			fmt.Fprintf(&text, "id: %d\nevent: %s\ndata: %s\n\n", event.Seq, event.Kind, line)
			after = event.Seq
		}
		if text.Len() > 0 && !write(text.String()) {
			return
		}
		select {
		case <-more:
		case <-alive.C:
			ok = write(": alive\n\n")
		case <-r.Context().Done():
			return
		case <-s.ended:
			return
		}
	}
}

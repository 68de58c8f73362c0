package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// largePlain is the size of the plain API's answer in a house: it is one of those that wait for room.
const largePlain = 300 << 10

func largeCheck(context.Context, func(any) error) (any, error) {
	return &healthv1.HealthCheckRequest{Service: strings.Repeat("x", largePlain)}, nil // as good a message
}

// holder is a client that sends a message without its end, and what it is told for that.
type holder struct {
	conn   net.Conn
	framer *http2.Framer
	sent   chan struct{} // closed when it has sent what it wants to
	ended  chan struct{} // closed when its call is over
	status string        // then
	text   string

	mu     sync.Mutex // guards what follows
	room   map[uint32]int
	grown  chan struct{}
	writes sync.WaitGroup
}

// holds begins a call on a connection of its own and sends body. If it trickles, it goes on with a byte now and then.
func (h *house) holds(path string, headers []string, body []byte, trickles bool) *holder {
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		panic(err) // the test's own listener
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	usual := []string{":method", "POST", ":scheme", "http", ":path", path, ":authority", h.addr, "content-type",
		"application/grpc", "te", "trailers", "x-ydb-database", "/local", "x-client", "holder"}
	for all := append(usual, headers...); len(all) > 0; all = all[2:] {
		_ = encoder.WriteField(hpack.HeaderField{Name: all[0], Value: all[1]}) // to memory
	}
	o := &holder{conn: conn, framer: http2.NewFramer(conn, conn), sent: make(chan struct{}), ended: make(chan struct{}),
		room: map[uint32]int{0: 65535, 1: 65535}, grown: make(chan struct{}, 1)}
	o.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	if err = errors.Join(err, o.framer.WriteSettings(),
		o.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})); err != nil {
		h.Error(err)
	}
	o.writes.Go(o.read)
	o.writes.Go(func() {
		o.write(body)
		close(o.sent)
		for trickles {
			select {
			case <-o.ended:
				return
			case <-time.After(20 * time.Millisecond):
				o.write([]byte{0})
			}
		}
	})
	return o
}

func (o *holder) close() {
	o.conn.Close()
	o.writes.Wait()
}

// write sends bytes as there is room, until the call is over.
func (o *holder) write(b []byte) {
	for len(b) > 0 {
		o.mu.Lock()
		n := min(len(b), 16384, o.room[0], o.room[1])
		if n > 0 {
			o.room[0], o.room[1] = o.room[0]-n, o.room[1]-n
			_ = o.framer.WriteData(1, false, b[:n]) // the reader sees that the connection is lost
			b = b[n:]
		}
		o.mu.Unlock()
		if n > 0 {
			continue
		}
		select {
		case <-o.grown:
		case <-o.ended:
			return
		}
	}
}

func (o *holder) read() {
	defer close(o.ended)
	for {
		fr, err := o.framer.ReadFrame()
		if err != nil {
			return
		}
		o.mu.Lock()
		switch fr := fr.(type) {
		case *http2.SettingsFrame:
			if v, ok := fr.Value(http2.SettingInitialWindowSize); ok {
				o.room[1] += int(v) - 65535
			}
			if !fr.IsAck() {
				_ = o.framer.WriteSettingsAck()
			}
		case *http2.WindowUpdateFrame:
			o.room[fr.StreamID] += int(fr.Increment)
		case *http2.PingFrame:
			if !fr.IsAck() {
				_ = o.framer.WritePing(true, fr.Data)
			}
		case *http2.MetaHeadersFrame:
			for _, f := range fr.Fields {
				switch f.Name {
				case "grpc-status":
					o.status = f.Value
				case "grpc-message":
					o.text = f.Value
				}
			}
		}
		ended := o.status != ""
		o.mu.Unlock()
		select {
		case o.grown <- struct{}{}:
		default:
		}
		if ended {
			return
		}
	}
}

// heldMemory is what some clients have held.
type heldMemory struct {
	path     string
	headers  []string
	holders  int
	size     int
	trickles bool
	status   string // 8: nothing of the message has gone to a node
}

// What is held of the messages of some clients is charged to them: answers of others, over YDB's protocol and the plain API, come
// as ever, and those who hold most are ended.
func TestMemoryIsChargedToItsHolders(t *testing.T) {
	for name, c := range map[string]heldMemory{
		"two compressed": {protocol.QueryService + "ExecuteQuery",
			[]string{"grpc-encoding", "gzip"}, 2, 2<<20 - 2000, false, "8"},
		"two that trickle": {protocol.QueryService + "ExecuteQuery",
			[]string{"grpc-encoding", "gzip"}, 2, 2<<20 - 2000, true, "8"},
		"many compressed": {protocol.QueryService + "ExecuteQuery",
			[]string{"grpc-encoding", "gzip"}, 32, 400 << 10, false, "8"},
		"two not compressed":                   {"/Ydb.Topic.V1.TopicService/StreamWrite", nil, 2, 2<<20 - 2000, false, "8"},
		"many that trickle":                    {"/Ydb.Topic.V1.TopicService/StreamWrite", nil, 32, 400 << 10, true, "8"},
		"two of a call of the plain API":       {checkPath, nil, 2, 2<<20 - 2000, false, "8"},
		"many that trickle into one of it":     {checkPath, nil, 32, 400 << 10, true, "8"},
		"two of a stream of the plain API":     {watchPath, nil, 2, 2<<20 - 2000, false, "8"},
		"two compressed ones of the plain API": {watchPath, []string{"grpc-encoding", "gzip"}, 2, 2<<20 - 2000, false, "8"},
		"very many": {protocol.QueryService + "ExecuteQuery",
			[]string{"grpc-encoding", "deflate"}, 100, 200 << 10, true, "8"},
	} {
		t.Run(name, func(t *testing.T) {
			c.isCharged(t)
		})
	}
}

// answersOthers checks that answers of another client come.
func (h *house) answersOthers(g *guest) {
	t := h.T
	for n := range short.Of(2, 1) {
		for _, size := range []int{5000, 3 << 19, 1 << 20}[:short.Of(3, 2)] {
			ctx, cancel := context.WithTimeout(h.ctx, longestWait-5*time.Second) // nothing is held for longer
			st, _, err := g.run(ctx, "", fmt.Sprint("large ", size), nil)
			if cancel(); st != success || err != nil {
				t.Errorf("answer %d, of %d bytes: %v, %v", n, 2*size, st, err)
			}
		}
		got := new(healthv1.HealthCheckRequest)
		ctx, cancel := context.WithTimeout(h.ctx, longestWait-5*time.Second)
		err := g.conn.Invoke(ctx, checkPath, &healthv1.HealthCheckRequest{}, got)
		if cancel(); err != nil || len(got.Service) != largePlain {
			t.Errorf("answer %d of the plain API: %d bytes, %v", n, len(got.Service), err)
		}
		if t.Failed() {
			break
		}
	}
}

// isCharged checks that the memory is charged to those clients.
func (c heldMemory) isCharged(t *testing.T) {
	h := newHouseWith(t, 1, nil, func(_ *Config, p *pool.Config) { p.Max = 8 }, func(c *h2.Config) {
		c.Buffered, c.Message, c.Window, c.MaxWindow = 4<<20, 3<<20, 128<<10, 128<<10
	})
	g := h.guest("a")
	s := g.session()
	s.must(success, "select", beginTx) // messages of topic streams are held
	message := make([]byte, 5+c.size)
	if c.headers != nil {
		message[0] = 1
	}
	copy(message[1:], []byte{0, 0x2f, 0xff, 0xff}) // it is longer
	over := make(chan struct{})
	var holders sync.WaitGroup
	var ended atomic.Int64
	full := make(chan struct{}) // each has sent its bytes, or been ended
	hold := func() {
		holders.Go(func() {
			o := h.holds(c.path, c.headers, message, c.trickles)
			select {
			case <-o.sent:
			case <-o.ended:
			}
			full <- struct{}{}
			select {
			case <-o.ended:
			case <-over:
			}
			o.close()
			if o.status != "" { // on a slow machine also because its time is up
				ended.Add(1)
			}
			if strings.Contains(o.text, "held the most") != (o.status == c.status) && !strings.Contains(o.text, "stopped before its end") {
				t.Errorf("a holder is told %s, %s", o.status, o.text)
			}
		})
	}
	for range c.holders {
		hold()
	}
	for range c.holders {
		<-full
	}
	h.answersOthers(g)
	hold() // if no answer had to wait, there was room for all; now there is not
	<-full
	h.eventually("a holder is ended", func() string {
		if ended.Load() == 0 {
			return "none was"
		}
		return ""
	})
	close(over)
	holders.Wait()
	h.eventually("nothing waits", func() string { return strings.Repeat("x", min(h.buffered(), 10)) })
}

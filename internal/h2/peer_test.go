package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer is the other end of a connection under test, on another implementation of HTTP/2.
type peer struct {
	t       testing.TB
	f       *Forwarder
	conn    *Conn
	in, out bytes.Buffer // frames from the forwarder; frames to it
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	decoder *hpack.Decoder
	chunk   int // bytes given to Receive at once; 0: all
	sends   int // calls of send, up to the one after which the connection has ended
	err     error
}

func newPeer(t testing.TB, f *Forwarder, conn *Conn) *peer {
	p := &peer{t: t, f: f, conn: conn}
	p.framer = http2.NewFramer(&p.out, &p.in)
	p.framer.AllowIllegalReads, p.framer.AllowIllegalWrites = true, true
	p.encoder = hpack.NewEncoder(&p.block)
	p.decoder = hpack.NewDecoder(defaultTableSize, nil)
	return p
}

// become turns p into the peer of another connection.
func (p *peer) become(conn *Conn) {
	*p = *newPeer(p.t, p.f, conn)
	p.framer = http2.NewFramer(&p.out, &p.in)
}

// client connects a client that has greeted.
func client(t testing.TB, f *Forwarder) *peer {
	p := newPeer(t, f, f.Accept())
	p.out.WriteString(preface)
	p.greet()
	return p
}

// node connects a node that has greeted.
func node(t testing.TB, f *Forwarder, settings ...http2.Setting) *peer {
	p := newPeer(t, f, f.Connect())
	p.conn.Open()
	if got := p.conn.Take(); string(got[:len(preface)]) != preface {
		t.Fatalf("a node is greeted by %q", got)
	} else {
		p.in.Write(got[len(preface):])
		p.conn.Sent(len(got))
	}
	p.greet(settings...)
	return p
}

func (p *peer) greet(settings ...http2.Setting) {
	p.framer.WriteSettings(settings...)
	p.framer.WriteSettingsAck()
	p.send()
	p.frames()
}

// headers writes a HEADERS frame.
func (p *peer) headers(stream uint32, end bool, pairs ...string) *peer {
	p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: p.encode(pairs...), EndHeaders: true, EndStream: end})
	return p
}

func (p *peer) encode(pairs ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		p.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return p.block.Bytes()
}

func (p *peer) data(stream uint32, end bool, body []byte) *peer {
	p.framer.WriteData(stream, end, body)
	return p
}

// send gives the forwarder what was written.
func (p *peer) send() error {
	if p.err == nil {
		p.sends++
	}
	for p.out.Len() > 0 && p.err == nil {
		n := p.out.Len()
		if p.chunk > 0 {
			n = min(n, p.chunk)
		}
		p.err = p.conn.Receive(p.out.Next(n))
	}
	p.out.Reset()
	return p.err
}

// collect takes what the forwarder has for this peer.
func (p *peer) collect() {
	p.f.Dirty(nil)
	for {
		b := p.conn.Take()
		if b == nil {
			return
		}
		p.in.Write(b)
		p.conn.Sent(len(b))
		p.f.Recycle(b)
	}
}

// frames returns what came as lines: "HEADERS 1 end :status=200 ...", "DATA 1 5", and so on.
func (p *peer) frames() []string {
	p.t.Helper()
	p.collect()
	var all []string
	for {
		fr, err := p.framer.ReadFrame()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			p.t.Fatalf("the forwarder wrote a bad frame: %v", err)
		}
		all = append(all, p.line(fr))
	}
}

func (p *peer) line(fr http2.Frame) string {
	h := fr.Header()
	line := fmt.Sprintf("%v %d", h.Type, h.StreamID)
	switch fr := fr.(type) {
	case *http2.DataFrame:
		if fr.StreamEnded() {
			line += " end"
		}
		return fmt.Sprintf("%s %s", line, fr.Data())
	case *http2.HeadersFrame:
		if fr.StreamEnded() {
			line += " end"
		}
		block := bytes.Clone(fr.HeaderBlockFragment())
		for !fr.HeadersEnded() {
			next, err := p.framer.ReadFrame()
			if err != nil {
				p.t.Fatal(err)
			}
			c := next.(*http2.ContinuationFrame)
			if block = append(block, c.HeaderBlockFragment()...); c.HeadersEnded() {
				break
			}
		}
		fields, err := p.decoder.DecodeFull(block)
		if err != nil {
			p.t.Fatalf("the forwarder wrote a bad header block: %v", err)
		}
		for _, f := range fields {
			line += " " + f.Name + "=" + f.Value
		}
	case *http2.RSTStreamFrame:
		line += " " + fr.ErrCode.String()
	case *http2.GoAwayFrame:
		line += fmt.Sprintf(" last=%d %v", fr.LastStreamID, fr.ErrCode)
	case *http2.WindowUpdateFrame:
		line += fmt.Sprintf(" %d", fr.Increment)
	case *http2.PingFrame:
		line += fmt.Sprintf(" %s", fr.Data)
	}
	return line
}

// want fails unless these are the frames that came.
func (p *peer) want(lines ...string) {
	p.t.Helper()
	if got := p.frames(); !slices.Equal(got, lines) {
		p.t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(lines, "\n\t"))
	}
}

// router is a Router made of functions.
type router struct {
	route  func(*Call) (*Conn, error)
	answer func(*Call)
	done   []Outcome
}

func (r *router) Route(c *Call) (*Conn, error) { return r.route(c) }
func (r *router) Answer(c *Call) {
	if r.answer != nil {
		r.answer(c)
	}
}
func (r *router) Done(_ *Call, o *Outcome) { r.done = append(r.done, *o) }

// start returns a forwarder with one client and one node, to which all calls go.
func start(t testing.TB, change ...func(*Config)) (f *Forwarder, r *router, c, n *peer) {
	config := Default()
	config.Names = []string{"x-ydb-database", "x-ydb-trace-id", "x-ydb-server-hints"}
	for _, change := range change {
		change(&config)
	}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	r = &router{}
	f = New(config, r)
	f.Advance(time.Second)
	c, n = client(t, f), node(t, f)
	r.route = func(*Call) (*Conn, error) { return n.conn, nil }
	return f, r, c, n
}

var request = []string{":method", "POST", ":scheme", "http", ":path", "/Ydb.Table.V1.TableService/ExecuteDataQuery",
	":authority", "sidecar",
	"content-type", "application/grpc", "te", "trailers"}

const requestLine = ":method=POST :scheme=http :path=/Ydb.Table.V1.TableService/ExecuteDataQuery :authority=sidecar " +
	"content-type=application/grpc te=trailers"

// message is a gRPC message of that payload.
func message(payload string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(payload)))
	return append(b, payload...)
}

// idle fails if anything is left of calls.
func idle(t testing.TB, f *Forwarder, peers ...*peer) {
	t.Helper()
	if s := f.Stats(); s.Buffered != 0 || s.Answers != 0 || f.orphans != 0 || s.Held != 0 {
		t.Errorf("after the last call %d bytes and %d calls are kept", s.Buffered, s.Held)
	}
	for _, p := range peers {
		if p.conn.streams.n != 0 || p.conn.ready.first != nil {
			t.Errorf("after the last call %d streams are kept", p.conn.streams.n)
		}
	}
}

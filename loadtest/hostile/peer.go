package hostile

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer is one connection of HTTP/2.
type peer struct {
	conn   net.Conn
	framer *http2.Framer
	gone   chan struct{} // closed when nothing more comes
	credit bool          // it lets the other side go on sending

	mu      sync.Mutex // guards all below, and what framer writes
	block   bytes.Buffer
	fields  *hpack.Encoder
	next    uint32           // stream
	window  int64            // what may be sent, in all
	windows map[uint32]int64 // and on each stream that is open
	initial int64
	moved   chan struct{} // closed when windows or streams change, and made again
}

// dialPeer connects. A peer without credit announces a window of nothing, and never takes more than that.
func dialPeer(ctx context.Context, address string, credit bool) (*peer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	p := &peer{conn: conn, framer: http2.NewFramer(conn, conn), gone: make(chan struct{}), credit: credit,
		next: 1, window: 65_535, initial: 65_535, windows: map[uint32]int64{}, moved: make(chan struct{})}
	p.framer.AllowIllegalWrites = true
	p.fields = hpack.NewEncoder(&p.block)
	settings := []http2.Setting{{ID: http2.SettingEnablePush}}
	if !credit {
		settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize})
	}
	if _, err = conn.Write([]byte(http2.ClientPreface)); err == nil {
		err = p.framer.WriteSettings(settings...)
	}
	if err != nil {
		_ = conn.Close() // nothing was begun
		return nil, err
	}
	go p.read()
	return p, nil
}

func (p *peer) close() {
	_ = p.conn.Close() // what is open is given up
	<-p.gone
}

// write has f write frames.
func (p *peer) write(f func(*http2.Framer) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f(p.framer)
}

// open begins a call and returns its stream.
func (p *peer) open(end bool, fields ...string) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		if err := p.fields.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return 0, err
		}
	}
	id := p.next
	p.next += 2
	p.windows[id] = p.initial
	block := p.block.Bytes()
	first := block[:min(len(block), maxFrame)]
	if err := p.framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(first) == len(block)},
	); err != nil {
		return 0, err
	}
	for block = block[len(first):]; len(block) > 0; {
		part := block[:min(len(block), maxFrame)]
		block = block[len(part):]
		if err := p.framer.WriteContinuation(id, len(block) == 0, part); err != nil {
			return 0, err
		}
	}
	return id, nil
}

const maxFrame = 16 << 10

var (
	errClosed = errors.New("the connection is over")
	errEnded  = errors.New("the call has ended before all was sent")
)

// send sends bytes of a call as its windows allow.
func (p *peer) send(ctx context.Context, id uint32, data []byte, end bool) error {
	for {
		p.mu.Lock()
		window, open := p.windows[id]
		n := min(int64(len(data)), maxFrame, max(0, window), max(0, p.window))
		if open && (n > 0 || len(data) == 0) {
			p.window -= n
			p.windows[id] -= n
			err := p.framer.WriteData(id, end && n == int64(len(data)), data[:n])
			p.mu.Unlock()
			if data = data[n:]; err != nil || len(data) == 0 {
				return err
			}
			continue
		}
		moved := p.moved
		p.mu.Unlock()
		if !open {
			return errEnded
		}
		if err := p.await(ctx, moved); err != nil {
			return err
		}
	}
}

// await waits until moved is closed.
func (p *peer) await(ctx context.Context, moved <-chan struct{}) error {
	select {
	case <-moved:
		return nil
	case <-p.gone:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait returns when a call has ended.
func (p *peer) wait(ctx context.Context, id uint32) error {
	for {
		p.mu.Lock()
		_, open := p.windows[id]
		moved := p.moved
		p.mu.Unlock()
		if !open {
			return nil
		}
		if err := p.await(ctx, moved); err != nil {
			return err
		}
	}
}

// read reads until the connection is over.
func (p *peer) read() {
	defer close(p.gone)
	for {
		frame, err := p.framer.ReadFrame()
		if _, stream := errors.AsType[http2.StreamError](err); err != nil && !stream {
			return
		}
		if err != nil {
			continue
		}
		p.mu.Lock()
		err = p.take(frame)
		close(p.moved)
		p.moved = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *peer) take(frame http2.Frame) error {
	id := frame.Header().StreamID
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			for id := range p.windows {
				p.windows[id] += int64(v) - p.initial
			}
			p.initial = int64(v)
		}
		return p.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if !f.IsAck() {
			return p.framer.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		if id == 0 {
			p.window += int64(f.Increment)
		} else if _, open := p.windows[id]; open {
			p.windows[id] += int64(f.Increment)
		}
	case *http2.HeadersFrame:
		if f.StreamEnded() {
			delete(p.windows, id)
		}
	case *http2.RSTStreamFrame:
		delete(p.windows, id)
	case *http2.DataFrame:
		if f.StreamEnded() {
			delete(p.windows, id)
		}
		if n := f.Length; n > 0 && p.credit {
			if err := p.framer.WriteWindowUpdate(0, n); err != nil {
				return err
			}
			if !f.StreamEnded() {
				return p.framer.WriteWindowUpdate(id, n)
			}
		}
	}
	return nil
}

package h2

import (
	"bytes"
	"testing"

	"golang.org/x/net/http2"
)

// While memory is short a node sends on when all that it sent has left, and less at a
// time; nothing gets stuck, and afterwards windows grow again.
func TestTightMemory(t *testing.T) {
	f, _, c, n := start(t)
	c.headers(1, true, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200")
	n.send()
	frame := bytes.Repeat([]byte("x"), minFrameSize)
	mine := f.config.Window // bytes that the node may send
	granted := func() int {
		sum := n.granted(t, 1)
		mine += sum
		return sum
	}
	fill := func() {
		for mine >= minFrameSize {
			n.data(1, false, frame)
			mine -= minFrameSize
		}
		n.send()
		c.skip(t)
		granted()
	}
	read := func(bytes int) {
		c.framer.WriteWindowUpdate(0, uint32(bytes))
		c.framer.WriteWindowUpdate(1, uint32(bytes))
		c.send()
		c.skip(t)
	}
	f.Tight(true)
	fill()
	for waits := f.Stats().Buffered; waits > minFrameSize; waits = f.Stats().Buffered {
		if read(minFrameSize); granted() > 0 {
			t.Fatalf("the node was given more while %d bytes wait", f.Stats().Buffered)
		}
	}
	read(1 << 24) // a fast reader
	for range 20 {
		granted()
		if mine > tightWindow+minFrameSize {
			t.Fatalf("the node may send %d bytes; want %d at most", mine, tightWindow)
		}
		fill()
	}
	f.Tight(false)
	read(1 << 30)
	for range 20 {
		fill()
	}
	if mine < f.config.Window {
		t.Errorf("the node may send %d bytes though there is memory again", mine)
	}
}

// granted reads what the peer may send more on a stream.
func (p *peer) granted(t *testing.T, id uint32) (sum int) {
	p.collect()
	for p.in.Len() > 0 {
		fr, err := p.framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if w, ok := fr.(*http2.WindowUpdateFrame); ok && w.StreamID == id {
			sum += int(w.Increment)
		}
	}
	return sum
}

// skip reads what has come.
func (p *peer) skip(t *testing.T) { p.granted(t, 0) }

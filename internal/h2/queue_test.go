package h2

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/net/http2"
)

// A long queue takes little more than its bytes, which leave as they came, and leaves nothing.
func TestLongQueue(t *testing.T) {
	f, _, c, n := start(t, func(c *Config) { c.Window, c.MaxWindow = 1<<20, 1<<20 })
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.headers(1, true, request...)
	c.send()
	n.frames()
	n.headers(1, false, ":status", "200")
	random := rand.New(rand.NewPCG(1, 2))
	body := make([]byte, f.config.Window)
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	for rest := body; len(rest) > 0; {
		k := min(1+random.IntN(minFrameSize), len(rest))
		n.data(1, false, rest[:k])
		n.send()
		rest = rest[k:]
		if waits := len(body) - len(rest); f.Stats().Buffered != waits || pendingSize(c.conn) > 2*waits+bufferSize {
			t.Fatalf("%d bytes, of which %d are counted, take %d", waits, f.Stats().Buffered, pendingSize(c.conn))
		}
	}
	n.headers(1, true, "grpc-status", "0")
	n.send()
	var got []byte
	for ended := false; !ended; {
		k := uint32(1 + random.IntN(100_000))
		c.framer.WriteWindowUpdate(0, k)
		c.framer.WriteWindowUpdate(1, k)
		c.send()
		c.collect()
		for c.in.Len() > 0 {
			fr, err := c.framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch fr := fr.(type) {
			case *http2.DataFrame:
				got = append(got, fr.Data()...)
			case *http2.HeadersFrame:
				ended = fr.StreamEnded()
			}
		}
		if waits := len(body) - len(got); f.Stats().Buffered != waits {
			t.Fatalf("%d bytes wait, %d are counted", waits, f.Stats().Buffered)
		}
	}
	if !bytes.Equal(got, body) {
		t.Error("the bytes are others")
	}
	if f.kept < len(body) || f.kept > keptBuffers {
		t.Errorf("%d bytes of buffers are kept for use again", f.kept)
	}
	idle(t, f, c, n)
}

// pendingSize is how many bytes the buffers of a connection's stream have.
func pendingSize(c *Conn) (n int) {
	for _, s := range c.streams.slots {
		if s != nil {
			n = cap(s.pending)
			for _, b := range s.more.all {
				n += cap(b)
			}
		}
	}
	return n
}

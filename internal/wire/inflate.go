package wire

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// inflater reads compressed messages of a shard's calls.
type inflater struct {
	source bytes.Reader
	aside  aside
	gzip   gzip.Reader
	zlib   io.ReadCloser // nil: not needed yet
}

var (
	errEncoding = refusal{codes.Unimplemented, Ydb.StatusIds_UNSUPPORTED,
		"ydb-sidecar: a request on a session may be compressed by gzip or deflate, and its grpc-encoding is neither"}
	errPacked = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the compressed request cannot be read"}

	errTooLong = errors.New("longer than is allowed")
	errBarren  = errors.New("much of it inflates to nothing")
)

// canInflate reports whether the value of a header grpc-encoding is one of those that are
// known, https://github.com/grpc/grpc/blob/master/doc/compression.md.
func canInflate(encoding string) bool { return encoding == "gzip" || encoding == "deflate" }

// open begins to read a message of such an encoding.
func (i *inflater) open(encoding string, packed io.Reader) (from io.Reader, err error) {
	switch {
	case encoding == "gzip":
		if err = i.gzip.Reset(packed); errors.Is(err, io.EOF) { // nothing is no message
			err = io.ErrUnexpectedEOF
		}
		return &i.gzip, err
	case i.zlib != nil:
		return i.zlib, i.zlib.(zlib.Resetter).Reset(packed, nil)
	default: // it is zlib's format, RFC 1950
		i.zlib, err = zlib.NewReader(packed)
		return i.zlib, err
	}
}

// mostBarren bounds the bytes in a row of which nothing comes out. Encoders for messages write blocks of many KiB, and 32 KiB of what
// they hold come out at a time. Whether the call is over is looked at each time.
const mostBarren = 64 << 10

// aside reads the packed bytes of a message that a goroutine inflates, until too many of them have given nothing: deflate allows blocks
// without contents, of some 35 bytes, for each of which tables are made. A KiB of them takes a millisecond.
type aside struct {
	from   io.Reader
	barren int // bytes since something came out

	by   *unpackers // nil: it has no turns
	conn *h2.Conn   // the client's
	slot lane.Slot
	took time.Time // its turn
}

func (a *aside) Read(p []byte) (n int, err error) {
	if a.barren > mostBarren {
		return 0, errBarren
	}
	if a.by != nil && time.Since(a.took) >= lane.Slice {
		a.slot = a.by.yield(a.conn, a.slot)
		a.begin(a.conn)
	}
	n, err = a.from.Read(p)
	a.barren += n
	return n, err
}

// openAside is open for a message that a goroutine inflates. Whoever reads it clears i.aside.barren when something has come out.
func (i *inflater) openAside(encoding string, packed io.Reader) (io.Reader, error) {
	i.aside.from, i.aside.barren = packed, 0
	return i.open(encoding, &i.aside)
}

// inflate appends a message of such an encoding to b, at most so many bytes. It returns
// what could be read also with an error.
func (i *inflater) inflate(b []byte, encoding string, packed []byte, most int) ([]byte, error) {
	i.source.Reset(packed)
	defer i.source.Reset(nil)
	from, err := i.open(encoding, &i.source)
	start := len(b)
	for err == nil {
		b = slices.Grow(b, 512)
		var n int
		n, err = from.Read(b[len(b):cap(b)])
		if b = b[:len(b)+n]; len(b)-start > most {
			return b[:start+most], errTooLong
		}
	}
	if errors.Is(err, io.EOF) {
		return b, nil
	}
	return b, err
}

// What is inflated in the shard's turn: bytes as they come, inflated, and of all messages within inflateEach together, which takes some
// milliseconds: a turn of the poller has many parts. A message that is more is inflated by a goroutine, once it is known whose call it is.
const (
	mostPacked   = 4 << 10
	mostInflated = 64 << 10
	mostAtOnce   = 256 << 10
	inflateEach  = 20 * time.Millisecond
	leastOfByte  = 64 // inflated bytes that a packed one counts for at least: a KiB of blocks without contents takes a millisecond
)

// inflatedNow are the bytes that were inflated in turns lately.
type inflatedNow struct {
	since time.Duration // the first of them
	sum   int
}

// fits reports whether a message of so many packed bytes may be inflated in the turn that is at that time.
func (n *inflatedNow) fits(now time.Duration, packed int) bool {
	if n.sum == 0 || now-n.since >= inflateEach {
		*n = inflatedNow{since: now}
	}
	return n.sum+leastOfByte*packed <= mostAtOnce
}

// add counts a message.
func (n *inflatedNow) add(packed, plain int) { n.sum += max(plain, leastOfByte*packed) }

// inflate puts a compressed first message in its place as it was before, once it is whole. who is nil for a call of the plain API.
func (f *frames) inflate(c *h2.Call, k *call, who *caller) error {
	encoding := string(c.Header(headerEncoding))
	if !canInflate(encoding) {
		return k.refuse(errEncoding)
	}
	if who != nil && k.unpacking == nil { // nothing is gathered or inflated before it is known whose it is
		if _, known := f.server.identities.UserOf(&who.Credentials); !known { // else it may need no pool
			if _, err := f.identityOf(c, k, who); err != nil {
				return err
			}
		}
	}
	packed, whole := c.Raw()
	switch u := k.unpacking; {
	case !whole:
		return h2.ErrNeedWhole
	case u != nil && !u.done:
		return h2.ErrPark
	case u != nil:
		f.shard.Unhold(u.ticket, u.held)
		if u.held = 0; u.refused != nil {
			return k.refuse(*u.refused)
		}
		return c.Replace(func([]byte, []byte) ([]byte, error) { return u.plain, nil })
	}
	if len(packed) <= mostPacked && f.inflated.fits(f.shard.Forwarder().Now(), len(packed)) {
		err := c.Replace(func(b, message []byte) ([]byte, error) {
			plain, err := f.inflater.inflate(b, encoding, message, min(mostInflated, f.server.h2.Message))
			f.inflated.add(len(packed), len(plain)-len(b))
			return plain, err
		})
		var full *h2.Status
		switch {
		case err == nil, errors.As(err, &full):
			return err
		case !errors.Is(err, errTooLong):
			return k.refuse(errPacked)
		}
	}
	k.unpacking = &unpacking{f: f, conn: c.Client(), ticket: c.Ticket(), method: k.method, encoding: encoding, packed: c.Lend()}
	f.server.unpackers.do(c.Client(), k.unpacking, &k.unpacking.elem)
	return h2.ErrPark
}

// unpacking is a compressed message that a goroutine inflates while its call is parked.
type unpacking struct {
	f        *frames
	conn     *h2.Conn // its client's
	ticket   h2.Ticket
	method   *protocol.Method
	encoding string
	packed   []byte
	head     bool          // plain is what frames.head looks at
	elem     *list.Element // in a line of unpackers, whose lock guards it

	held int // bytes that count as waiting; of the shard's turn, like done
	done bool
	over atomic.Bool // the call is

	// Of the goroutine until it is done.
	plain   []byte // the message, with room for its protocol.PrefixSize
	refused *refusal
	found   protocol.Found // by a scan of all of it
	at      sessionAt
}

const (
	maxFields  = 1 << 18   // of a message that a goroutine inflates: the shard walks over them
	maxSession = 64 << 10  // where its session's id ends at the latest: what comes before is copied in the shard's turn
	maxRatio   = 1032      // of deflate: https://zlib.net/zlib_tech.html
	leastPlain = 128 << 10 // bytes that are made room for at first
)

var (
	errFields = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST,
		"ydb-sidecar: the compressed message has more than 262144 fields, which is the most: send fewer, or do not compress it"}
	errFarAway = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST,
		"ydb-sidecar: the session's id is not within the first 64 KiB of the compressed message: write the fields " +
			"in the order of their numbers"}
	errNoMemory = refusal{codes.ResourceExhausted, Ydb.StatusIds_OVERLOADED,
		"ydb-sidecar: there is no memory for the compressed request now: try again, or do not compress it"}
	errAbandoned = errors.New("no room, or the call is over")
)

// serve inflates the message, looks at it, and has its call go on.
func (u *unpacking) serve(i *inflater) {
	err := panics.Call("the inflation of a message", func() error {
		if u.head { // what cannot be read is for a node to judge
			u.plain, _ = i.inflate(nil, u.encoding, u.packed, headOfMessage)
			return nil
		}
		return u.inflate(i, u.f.server.h2.Message)
	})
	if errors.Is(err, errTooLong) {
		u.refused = &errTooLarge
	} else if errors.Is(err, errAbandoned) {
		u.refused = &errNoMemory
	} else if err != nil {
		u.refused = &errPacked
	} else {
		if panics.Call("the look at a message", func() error { u.refused = u.look(); return nil }) != nil {
			u.refused = &errForm
		}
	}
	u.packed = nil
	u.f.shard.Do(func(e *h2.Forwarder) {
		u.done = true
		if !e.Resume(u.ticket) {
			u.f.shard.Unhold(u.ticket, u.held)
			u.plain, u.held = nil, 0
		}
	})
}

// inflate counts the room for the message before it makes it.
func (u *unpacking) inflate(i *inflater, most int) error {
	i.source.Reset(u.packed)
	defer i.source.Reset(nil)
	from, err := i.openAside(u.encoding, &i.source)
	guess := leastPlain
	if n := len(u.packed); u.encoding == "gzip" && n >= 4 {
		guess = int(binary.LittleEndian.Uint32(u.packed[n-4:])) + bytes.MinRead // RFC 1952: the size of the last member
	}
	if err == nil && !u.grow(min(max(guess, leastPlain), maxRatio*len(u.packed)+bytes.MinRead, most+1)) {
		return errAbandoned
	}
	for err == nil {
		if u.over.Load() || len(u.plain) == cap(u.plain) && !u.grow(min(2*cap(u.plain), most+1)) {
			return errAbandoned
		}
		var n int
		n, err = from.Read(u.plain[len(u.plain):cap(u.plain)])
		i.aside.barren = 0
		if u.plain = u.plain[:len(u.plain)+n]; len(u.plain)-protocol.PrefixSize > most {
			return errTooLong
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// grow makes room for a message of size bytes. While the old room is copied both count.
func (u *unpacking) grow(size int) (ok bool) {
	size += protocol.PrefixSize
	before := cap(u.plain)
	u.f.shard.Do(func(e *h2.Forwarder) {
		if ok = e.Hold(u.ticket, size); ok {
			u.held += size
		}
	})
	if !ok {
		return false
	}
	b := make([]byte, max(protocol.PrefixSize, len(u.plain)), size)
	copy(b, u.plain)
	u.plain = b
	u.f.shard.Do(func(*h2.Forwarder) {
		u.f.shard.Unhold(u.ticket, before)
		u.held -= before
	})
	return true
}

// look does with the message what the shard's turn is too short for.
func (u *unpacking) look() *refusal {
	if u.method == nil {
		return nil // of the plain API, which looks at it itself
	}
	message := u.plain[protocol.PrefixSize:]
	for n, rest := 0, message; len(rest) > 0; n++ {
		size := fieldSize(rest)
		switch {
		case size < 0:
			return &errForm
		case n == maxFields:
			return &errFields
		}
		rest = rest[size:]
	}
	var s protocol.Scan
	if s.Start(u.method.Request); !s.Message(message) {
		return &errForm
	}
	if u.at, _ = findSession(message, true, u.method.Session); u.at.to > maxSession {
		return &errFarAway
	}
	u.found = s.Found
	return nil
}

// fieldSize is the size of the field that p begins with, or negative.
func fieldSize(p []byte) int {
	_, _, n := protowire.ConsumeField(p)
	return n
}

// packed is what is to be inflated.
type packed interface{ serve(i *inflater) }

// unpackers are the goroutines that inflate, in places of the lane of large requests.
type unpackers struct {
	ctx  context.Context // ends when nothing is to be waited for any more
	door *lane.Door
	most int // goroutines at a time; those that wait for another turn do not count
	runs sync.WaitGroup

	mu      sync.Mutex // guards what follows
	lines   list.List  // of *line, in turn
	of      map[*h2.Conn]*line
	running int
	yielded int // goroutines that wait for another turn
}

// line has what waits of a client's connection. Connections take turns, so that none waits for all that another one sent.
type line struct {
	conn    *h2.Conn
	elem    *list.Element // in unpackers.lines
	waiting list.List     // of packed, until a goroutine begins with it or its call is over; not empty
}

// in has messages inflated in that lane, until ctx ends.
func (us *unpackers) in(ctx context.Context, l *lane.Lane) {
	us.ctx, us.door, us.most = ctx, l.NewDoor(), l.Slots()
}

// do has a message of a client's connection inflated, in turn. Until then place is for drop.
func (us *unpackers) do(conn *h2.Conn, u packed, place **list.Element) {
	us.mu.Lock()
	defer us.mu.Unlock()
	*place = us.push(conn, u)
	if us.running < us.most {
		us.running++
		us.start(lane.Slot{})
	}
}

// push puts something behind what waits of a connection. mu is held.
func (us *unpackers) push(conn *h2.Conn, u packed) *list.Element {
	l := us.of[conn]
	if l == nil {
		l = &line{conn: conn}
		if l.elem = us.lines.PushBack(l); us.of == nil {
			us.of = map[*h2.Conn]*line{}
		}
		us.of[conn] = l
	}
	return l.waiting.PushBack(u)
}

// A message that takes longer than lane.Slice waits for another turn while others wait: a KiB may take
// a millisecond. At most mostYielded messages wait so at a time, because each keeps an inflater of
// some 50 KB. Beyond that a message goes on.
const mostYielded = 64

// resumed is the next turn of a message that takes long: its goroutine goes on in place of the one that finds it.
type resumed struct {
	packed                // none
	slot   chan lane.Slot // with room for the place of the one that finds it
}

// yield has others of those that wait go first, at the place. It is for a goroutine that inflates a
// message of the connection, and returns the place of the goroutine that found its turn, which may be
// none: begin is to follow.
func (us *unpackers) yield(conn *h2.Conn, place lane.Slot) lane.Slot {
	us.mu.Lock()
	if us.lines.Len() == 0 || us.yielded == mostYielded {
		us.mu.Unlock()
		return place
	}
	us.yielded++
	next := resumed{slot: make(chan lane.Slot, 1)}
	us.push(conn, next)
	us.start(place) // in place of this one
	us.mu.Unlock()
	place = <-next.slot
	us.mu.Lock()
	us.yielded--
	us.mu.Unlock()
	return place
}

// drop forgets a message whose call is over; false: a goroutine has begun with it.
func (us *unpackers) drop(conn *h2.Conn, place **list.Element) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	e, l := *place, us.of[conn]
	*place = nil
	if e == nil || l == nil {
		return false
	}
	before := l.waiting.Len()
	l.waiting.Remove(e) // nothing, if it is taken
	dropped := l.waiting.Len() < before
	us.clear(l)
	return dropped
}

// clear forgets a line in which nothing waits.
func (us *unpackers) clear(l *line) {
	if l.waiting.Len() == 0 {
		us.lines.Remove(l.elem)
		delete(us.of, l.conn)
	}
}

// next takes what is to be inflated next, and of which connection it is; nil: nothing.
func (us *unpackers) next() (packed, *h2.Conn) {
	first := us.lines.Front()
	if first == nil {
		return nil, nil
	}
	l := first.Value.(*line)
	u := l.waiting.Remove(l.waiting.Front()).(packed)
	us.lines.MoveToBack(first)
	us.clear(l)
	return u, l.conn
}

func (us *unpackers) start(place lane.Slot) { us.runs.Go(func() { us.run(place) }) }

// run serves what waits, at the place, or one that it waits for.
func (us *unpackers) run(place lane.Slot) {
	var i inflater
	i.aside.by, i.aside.slot = us, place
	for {
		us.mu.Lock()
		u, conn := us.next()
		if u == nil {
			us.running--
			us.mu.Unlock()
			i.aside.slot.Leave()
			return
		}
		us.mu.Unlock()
		if next, ok := u.(resumed); ok {
			next.slot <- i.aside.slot
			return
		}
		if m, ok := u.(*inflation); !ok || m.packed != nil { // else there is nothing to inflate
			i.aside.begin(conn)
		}
		u.serve(&i)
	}
}

// begin waits for a place to inflate a message of that connection, if there is none. Once the server
// has stopped, messages are inflated without one: their calls are over.
func (a *aside) begin(conn *h2.Conn) {
	if !a.slot.Held() {
		a.slot, _ = a.by.door.Enter(a.by.ctx)
	} else {
		_ = a.slot.Pause(a.by.ctx)
	}
	a.conn, a.took = conn, time.Now()
}

// headOfMessage is how much of a compressed message is looked at for its session's id, which
// comes at its start: bytes, inflated.
const headOfMessage = 4 << 10

// head is Call.Message for a call that goes on as it came: a compressed message is inflated as far as it is needed to find a session's
// id. The error is h2.ErrPark if that is left to a goroutine.
func (f *frames) head(c *h2.Call, k *call) (message []byte, whole bool, err error) {
	if !c.Compressed() {
		message, whole = c.Message()
		return message, whole, nil
	}
	encoding := string(c.Header(headerEncoding))
	switch u := k.unpacking; {
	case !canInflate(encoding):
		return nil, true, nil
	case u != nil && !u.done:
		return nil, false, h2.ErrPark
	case u != nil:
		return u.plain, true, nil
	}
	packed, whole := c.Raw()
	if len(packed) >= mostPacked {
		packed, whole = packed[:mostPacked], true // the rest is not looked at
	}
	if f.inflated.fits(f.shard.Forwarder().Now(), len(packed)) {
		f.scratch, err = f.inflater.inflate(f.scratch[:0], encoding, packed, headOfMessage)
		f.inflated.add(len(packed), len(f.scratch))
		return f.scratch, whole || errors.Is(err, errTooLong), nil
	}
	if !whole {
		return nil, false, nil
	}
	packed = bytes.Clone(packed)
	k.unpacking = &unpacking{f: f, conn: c.Client(), ticket: c.Ticket(), encoding: encoding, packed: packed, head: true}
	f.server.unpackers.do(c.Client(), k.unpacking, &k.unpacking.elem)
	return nil, false, h2.ErrPark
}

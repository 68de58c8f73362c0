package h2

import (
	"bytes"
	"encoding/binary"
)

// splice replaces message[from:to] of the first message.
type splice struct {
	from, to int
	set      bool
	headN    uint8
	head     [10]byte // tag and length of text, if that is a field
	text     string
	with     []byte // or this
}

// size is how many bytes it puts there.
func (x *splice) size() int { return int(x.headN) + len(x.text) + len(x.with) }

// Splice replaces message[from:to] of what Message returned by with, of which it
// keeps a copy. The last call of it counts.
func (c *Call) Splice(from, to int, with []byte) {
	c.splice = splice{from: from, to: to, set: true, with: append(c.splice.with[:0], with...)}
}

// SpliceField is Splice with a length-delimited field of a protobuf message, which is not copied.
func (c *Call) SpliceField(from, to, number int, text string) {
	x := &c.splice
	x.from, x.to, x.set, x.text, x.with = from, to, true, text, x.with[:0]
	x.headN = uint8(len(appendUvarint(appendUvarint(x.head[:0], uint64(number)<<3|2), uint64(len(text)))))
}

// Replace puts in the place of the first message, which is here whole, what with appends
// to b: an uncompressed message, which Message, Splice and the Observer then are about, also when
// the router is asked again. It counts as waiting until it is on its way.
func (c *Call) Replace(with func(b, message []byte) ([]byte, error)) error {
	if c.packed > 0 { // it is replaced already
		return nil
	}
	message, _ := c.Raw()
	b, err := with(append(c.plain[:0], 0, 0, 0, 0, 0), message)
	if err != nil {
		return err
	}
	if c.f.crowded(len(b)) {
		return crowded
	}
	c.count(len(b))
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-messagePrefix))
	c.plain, c.packed, c.lent, c.f.message = b, messagePrefix+len(message), false, b
	return nil
}

// Lend returns the first message, which is here whole and may be compressed, for a goroutine to read
// while the call is parked, or is the router's (ErrMine). It stays as it is until Replace, also when
// the call is over. Once the call is the router's it does not count as waiting.
func (c *Call) Lend() []byte {
	message, _ := c.Raw()
	if !c.isHeld { // it is of a frame in hand
		return bytes.Clone(message)
	}
	c.lent = true
	return message
}

// unpack returns p, the start of the body, with the first message replaced.
func (c *Call) unpack(p []byte) []byte {
	c.count(-len(c.plain))
	b := append(c.plain, p[c.packed:]...)
	c.client.credit -= len(b) - len(p) // room is counted in bytes that came
	c.plain, c.packed = kept(b), 0
	return b
}

// keptSpliced is the most that is kept of the buffer for such.
const keptSpliced = 1 << 20

// apply returns p, the start of the body, with the splice made.
func (c *Call) apply(p []byte) []byte {
	x := &c.splice
	x.set = false
	delta := x.size() - (x.to - x.from)
	b := append(c.f.spliced[:0], p[0])
	b = binary.BigEndian.AppendUint32(b, uint32(int(binary.BigEndian.Uint32(p[1:]))+delta))
	b = append(b, p[messagePrefix:messagePrefix+x.from]...)
	b = append(b, x.head[:x.headN]...)
	b = append(b, x.text...)
	b = append(b, x.with...)
	b = append(b, p[messagePrefix+x.to:]...)
	if c.f.spliced = b; cap(b) > keptSpliced {
		c.f.spliced = nil
	}
	c.client.credit -= delta // room is counted in bytes that came
	return b
}

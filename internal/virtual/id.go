package virtual

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"strconv"
)

// NodeID is the node id that the sidecar gives itself: one that no node of a cluster has, and
// that fits what SDKs take (above 0, below 2^31).
const NodeID = 1<<31 - 7

// ID is the part of a session's id that nobody can guess: random, except the number of the
// stripe that has the session.
type ID [16]byte

// prefix is what ids of sessions begin with: the sidecar's own node id.
var prefix = "ydb://session/3?node_id=" + strconv.Itoa(NodeID) + "&id="

func newID(stripe uint8) (id ID) {
	rand.Read(id[:]) // it never fails
	id[0] = id[0]&^(stripeCount-1) | stripe
	return id
}

// stripe is the number of the stripe that has the session, if there is one.
func (id *ID) stripe() uint8 { return id[0] & (stripeCount - 1) }

// Append appends the id as clients know it.
func (id ID) Append(b []byte) []byte {
	return hex.AppendEncode(append(b, prefix...), id[:])
}

// Parse reads such an id. Others are not ok.
func Parse(session []byte) (id ID, ok bool) {
	if len(session) != len(prefix)+2*len(id) || string(session[:len(prefix)]) != prefix {
		return id, false
	}
	wrong := uint64(0)
	for i := 0; i < len(id); i += 4 {
		four, w := fromHex(binary.LittleEndian.Uint64(session[len(prefix)+2*i:]))
		binary.LittleEndian.PutUint32(id[i:], four)
		wrong |= w
	}
	return id, wrong == 0
}

// fromHex reads eight digits at a time, in one spelling only: four bytes. wrong is 0 if they are digits.
func fromHex(text uint64) (octets uint32, wrong uint64) {
	const each = 0x0101010101010101
	letters := text >> 6 & each            // 0x61 to 0x66; the others are 0x30 to 0x39
	digits := text&(0x0f*each) + 9*letters // at most 24: none reaches the next byte
	wrong = text&(0xf0*each) ^ (0x30*each + 0x30*letters)
	wrong |= digits & (0xf0 * each)
	wrong |= (digits+6*each)>>4&each ^ letters // ten and more, and no less, are letters
	pairs := (digits<<4 | digits>>8) & 0x00ff00ff00ff00ff
	pairs = (pairs | pairs>>8) & 0x0000ffff0000ffff
	return uint32(pairs | pairs>>16), wrong
}

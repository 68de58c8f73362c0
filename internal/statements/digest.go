package statements

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// ID is the digest of a text: 48 bits of a hash of its normal form, which are the same in all processes. 0 is no
// digest.
type ID uint64

// String returns the ID in 12 hexadecimal digits, as short as hashes of sessions.
func (id ID) String() string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(id))
	return hex.EncodeToString(b[2:])
}

// ParseID reads what String wrote.
func ParseID(text string) (ID, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 6 {
		return 0, fmt.Errorf("digest = %.40q; want 12 hexadecimal digits", text)
	}
	return ID(binary.BigEndian.Uint64(append([]byte{0, 0}, b...))), nil
}

// maxText bounds the part of a text that is read, in bytes. Longer texts have the digest of this beginning, whatever
// follows it.
const maxText = 16 << 10

// Digest returns the digest of a text.
func Digest(text string) ID {
	id, _, _ := read(nil, text)
	return id
}

// read returns the digest of a text, its kind ("" if it has no known one), and its normal form, appended to room.
func read(room []byte, text string) (id ID, kind string, normal []byte) {
	cut := len(text) > maxText
	if cut {
		text = text[:maxText]
	}
	n := yql.AppendNormal(room, text)
	if cut {
		n.Text = append(n.Text, " ..."...)
	}
	sum := sha256.Sum256(n.Text)
	id = ID(binary.BigEndian.Uint64(sum[:8]) >> 16)
	return max(id, 1), n.Kind, n.Text
}

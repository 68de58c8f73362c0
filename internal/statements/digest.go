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
	return read(nil, text).id
}

// readText is what was read of a text.
type readText struct {
	id     ID
	kind   string // "": it has no known one
	normal []byte // its normal form
	shown  bool   // the form may be kept: it surely has no literal
}

// read reads a text. Its normal form is appended to room.
func read(room []byte, text string) readText {
	cut := len(text) > maxText
	if cut {
		text = text[:maxText]
	}
	n := yql.AppendNormal(room, text)
	if cut {
		n.Text = append(n.Text, " ..."...)
	}
	sum := sha256.Sum256(n.Text)
	id := ID(binary.BigEndian.Uint64(sum[:8]) >> 16)
	// Where a text is cut, a string may be open.
	shown := !n.Torn && (cut || !n.Open) && !yql.Postgres(text)
	return readText{id: max(id, 1), kind: n.Kind, normal: n.Text, shown: shown}
}

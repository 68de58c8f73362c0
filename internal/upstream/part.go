package upstream

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Part is one piece of an answer. The rows of its result set are left as they came, and
// are good until the next part is asked for. The rest of the result set is shared with other
// answers, and not to be changed.
type Part struct {
	*Ydb_Query.ExecuteQueryResponsePart          // without rows
	Rows                                [][]byte // each the bytes of a Ydb.Value
	Size                                int      // of the result set, bytes

	read  []byte     // the message that Ahead.Here has read: if Unmarshal gets that very slice, it does nothing
	rest  []byte     // of the message, and of its result set, without the rows
	set   []byte     //
	held  mem.Buffer // which Rows are in; nil: none
	own   Ydb_Query.ExecuteQueryResponsePart
	meta  Ydb_Query.TransactionMeta // what own.TxMeta points to
	known *knownSets                // nil: every result set is decoded
	from  *knownSet                 // nil: the part has no result set, or a test made it
	room  [64]byte                  // for rest
	more  [192]byte                 // for set
}

// Columns returns the columns of the part's result set.
func (p *Part) Columns() *yql.Columns {
	if p.from == nil {
		return yql.NewColumns(p.GetResultSet().GetColumns())
	}
	c := p.from.columns.Load()
	if c == nil {
		c = yql.NewColumns(p.from.set.GetColumns())
		p.from.columns.Store(c)
	}
	return c
}

// The numbers of the fields that lead to rows, and of those that each part has.
const (
	fieldStatus    = 1 // of ExecuteQueryResponsePart
	fieldIndex     = 3 // of ExecuteQueryResponsePart
	fieldResultSet = 4 // of ExecuteQueryResponsePart
	fieldTxMeta    = 6 // of ExecuteQueryResponsePart
	fieldRows      = 2 // of ResultSet
)

// keptRows is the most places for rows that one part leaves for the next.
const keptRows = 64 << 10

// begin empties set, and gives set and rest their first room.
func (p *Part) begin() {
	if p.set == nil {
		p.rest, p.set = p.room[:0], p.more[:0]
	}
	p.set = p.set[:0]
}

// Unmarshal reads a message, of which the part keeps the rows.
func (p *Part) Unmarshal(data []byte) error {
	if read := p.read; len(read) > 0 {
		p.read = nil
		if len(read) == len(data) && &read[0] == &data[0] {
			return nil
		}
	}
	has, err := p.scan(data)
	if err == nil {
		err = p.decode(has)
	}
	if err != nil || p.common() {
		return err
	}
	p.TxMeta = nil
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(p.rest, p.ExecuteQueryResponsePart)
}

// scan finds the rows of a message, and sets the rest of it and of its result set apart. has: it has a result set.
func (p *Part) scan(data []byte) (has bool, err error) {
	p.own.Reset()
	p.ExecuteQueryResponsePart = &p.own
	p.begin()
	p.rest, p.Size, p.from = p.rest[:0], 0, nil
	if p.Rows = p.Rows[:0]; cap(p.Rows) > keptRows {
		p.Rows = nil
	}
	p.rest, err = without(p.rest, data, fieldResultSet, func(set []byte) (err error) {
		p.Size += len(set)
		has = true
		p.set, err = without(p.set, set, fieldRows, func(row []byte) error {
			p.Rows = append(p.Rows, row)
			return nil
		})
		return err
	})
	return has, err
}

// decode reads the result set that scan has set apart, if there is one.
func (p *Part) decode(has bool) (err error) {
	if !has {
		return nil
	}
	if p.from, err = p.known.read(p.set); err == nil {
		p.ResultSet = p.from.set
	}
	return err
}

// succeeds reads a message in a shard's turn, if that takes little, and reports whether it is a
// success. open: it leaves a transaction open.
func (p *Part) succeeds(message []byte) (ok, open bool) {
	has, err := p.scan(message)
	if err != nil || len(p.set) > knownSetBytes || !p.common() || p.Status != Ydb.StatusIds_SUCCESS || p.decode(has) != nil {
		return false, false
	}
	return true, p.GetTxMeta().GetId() != ""
}

// common reads rest if it is what a success without statistics has, as package proto would. False: it
// is something else, and nothing was read.
func (p *Part) common() bool {
	var status, index uint64
	for rest := p.rest; len(rest) > 0; {
		number, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return false
		}
		if number == fieldTxMeta && typ == protowire.BytesType {
			meta, size := protowire.ConsumeBytes(rest[n:])
			if size < 0 || p.TxMeta != nil || !p.transaction(meta) {
				return false
			}
			rest = rest[n+size:]
			continue
		}
		value, size := protowire.ConsumeVarint(rest[n:])
		if typ != protowire.VarintType || size < 0 {
			return false
		}
		switch number {
		case fieldStatus:
			status = value
		case fieldIndex:
			index = value
		default:
			return false
		}
		rest = rest[n+size:]
	}
	p.Status, p.ResultSetIndex = Ydb.StatusIds_StatusCode(status), int64(index)
	return true
}

// transaction reads what a message says of its transaction. False: it is not just an id.
func (p *Part) transaction(meta []byte) bool {
	const fieldID = 1
	p.meta.Reset()
	p.TxMeta = &p.meta
	if len(meta) == 0 {
		return true
	}
	number, typ, n := protowire.ConsumeTag(meta)
	if n < 0 || number != fieldID || typ != protowire.BytesType {
		return false
	}
	id, size := protowire.ConsumeBytes(meta[n:])
	p.meta.Id = string(id)
	return size == len(meta)-n && utf8.Valid(id)
}

// knownSets are result sets without rows by their bytes. A statement has the same columns
// each time, and decoding them was a twentieth of the CPU of a point read. The zero value is
// ready; any goroutine may read from it.
type knownSets [knownSetsSize]atomic.Pointer[knownSet]

type knownSet struct {
	raw     []byte
	set     *Ydb.ResultSet
	columns atomic.Pointer[yql.Columns] // nil: they were not asked for
}

const (
	knownSetsSize = 64 // places, each for the last one of a hash
	knownSetBytes = 2 << 10
)

var knownSetsSeed = maphash.MakeSeed()

func (k *knownSets) read(raw []byte) (*knownSet, error) {
	if k == nil || len(raw) > knownSetBytes {
		return decodeSet(raw)
	}
	place, s := k.find(raw)
	if s != nil {
		return s, nil
	}
	s, err := decodeSet(raw)
	if err == nil {
		s.raw = bytes.Clone(raw)
		place.Store(s)
	}
	return s, err
}

// find returns the place of a result set, and what is known of it; nil: nothing.
func (k *knownSets) find(raw []byte) (place *atomic.Pointer[knownSet], s *knownSet) {
	place = &k[maphash.Bytes(knownSetsSeed, raw)%knownSetsSize]
	if s = place.Load(); s != nil && !bytes.Equal(s.raw, raw) {
		s = nil
	}
	return place, s
}

func decodeSet(raw []byte) (*knownSet, error) {
	set := new(Ydb.ResultSet)
	return &knownSet{set: set}, proto.Unmarshal(raw, set)
}

// without appends a message to dst except one field, whose values, messages too, it hands to take.
func without(dst, message []byte, field protowire.Number, take func([]byte) error) ([]byte, error) {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return dst, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, typ, message[n:])
		if size < 0 {
			return dst, protowire.ParseError(size)
		}
		if number == field && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			if err := take(value); err != nil {
				return dst, err
			}
		} else {
			dst = append(dst, message[:n+size]...)
		}
		message = message[n+size:]
	}
	return dst, nil
}

// hold reads a message from gRPC's buffers and keeps what its rows are in.
func (p *Part) hold(b mem.BufferSlice) error {
	p.release()
	p.held = b.MaterializeToBuffer(mem.DefaultBufferPool())
	return p.Unmarshal(p.held.ReadOnlyData())
}

// release gives the buffers back; the rows are no longer good.
func (p *Part) release() {
	if p.held != nil {
		p.held.Free()
		p.held, p.Rows = nil, p.Rows[:0]
	}
}

package upstream

import (
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

func partMessage() *Ydb_Query.ExecuteQueryResponsePart {
	value := func(n uint64) *Ydb.Value {
		return &Ydb.Value{Items: []*Ydb.Value{{Value: &Ydb.Value_Uint64Value{Uint64Value: n}}}}
	}
	return &Ydb_Query.ExecuteQueryResponsePart{
		Status: Ydb.StatusIds_SUCCESS, Issues: []*Ydb_Issue.IssueMessage{{Message: "slow"}}, ResultSetIndex: 2,
		ResultSet: &Ydb.ResultSet{
			Columns: []*Ydb.Column{{Name: "id", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}}}},
			Rows:    []*Ydb.Value{value(1), value(2)}, Truncated: true,
		},
		ExecStats: &Ydb_TableStats.QueryStats{TotalDurationUs: 7}, TxMeta: &Ydb_Query.TransactionMeta{Id: "tx"},
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// whole is the message of a part with its rows.
func (p *Part) whole(t testing.TB) (*Ydb_Query.ExecuteQueryResponsePart, bool) {
	t.Helper()
	m := proto.Clone(p.ExecuteQueryResponsePart).(*Ydb_Query.ExecuteQueryResponsePart)
	for _, raw := range p.Rows {
		row := new(Ydb.Value)
		if proto.Unmarshal(raw, row) != nil {
			return nil, false
		}
		m.ResultSet.Rows = append(m.ResultSet.Rows, row)
	}
	return m, true
}

// A part has everything that its message has, and its rows as they came.
func TestPartsKeepEverything(t *testing.T) {
	for name, m := range map[string]*Ydb_Query.ExecuteQueryResponsePart{
		"all": partMessage(), "no result set": {Status: Ydb.StatusIds_ABORTED},
		"an empty one": {ResultSet: &Ydb.ResultSet{}}, "nothing": {},
		"no columns": {ResultSet: &Ydb.ResultSet{Rows: []*Ydb.Value{{}, {}, {}}}},
	} {
		data := encode(t, m)
		p := &Part{known: new(knownSets)}
		for range 2 { // the room of the first is used again, and its result set known
			if err := p.hold(mem.BufferSlice{mem.SliceBuffer(data[:len(data)/2]), mem.SliceBuffer(data[len(data)/2:])}); err != nil {
				t.Fatal(err)
			}
			if len(p.GetResultSet().GetRows()) != 0 || p.Size != proto.Size(m.GetResultSet()) {
				t.Errorf("%s: %d rows as messages, size %d; want none, %d", name, len(p.GetResultSet().GetRows()),
					p.Size, proto.Size(m.GetResultSet()))
			}
			if got, ok := p.whole(t); !ok || !proto.Equal(got, m) {
				t.Errorf("%s: got %v; want %v", name, got, m)
			}
		}
		if p.release(); len(p.Rows) != 0 || p.held != nil {
			t.Errorf("%s: rows are left after their buffers", name)
		}
	}
}

// FuzzPart: a part is read like its message, or refused like it.
func FuzzPart(f *testing.F) {
	data := encode(f, partMessage())
	f.Add(data)
	f.Add(append(data, data...))
	f.Add(data[:len(data)-3])
	f.Add([]byte{0x22, 2, 0x12, 0, 0x22, 0})
	for _, meta := range []string{"\x32\x00", "\x32\x03\x0a\x01a", "\x32\x03\x0a\x01a\x32\x00", "\x32\x03\x0a\x01\xff",
		"\x32\x02\x10\x01", "\x32\x05\x0a\x01a\x10\x01", "\x32\x01\x80", "\x32\x03\x0a\x01a\x80"} {
		f.Add([]byte("\x08\x80\xb5\x18" + meta))
	}
	var known knownSets // of all inputs so far
	f.Fuzz(func(t *testing.T, data []byte) {
		want, p := new(Ydb_Query.ExecuteQueryResponsePart), &Part{known: &known}
		bad, err := proto.Unmarshal(data, want), p.Unmarshal(data)
		if err != nil {
			if bad == nil {
				t.Fatalf("%v; the message has no fault", err)
			}
			return
		}
		got, ok := p.whole(t)
		if ok != (bad == nil) {
			t.Fatalf("read, but the message says %v", bad)
		}
		if ok && !proto.Equal(got, want) {
			t.Fatalf("got %v; want %v", got, want)
		}
	})
}

// A message that was read in a turn is not read again, and no other one is taken for it. What takes long is left to others.
func TestPartsReadAhead(t *testing.T) {
	column := func(n int) *Ydb_Query.ExecuteQueryResponsePart {
		m := partMessage()
		m.Issues, m.ExecStats = nil, nil
		m.ResultSet.Columns[0].Name = strings.Repeat("a", n)
		return m
	}
	message := encode(t, column(5))
	p := &Part{known: new(knownSets)}
	if ok, open := p.succeeds(message); !ok || !open {
		t.Fatalf("a success that leaves a transaction open: %v, %v", ok, open)
	}
	p.read = message
	p.own.ResultSetIndex = 77 // only who reads it again sees the true one
	if err := p.Unmarshal(message); err != nil || p.ResultSetIndex != 77 || len(p.Rows) != 2 {
		t.Errorf("%v, set %d, %d rows; want what was read", err, p.ResultSetIndex, len(p.Rows))
	}
	if err := p.Unmarshal(message); err != nil || p.ResultSetIndex != 2 {
		t.Errorf("%v, set %d; want it read again", err, p.ResultSetIndex)
	}
	p.read = message
	if err := p.Unmarshal(encode(t, column(5))); err != nil || p.ResultSetIndex != 2 || p.read != nil {
		t.Errorf("%v, set %d; want another message of that length read", err, p.ResultSetIndex)
	}
	for name, m := range map[string]*Ydb_Query.ExecuteQueryResponsePart{
		"many columns": column(knownSetBytes), "statistics": {Status: Ydb.StatusIds_SUCCESS, ExecStats: &Ydb_TableStats.QueryStats{}},
		"issues": {Status: Ydb.StatusIds_SUCCESS, Issues: []*Ydb_Issue.IssueMessage{{}}}, "a failure": {Status: Ydb.StatusIds_ABORTED},
	} {
		if ok, _ := (&Part{known: new(knownSets)}).succeeds(encode(t, m)); ok {
			t.Errorf("%s: read in a turn", name)
		}
	}
}

// Result sets are shared where their bytes are the same, and only there; a large one is not
// kept, nor one that cannot be decoded.
func TestKnownSets(t *testing.T) {
	column := func(name string) []byte { return encode(t, &Ydb.ResultSet{Columns: []*Ydb.Column{{Name: name}}}) }
	var known knownSets
	for i := range 4 * knownSetsSize { // more than there are places
		raw := column(strings.Repeat("a", 1+i))
		first, err := known.read(raw)
		if err != nil {
			t.Fatal(err)
		}
		clear(raw)
		again, err := known.read(column(strings.Repeat("a", 1+i)))
		if err != nil || again != first || len(again.set.Columns[0].Name) != 1+i {
			t.Errorf("a name of %d bytes: got another set, %d bytes, %v", 1+i, len(again.set.Columns[0].Name), err)
		}
	}
	large := column(strings.Repeat("a", knownSetBytes))
	first, err := known.read(large)
	if again, err2 := known.read(large); again == first || err != nil || err2 != nil {
		t.Errorf("a large one is shared, or %v, %v", err, err2)
	}
	for range 2 {
		if _, err := known.read(large[:10]); err == nil {
			t.Error("half of one was read")
		}
	}
}

// BenchmarkPart reads the answer to a point read.
func BenchmarkPart(b *testing.B) {
	data := encode(b, partMessage())
	for name, known := range map[string]*knownSets{"known": {}, "unknown": nil} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			p := &Part{known: known}
			for b.Loop() {
				if err := p.Unmarshal(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package h2

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

func TestStaticTable(t *testing.T) {
	for i := 1; i < len(staticTable); i++ {
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull([]byte{0x80 | byte(i)})
		if err != nil || fields[0].Name != staticTable[i].name || fields[0].Value != staticTable[i].value {
			t.Errorf("index %d is %+v; the other implementation says %v, %v", i, staticTable[i], fields, err)
		}
	}
}

func TestHuffman(t *testing.T) {
	for c := range 256 {
		for n := range 20 {
			text := strings.Repeat(string([]byte{byte(c)}), n+1)
			p := hpack.AppendHuffmanString(nil, text)
			if got := string(appendHuffman(nil, p)); got != text {
				t.Errorf("%q decodes to %q", text, got)
			}
			got, ok := huffmanLen(p)
			if valid := c >= ' ' && c != 0x7f || c == '\t'; ok != valid || ok && got != len(text) {
				t.Errorf("%q: length %d, valid %v", text, got, ok)
			}
		}
	}
}

func FuzzHuffman(f *testing.F) {
	f.Add([]byte{0xff}, "")
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, "text")
	f.Add(hpack.AppendHuffmanString(nil, "/Ydb.Table.V1.TableService/ExecuteDataQuery"), "0|~")
	f.Fuzz(func(t *testing.T, p []byte, text string) {
		want, err := hpack.HuffmanDecodeToString(p)
		n, ok := huffmanLen(p)
		if valid := err == nil && validText([]byte(want)); ok != valid {
			t.Fatalf("%x: valid %v; the other implementation says %v and %q", p, ok, err, want)
		} else if ok && (n != len(want) || string(appendHuffman(nil, p)) != want) {
			t.Fatalf("%x: %d bytes %q; want %q", p, n, appendHuffman(nil, p), want)
		}
		if got := string(appendHuffman(nil, hpack.AppendHuffmanString(nil, text))); got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

// transcoder passes header blocks from one HPACK implementation to itself, through ours.
type transcoder struct {
	sender   *hpack.Encoder
	block    bytes.Buffer
	decoder  decoder
	encoder  encoder
	receiver *hpack.Decoder
}

func newTranscoder() *transcoder {
	x := &transcoder{receiver: hpack.NewDecoder(4096, nil), decoder: decoder{words: newVocabulary(nil), max: 4096},
		encoder: encoder{max: 4096}}
	x.sender = hpack.NewEncoder(&x.block)
	return x
}

func (x *transcoder) pass(t *testing.T, fields []hpack.HeaderField, wait bool) []byte {
	t.Helper()
	x.block.Reset()
	for _, f := range fields {
		x.sender.WriteField(f)
	}
	var b block
	if !x.decoder.read(x.block.Bytes(), &b, 1<<30) {
		t.Fatalf("cannot read %x", x.block.Bytes())
	}
	size := uint32(0)
	for _, f := range fields {
		size += f.Size()
	}
	if b.size != size {
		t.Fatalf("size %d; want %d", b.size, size)
	}
	if wait {
		x.decoder.readPortable(appendPortable(nil, b.fields), &b)
	}
	out := x.encoder.begin(nil)
	for i := range b.fields {
		out = x.encoder.field(out, &b.fields[i])
	}
	got, err := x.receiver.DecodeFull(out)
	if err != nil {
		t.Fatalf("cannot decode %x: %v", out, err)
	}
	if !slices.Equal(got, fields) {
		t.Fatalf("got %v; want %v", got, fields)
	}
	return out
}

func TestRecurringHeadersBecomeIndexes(t *testing.T) {
	x := newTranscoder()
	var out []byte
	for i := range 40 {
		out = x.pass(t, []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":path", Value: "/Ydb.Query.V1.QueryService/ExecuteQuery"},
			{Name: "x-ydb-database", Value: "/local"}, {Name: "x-ydb-trace-id", Value: strings.Repeat("x", i+1)},
			{Name: "key", Value: "v", Sensitive: true},
		}, i%2 == 1)
	}
	if n := bytes.Count(out, []byte("ydb")); n != 0 || len(x.encoder.ring) > 8 {
		t.Errorf("the block %q has names in full; %d entries", out, len(x.encoder.ring))
	}
}

// Entries that go out of the table are used again, and not kept beyond that.
func TestDecoderKeepsLittle(t *testing.T) {
	x := newTranscoder()
	for i := range 100 {
		var fields []hpack.HeaderField
		for k := range 50 {
			fields = append(fields, hpack.HeaderField{Name: "name", Value: strings.Repeat("v", (i*k)%300) + strconv.Itoa(i*50+k)})
		}
		x.pass(t, fields, false)
	}
	x.pass(t, nil, false)
	if got := len(x.decoder.free) + len(x.decoder.evicted); got > maxFree || got == 0 {
		t.Errorf("%d entries are kept", got)
	}
}

// FuzzTranscode: whatever is sent, with tables of any size on both sides, is what arrives.
func FuzzTranscode(f *testing.F) {
	f.Add([]byte("\x00a\x01b\x02\x03cc\x10\xff\x20\x80a\x01b\x00a\x01b"))
	f.Add(bytes.Repeat([]byte("\x05name-of-a-header\x09value\x45\x12"), 20))
	f.Fuzz(func(t *testing.T, p []byte) {
		x := newTranscoder()
		var fields []hpack.HeaderField
		next := func() (c byte) {
			if len(p) > 0 {
				c, p = p[0], p[1:]
			}
			return c
		}
		for len(p) > 0 {
			switch op := next(); {
			case op < 0x10: // a change of a table's size
				x.sender.SetMaxDynamicTableSize(uint32(next()) * 16)
			case op < 0x20:
				n := uint32(next()) * 20
				x.encoder.resize(n)
				x.receiver.SetAllowedMaxDynamicTableSize(min(n, 4096))
			case op < 0x60:
				x.pass(t, fields, op&1 == 1)
				fields = fields[:0]
			default:
				h := hpack.HeaderField{Name: "h" + strings.Repeat(string('a'+rune(next()%26)), int(next()%40)), Sensitive: op > 0xf8}
				for range next() % 64 {
					h.Value += string(rune(' ' + next()%90))
				}
				if op < 0x80 {
					h = hpack.HeaderField{Name: staticTable[1+op%61].name, Value: staticTable[1+op%61].value}
				}
				fields = append(fields, h)
			}
		}
		x.pass(t, fields, false)
		x.pass(t, fields, true)
		if x.encoder.size > 4096 || x.decoder.size > 4096 || len(x.encoder.ring) > 128 {
			t.Fatalf("tables of %d and %d bytes", x.encoder.size, x.decoder.size)
		}
	})
}

// FuzzDecode: a block that the other implementation reads, we read, and alike.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff})
	f.Add([]byte{0x3f, 0xe1, 0x1f, 0x40, 1, 'a', 1, 'b', 0xbe, 0x7e, 1, 'c'})
	f.Fuzz(func(t *testing.T, p []byte) {
		var b block
		d := decoder{words: newVocabulary(nil), max: 4096}
		ok := d.read(p, &b, 1<<30)
		other := hpack.NewDecoder(4096, nil)
		want, err := other.DecodeFull(p)
		if !ok {
			// We are stricter: about control characters, the length of integers and where
			// the size of the table may change.
			resize := func(c rune) bool { return c >= 0x20 && c < 0x40 }
			strict := func(h hpack.HeaderField) bool { return !validText([]byte(h.Name)) || !validText([]byte(h.Value)) }
			if err == nil && !slices.ContainsFunc(want, strict) && !bytes.Contains(p, []byte{0x80, 0x80}) &&
				bytes.IndexFunc(p, resize) < 0 {
				t.Fatalf("%x: not read; the other implementation says %v", p, want)
			}
			return
		}
		if err != nil {
			t.Fatalf("%x: read; the other implementation says %v", p, err)
		}
		if len(want) != len(b.fields) {
			t.Fatalf("%x: %d fields; want %v", p, len(b.fields), want)
		}
		for i := range want {
			fd := &b.fields[i]
			name := staticTable[fd.static].name
			if fd.static == 0 {
				name = string(appendText(nil, fd.name))
			}
			if value := string(fd.appendValue(nil)); name != want[i].Name || value != want[i].Value {
				t.Fatalf("%x: field %q: %q; want %v", p, name, value, want[i])
			}
		}
	})
}

package h2

import (
	"bytes"
	"hash/maphash"
)

// staticTable is RFC 7541 appendix A.
var staticTable = [62]struct{ name, value string }{
	{}, {":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
	{":scheme", "http"}, {":scheme", "https"},
	{":status", "200"}, {":status", "204"}, {":status", "206"}, {":status", "304"}, {":status", "400"},
	{":status", "404"}, {":status", "500"},
	{"accept-charset", ""}, {"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""}, {"accept", ""},
	{"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""}, {"authorization", ""}, {"cache-control", ""},
	{"content-disposition", ""},
	{"content-encoding", ""}, {"content-language", ""}, {"content-length", ""}, {"content-location", ""},
	{"content-range", ""}, {"content-type", ""},
	{"cookie", ""}, {"date", ""}, {"etag", ""}, {"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""},
	{"if-match", ""}, {"if-modified-since", ""},
	{"if-none-match", ""}, {"if-range", ""}, {"if-unmodified-since", ""}, {"last-modified", ""}, {"link", ""},
	{"location", ""}, {"max-forwards", ""},
	{"proxy-authenticate", ""}, {"proxy-authorization", ""}, {"range", ""}, {"referer", ""}, {"refresh", ""},
	{"retry-after", ""}, {"server", ""},
	{"set-cookie", ""}, {"strict-transport-security", ""}, {"transfer-encoding", ""}, {"user-agent", ""}, {"vary", ""}, {"via", ""},
	{"www-authenticate", ""},
}

// staticPost is where the table has what every call begins with.
const staticPost = 3

// Name is a header whose value is read or changed here. The names a router asked
// for (Config.Names) follow from FirstName on.
type Name uint8

// Names the engine itself looks at.
const (
	nameOther Name = iota
	nameMethod
	nameScheme
	nameAuthority
	namePath
	nameStatus
	nameUnknownPseudo
	nameOfConnection // connection, keep-alive ...: not allowed in HTTP/2
	nameInvalid
	nameTE
	nameContentType
	nameContentLength
	nameTimeout
	nameGRPCStatus
	nameStatusDetails
	nameHost
	nameBinary // any that ends in -bin
	FirstName
)

// vocabulary knows names by their text.
type vocabulary struct {
	ids    map[string]Name
	texts  []string // by Name, for those that can be set
	static [62]Name // of the static table
	text   []byte   // of the name or the value in hand
}

func newVocabulary(extra []string) *vocabulary {
	v := &vocabulary{ids: map[string]Name{
		":method": nameMethod, ":scheme": nameScheme, ":authority": nameAuthority, ":path": namePath, ":status": nameStatus,
		"connection": nameOfConnection, "keep-alive": nameOfConnection, "proxy-connection": nameOfConnection,
		"transfer-encoding": nameOfConnection, "upgrade": nameOfConnection,
		"te": nameTE, "content-type": nameContentType, "content-length": nameContentLength,
		"grpc-timeout": nameTimeout, "grpc-status": nameGRPCStatus, "grpc-status-details-bin": nameStatusDetails, "host": nameHost,
	}, texts: make([]string, int(FirstName)+len(extra))}
	v.texts[nameTimeout], v.texts[nameGRPCStatus] = "grpc-timeout", "grpc-status"
	for i, name := range extra {
		v.ids[name] = FirstName + Name(i)
		v.texts[int(FirstName)+i] = name
	}
	for i := 1; i < len(staticTable); i++ {
		v.static[i] = v.ids[staticTable[i].name]
	}
	return v
}

// id returns what a name is.
func (v *vocabulary) id(name []byte) Name {
	if id, ok := v.ids[string(name)]; ok {
		return id
	}
	if len(name) == 0 {
		return nameInvalid
	}
	if name[0] == ':' {
		return nameUnknownPseudo
	}
	for _, c := range name {
		if c <= ' ' || c >= 0x7f || c >= 'A' && c <= 'Z' || c == ':' {
			return nameInvalid
		}
	}
	if bytes.HasSuffix(name, suffixBinary) {
		return nameBinary
	}
	return nameOther
}

// suffixBinary ends the names of headers whose values are base64.
var suffixBinary = []byte("-bin")

// Kinds of fields, by what the sender did with them.
const (
	kindStatic  = iota // a pair of the static table
	kindIndexed        // from the sender's dynamic table: it recurs
	kindNew            // has just entered the sender's dynamic table
	kindOnce           // not to be indexed this time
	kindSecret         // never to be indexed, by anybody
)

// field is a header as it came. Its strings are in wire form: length, Huffman bit
// and bytes, copied on as they are. They point into the block or the table.
type field struct {
	kind, static uint8 // static: index of the pair or of the name; 0: name holds it
	id           Name
	size         uint32 // of an entry of a dynamic table that holds it
	hash         uint64 // of kindIndexed and kindNew
	name, value  []byte
}

var hashSeed = maphash.MakeSeed()

func (f *field) setHash() {
	// The low bits, which index tables, must differ with the value: most names are the same few.
	f.hash = maphash.Bytes(hashSeed, f.name)*31 + maphash.Bytes(hashSeed, f.value) + uint64(f.static)<<32
}

// appendValue appends the value as text.
func (f *field) appendValue(b []byte) []byte {
	if f.kind == kindStatic {
		return append(b, staticTable[f.static].value...)
	}
	return appendText(b, f.value)
}

// readInt reads an integer with an n-bit prefix, RFC 7541 section 5.1.
func readInt(p []byte, n uint) (v uint32, rest []byte, ok bool) {
	if len(p) == 0 {
		return 0, nil, false
	}
	mask := uint32(1)<<n - 1
	if v = uint32(p[0]) & mask; v < mask {
		return v, p[1:], true
	}
	for i, shift := 1, 0; i < len(p) && shift <= 21; i, shift = i+1, shift+7 { // up to 2^28: longer is no index and no string here
		v += uint32(p[i]&0x7f) << shift
		if p[i] < 0x80 {
			return v, p[i+1:], true
		}
	}
	return 0, nil, false
}

func appendInt(b []byte, n uint, first byte, v uint32) []byte {
	mask := uint32(1)<<n - 1
	if v < mask {
		return append(b, first|byte(v))
	}
	b = append(b, first|byte(mask))
	for v -= mask; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}

// readString cuts the string, in wire form, off p and returns its length as text.
func readString(p []byte) (wire, rest []byte, n uint32, ok bool) {
	k, r, ok := readInt(p, 7)
	if !ok || uint64(k) > uint64(len(r)) {
		return nil, nil, 0, false
	}
	text := r[:k]
	if p[0]&0x80 == 0 {
		return p[:len(p)-len(r)+int(k)], r[k:], k, validText(text)
	}
	m, ok := huffmanLen(text)
	return p[:len(p)-len(r)+int(k)], r[k:], uint32(m), ok
}

func validText(p []byte) bool {
	for _, c := range p {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// appendText appends a string in wire form as text.
func appendText(b, wire []byte) []byte {
	_, text, ok := readInt(wire, 7)
	if !ok {
		return b
	}
	if wire[0]&0x80 == 0 {
		return append(b, text...)
	}
	return appendHuffman(b, text)
}

// appendString appends text in wire form.
func appendString[T string | []byte](b []byte, text T) []byte {
	return append(appendInt(b, 7, 0, uint32(len(text))), text...)
}

// entry is one header in the dynamic table of a sender.
type entry struct {
	field
	nameLen uint32 // as text
	raw     []byte // backs name and value
}

// decoder is the dynamic table that a peer fills, and reads its header blocks.
type decoder struct {
	words     *vocabulary
	entries   []*entry // entries[head:], oldest first
	head      int
	size, max uint32
	evicted   []*entry // by the block in hand, whose fields may point at them
	free      []*entry
}

// block is a header block in hand: valid until the next one is read.
type block struct {
	fields []field
	size   uint32 // by RFC 9113 section 6.5.2; fields stop at the limit

	at    [maxNames]int32 // where the first field of a name is, from 1; 0: there is none
	names nameSet         // names in the block, except nameOther
	again nameSet         // names that the block has more than once
}

// maxNames is how many names there may be, Config.Names included.
const maxNames = 32

type nameSet uint32

func (s nameSet) has(id Name) bool { return s>>id&1 != 0 }

func (b *block) reset() { b.fields, b.size, b.names, b.again = b.fields[:0], 0, 0, 0 }

func (b *block) add(f field) {
	b.fields = append(b.fields, f)
	switch {
	case f.id == nameOther:
	case b.names.has(f.id):
		b.again |= 1 << f.id
	default:
		b.names |= 1 << f.id
		b.at[f.id] = int32(len(b.fields))
	}
}

// find returns the first field of that name, or nil.
func (b *block) find(id Name) *field {
	if !b.names.has(id) {
		return nil
	}
	return &b.fields[b.at[id]-1]
}

// at returns the field an index stands for, as sent by index.
func (d *decoder) at(i uint32) (f field, ok bool) {
	switch {
	case i == 0:
		return f, false
	case i < uint32(len(staticTable)):
		t := &staticTable[i]
		return field{kind: kindStatic, static: uint8(i), id: d.words.static[i], size: uint32(32 + len(t.name) + len(t.value))}, true
	}
	if e := d.entry(i); e != nil {
		return e.field, true
	}
	return f, false
}

// entry returns that of an index beyond the static table, or nil.
func (d *decoder) entry(i uint32) *entry {
	if i -= uint32(len(staticTable)); i >= uint32(len(d.entries)-d.head) {
		return nil
	}
	return d.entries[len(d.entries)-1-int(i)]
}

const (
	bomb      = 4       // a block of bomb times the limit is not read to its end
	maxFree   = 16      // entries kept for use again
	freeEntry = 1 << 10 // the largest of them, in bytes
)

// read decodes a block into b, keeping at most limit bytes of fields; false means
// that the peer's table and ours have parted: nothing more can be read from it.
func (d *decoder) read(p []byte, b *block, limit uint32) bool {
	for _, e := range d.evicted {
		if len(d.free) < maxFree && cap(e.raw) <= freeEntry {
			d.free = append(d.free, e)
		}
	}
	clear(d.evicted)
	d.evicted = d.evicted[:0]
	b.reset()
	for first := true; len(p) > 0; {
		var f field
		var ok bool
		var i uint32
		c := p[0]
		switch {
		case c&0x80 != 0:
			if i, p, ok = readInt(p, 7); !ok {
				return false
			}
			if f, ok = d.at(i); !ok {
				return false
			}
		case c&0xe0 == 0x20: // a new size of the table; only before the fields
			if i, p, ok = readInt(p, 5); !ok || !first || i > defaultTableSize {
				return false
			}
			d.max = i
			d.evict(0)
			continue
		default:
			bits, kind := uint(4), uint8(kindOnce)
			if c&0x40 != 0 {
				bits, kind = 6, kindNew
			} else if c&0x10 != 0 {
				kind = kindSecret
			}
			if i, p, ok = readInt(p, bits); !ok {
				return false
			}
			var nameLen uint32
			if f, nameLen, p, ok = d.literal(p, i); !ok {
				return false
			}
			f.kind = kind
			if kind == kindNew {
				d.insert(&f, nameLen)
			}
		}
		first = false
		if b.size += f.size; b.size <= limit {
			b.add(f)
		} else if uint64(b.size) > bomb*uint64(limit) {
			return false
		}
	}
	return true
}

// literal reads the strings of a field whose name is at index i, or follows; n is
// the length of its name as text.
func (d *decoder) literal(p []byte, i uint32) (f field, n uint32, rest []byte, ok bool) {
	switch {
	case i == 0:
		if f.name, p, n, ok = readString(p); !ok {
			return f, 0, nil, false
		}
		d.words.text = appendText(d.words.text[:0], f.name)
		f.id = d.words.id(d.words.text)
	case i < uint32(len(staticTable)):
		f.static, f.id, n = uint8(i), d.words.static[i], uint32(len(staticTable[i].name))
	default:
		e := d.entry(i)
		if e == nil {
			return f, 0, nil, false
		}
		f.static, f.id, f.name, n = e.static, e.id, e.name, e.nameLen
	}
	var m uint32
	if f.value, p, m, ok = readString(p); !ok {
		return f, 0, nil, false
	}
	f.size = 32 + n + m
	return f, n, p, true
}

// insert puts a copy of f into the table, RFC 7541 section 4.4. f then points at the copy.
func (d *decoder) insert(f *field, nameLen uint32) {
	f.setHash()
	d.evict(f.size)
	if f.size > d.max {
		return
	}
	var e *entry
	if k := len(d.free); k > 0 {
		e = d.free[k-1]
		d.free = d.free[:k-1]
	} else {
		e = new(entry)
	}
	e.raw = append(append(e.raw[:0], f.name...), f.value...)
	e.field, e.nameLen = *f, nameLen
	e.kind = kindIndexed
	e.name, e.value = e.raw[:len(f.name):len(f.name)], e.raw[len(f.name):]
	d.size += e.size
	d.entries = append(d.entries, e)
}

// evict makes room for size bytes.
func (d *decoder) evict(size uint32) {
	for d.head < len(d.entries) && d.size+size > d.max {
		e := d.entries[d.head]
		d.entries[d.head] = nil
		d.head++
		d.size -= e.size
		d.evicted = append(d.evicted, e)
	}
	if d.head > 32 && 2*d.head > len(d.entries) {
		n := copy(d.entries, d.entries[d.head:])
		clear(d.entries[n:])
		d.entries, d.head = d.entries[:n], 0
	}
}

// encoder is the dynamic table that we fill at a peer, and writes header blocks
// for it.
type encoder struct {
	size, max   uint32
	first, next uint32    // entries first..next-1 live; ring[i mod len]
	ring        []encoded // a power of two
	index       []uint32  // by hash: the youngest entry, which knows the next older one
	smallest    uint32    // of the sizes the peer asked for since the last block
	resized     bool
}

type encoded struct {
	hash   uint64
	older  uint32 // entry with the same place in the index
	size   uint32
	split  uint32 // length of the name
	static uint8
	raw    []byte
}

// resize obeys the peer's SETTINGS_HEADER_TABLE_SIZE. More than the default is
// not used.
func (e *encoder) resize(n uint32) {
	if n = min(n, defaultTableSize); n == e.max && !e.resized {
		return
	}
	if !e.resized {
		e.smallest = n
	}
	e.smallest, e.max, e.resized = min(e.smallest, n), n, true
	e.evict(0)
}

// begin starts a block.
func (e *encoder) begin(b []byte) []byte {
	if e.resized {
		e.resized = false
		if e.smallest < e.max {
			// The table must have shrunk in between. To nothing, because some decoders take a
			// second size only while the table is empty.
			e.first, e.size = e.next, 0
			b = append(b, 0x20)
		}
		b = appendInt(b, 5, 0x20, e.max)
	}
	return b
}

// field writes f. One that recurs gets a place in the peer's table; one that has
// just entered its sender's is used if it is there by chance, and else passes by,
// so that values used once (trace ids) never push out useful ones.
func (e *encoder) field(b []byte, f *field) []byte {
	switch f.kind {
	case kindStatic:
		return append(b, 0x80|f.static)
	case kindIndexed, kindNew:
		if i := e.find(f); i > 0 {
			return appendInt(b, 7, 0x80, i)
		}
		if f.kind == kindIndexed && e.insert(f) {
			return appendLiteral(b, 6, 0x40, f)
		}
		return appendLiteral(b, 4, 0, f)
	case kindSecret:
		return appendLiteral(b, 4, 0x10, f)
	}
	return appendLiteral(b, 4, 0, f)
}

func appendLiteral(b []byte, n uint, first byte, f *field) []byte {
	b = appendInt(b, n, first, uint32(f.static))
	if f.static == 0 {
		b = append(b, f.name...)
	}
	return append(b, f.value...)
}

// find returns the index that stands for f, or 0.
func (e *encoder) find(f *field) uint32 {
	if e.first == e.next {
		return 0
	}
	i := e.index[int(f.hash)&(len(e.index)-1)]
	for i-e.first < e.next-e.first {
		x := &e.ring[int(i)&(len(e.ring)-1)]
		if x.hash == f.hash && x.static == f.static && bytes.Equal(x.raw[:x.split], f.name) && bytes.Equal(x.raw[x.split:], f.value) {
			return uint32(len(staticTable)) + e.next - 1 - i
		}
		i = x.older
	}
	return 0
}

// insert reports whether f has entered the table, as the peer will do when it reads it.
func (e *encoder) insert(f *field) bool {
	if f.size > e.max {
		return false // the peer would only empty its table
	}
	e.evict(f.size)
	if int(e.next-e.first) == len(e.ring) {
		e.grow()
	}
	x := &e.ring[int(e.next)&(len(e.ring)-1)]
	x.hash, x.size, x.static, x.split = f.hash, f.size, f.static, uint32(len(f.name))
	x.raw = append(append(x.raw[:0], f.name...), f.value...)
	e.link(x, e.next)
	e.next++
	e.size += f.size
	return true
}

// link puts entry i in front of those with the same place in the index.
func (e *encoder) link(x *encoded, i uint32) {
	at := &e.index[int(x.hash)&(len(e.index)-1)]
	x.older, *at = *at, i
}

func (e *encoder) evict(size uint32) {
	for e.first != e.next && e.size+size > e.max {
		e.size -= e.ring[int(e.first)&(len(e.ring)-1)].size
		e.first++
	}
}

func (e *encoder) grow() {
	old := e.ring
	e.ring = make([]encoded, max(8, 2*len(old))) // at most 4096/32
	e.index = make([]uint32, 2*len(e.ring))
	for i := range e.index {
		e.index[i] = e.first - 1 // no live entry
	}
	for i := e.first; i != e.next; i++ {
		x := &e.ring[int(i)&(len(e.ring)-1)]
		*x = old[int(i)&(len(old)-1)]
		e.link(x, i)
	}
}

// appendPortable writes a block that no table is needed to read: the form in
// which a block waits. Fields that recur are marked as such.
func appendPortable(b []byte, fields []field) []byte {
	for i := range fields {
		switch f := &fields[i]; f.kind {
		case kindStatic:
			b = append(b, 0x80|f.static)
		case kindIndexed:
			b = appendLiteral(b, 6, 0x40, f)
		case kindSecret:
			b = appendLiteral(b, 4, 0x10, f)
		default:
			b = appendLiteral(b, 4, 0, f)
		}
	}
	return b
}

// readPortable reads what appendPortable wrote.
func (d *decoder) readPortable(p []byte, b *block) {
	b.reset()
	for len(p) > 0 {
		var f field
		switch c := p[0]; {
		case c&0x80 != 0:
			f, _ = d.at(uint32(c & 0x7f))
			p = p[1:]
		default:
			bits, kind := uint(4), uint8(kindOnce)
			if c&0x40 != 0 {
				bits, kind = 6, kindIndexed
			} else if c&0x10 != 0 {
				kind = kindSecret
			}
			i, rest, _ := readInt(p, bits)
			f, _, p, _ = d.literal(rest, i)
			f.kind = kind
			if kind == kindIndexed {
				f.setHash()
			}
		}
		b.size += f.size
		b.add(f)
	}
}

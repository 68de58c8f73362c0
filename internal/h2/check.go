package h2

// checkRequest reports whether a block is a request, RFC 9113 section 8.3.1, and
// the length of its body, or -1 where that is not said.
func (b *block) checkRequest() (length int, ok bool) {
	const needed = 1<<nameMethod | 1<<nameScheme | 1<<namePath
	seen, length, regular := uint32(0), -1, false
	for i := range b.fields {
		f := &b.fields[i]
		switch f.id {
		case nameMethod, nameScheme, nameAuthority, namePath:
			if regular || seen&(1<<f.id) != 0 || f.id == namePath && f.empty() {
				return 0, false
			}
			seen |= 1 << f.id
		case nameContentLength:
			if length, ok = parseLength(f); !ok {
				return 0, false
			}
			regular = true
		default:
			if !f.allowed() {
				return 0, false
			}
			regular = true
		}
	}
	return length, seen&needed == needed
}

// checkAnswer reports whether a block is an answer's headers, or trailer, and its status.
func (b *block) checkAnswer(trailer bool) (status int, ok bool) {
	if trailer {
		return 0, b.checkTrailer()
	}
	var digits [4]byte
	for i := range b.fields {
		f := &b.fields[i]
		if f.id == nameStatus {
			text := f.appendValue(digits[:0])
			if i != 0 || len(text) != 3 || text[0] < '1' || text[0] > '5' {
				return 0, false
			}
			status = int(text[0]-'0')*100 + int(text[1]-'0')*10 + int(text[2]-'0')
		} else if f.id < nameStatus && f.id != nameOther || !f.allowed() {
			return 0, false
		}
	}
	return status, status > 0
}

// checkTrailer reports whether a block may end a stream.
func (b *block) checkTrailer() bool {
	for i := range b.fields {
		if f := &b.fields[i]; f.id >= nameMethod && f.id <= nameStatus || !f.allowed() {
			return false
		}
	}
	return true
}

// allowed reports whether a header other than those of the request line may be there.
func (f *field) allowed() bool {
	switch f.id {
	case nameStatus, nameUnknownPseudo, nameOfConnection, nameInvalid:
		return false
	case nameTE:
		var b [16]byte
		return string(f.value) == trailersAsCode || string(f.appendValue(b[:0])) == "trailers"
	}
	return true
}

// trailersAsCode is the value of TE as nearly every client writes it.
const trailersAsCode = "\x86\x4d\x83\x35\x05\xb1\x1f"

func (f *field) empty() bool { return f.kind != kindStatic && len(f.value) == 1 }

func parseLength(f *field) (int, bool) {
	var b [24]byte
	n := 0
	text := f.appendValue(b[:0])
	if len(text) == 0 || len(text) > 15 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// grpcStatus returns the status in a trailer, or -1.
func (b *block) grpcStatus() int {
	f := b.find(nameGRPCStatus)
	if f == nil {
		return -1
	}
	var text [8]byte
	n := 0
	for _, c := range f.appendValue(text[:0]) {
		if c < '0' || c > '9' || n > 99 {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

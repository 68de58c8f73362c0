package h2

import (
	"encoding/base64"
	"slices"
	"strings"
)

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
			if length, ok = parseLength(f); !ok || b.again.has(nameContentLength) {
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

// malformed returns what the client is told if a server of gRPC refuses the headers in hand, which are a
// call's, as INTERNAL. Nodes do not get them: that code counts against the node that answers it.
func (c *Call) malformed() *Status {
	b := &c.f.block
	switch {
	case !b.find(nameMethod).isPost():
		return malformed(":method", "it must be POST")
	case !b.find(nameScheme).isHTTP():
		return malformed(":scheme", "it must be http or https")
	case b.again.has(nameHost):
		return malformed("host", "it must come once")
	case !b.names.has(nameAuthority) && !b.names.has(nameHost):
		return malformed(":authority", "it must name the host that is called")
	case b.again.has(nameTimeout):
		return malformed("grpc-timeout", "it must come once")
	case c.deadline == 0 && b.names.has(nameTimeout):
		return malformed("grpc-timeout", "it must be at most 8 digits and one of H, M, S, m, u and n")
	case !b.names.has(nameBinary):
		return nil
	}
	for i := range b.fields {
		if f := &b.fields[i]; f.id == nameBinary && !c.f.isBase64(f) {
			name := string(appendText(nil, f.name))
			return malformed(name[:min(len(name), 64)], "it ends in -bin, so its value must be base64")
		}
	}
	return nil
}

func (f *field) isPost() bool {
	var b [8]byte
	return f.kind == kindStatic && f.static == staticPost || string(f.appendValue(b[:0])) == "POST"
}

func (f *field) isHTTP() bool {
	var b [8]byte
	if f.kind == kindStatic {
		return true // the table has no others
	}
	text := string(f.appendValue(b[:0]))
	return text == "http" || text == "https"
}

func malformed(name, rule string) *Status {
	return &Status{Code: internal, Message: "malformed header " + name + ": " + rule}
}

// isBase64 reports whether a value is that, with padding or without.
func (h *hand) isBase64(fd *field) bool {
	b := fd.appendValue(h.words.text[:0])
	h.words.text = slices.Grow(b, len(b))
	encoding := base64.RawStdEncoding
	if len(b)%4 == 0 {
		encoding = base64.StdEncoding
	}
	_, err := encoding.Decode(h.words.text[len(b):cap(h.words.text)], b)
	return err == nil
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

// undecodedTexts are what servers of gRPC answer, with INTERNAL, to a message that they
// cannot decode: those in C++ (YDB's own), in Go, and in Go in an older version.
var undecodedTexts = []string{"Unable to parse request", "grpc: failed to unmarshal the received message",
	"grpc: error unmarshalling request"}

// undecoded reports whether a trailer with INTERNAL says that the request cannot be decoded.
func (b *block) undecoded() bool {
	var name, text [128]byte
	for i := range b.fields {
		f := &b.fields[i]
		if f.id != nameOther || f.static > 0 || string(appendText(name[:0], f.name)) != "grpc-message" {
			continue
		}
		message := string(f.appendValue(text[:0]))
		return slices.ContainsFunc(undecodedTexts, func(known string) bool { return strings.HasPrefix(message, known) })
	}
	return false
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

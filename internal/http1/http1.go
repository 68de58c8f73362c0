// Package http1 reads ordinary requests of HTTP/1.1 out of bytes that have come, and writes their answers.
//
// It owns the choice of what is ordinary: a whole request of a modest size and of the plainest form.
// Everything else is for net/http, which then gets the same bytes: this is a shorter way for most
// requests, and no other server. What always holds: what Head and Body call whole, net/http's server
// would read as the same request (FuzzHead); each of them takes time linear in its bytes.
package http1

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"sync"
)

// What bounds the requests that are read here.
const (
	Most        = 16 << 10 // bytes of a request, its body included
	MostHead    = 8 << 10  // bytes of its head
	mostHeaders = 64       // lines of that
)

// State is what is to be done with the bytes that are here.
type State int

// The states.
const (
	Other State = iota // they are for net/http
	More               // what they are part of may be ordinary, and is not here yet
	Whole              // it is here
)

// ends is what a head ends with.
var ends = []byte("\r\n\r\n")

// readers are for ReadRequest, which wants one.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// Head reads the head of a request, of which the first old bytes were here before, when more was
// wanted. size is that of the head. The Body of the request is http.NoBody.
func Head(b []byte, old int) (r *http.Request, size int, state State) {
	if !begins(b) {
		return nil, 0, Other
	}
	from := max(0, old-len(ends)+1)
	at := bytes.Index(b[from:min(len(b), MostHead)], ends)
	switch {
	case at < 0 && (len(b) >= MostHead || hasBareLF(b)):
		return nil, 0, Other
	case at < 0:
		return nil, 0, More
	}
	size = from + at + len(ends)
	if !plain(b[:size]) {
		return nil, 0, Other
	}
	reader := readers.Get().(*bufio.Reader)
	reader.Reset(bytes.NewReader(b[:size]))
	r, err := http.ReadRequest(reader)
	if err != nil {
		return nil, 0, Other
	}
	r.Body = http.NoBody // it would read from there
	reader.Reset(nil)
	readers.Put(reader)
	if r.ContentLength < 0 || r.ContentLength > Most-int64(size) || r.URL.Host != "" || r.Close ||
		len(r.TransferEncoding) > 0 || len(r.Trailer) > 0 {
		return nil, 0, Other
	}
	return r, size, Whole
}

// hasBareLF reports whether a line of b ends with LF alone, which net/http takes for an end, too.
func hasBareLF(b []byte) bool {
	return bytes.Count(b, []byte("\n")) != bytes.Count(b, []byte("\r\n"))
}

// Body returns the body of a request from what follows its head.
func Body(r *http.Request, b []byte) (body []byte, state State) {
	switch n := int64(len(b)); {
	case n > r.ContentLength:
		return nil, Other // the next request follows
	case n < r.ContentLength:
		return nil, More
	}
	return b, Whole
}

// methods that an ordinary request may have.
var methods = []string{"POST ", "GET ", "PUT ", "DELETE "}

// begins reports whether b begins with one of them, or is the beginning of one.
func begins(b []byte) bool {
	for _, m := range methods {
		if n := min(len(b), len(m)); string(b[:n]) == m[:n] {
			return true
		}
	}
	return false
}

// plain reports whether a head is of such a form that there is no other way to read it: one Host, no header that says how
// the connection goes on, no byte beyond printable ASCII.
func plain(head []byte) bool {
	line, rest, _ := bytes.Cut(head[:len(head)-2], []byte("\r\n"))
	if !printable(line) || !bytes.HasSuffix(line, []byte(" HTTP/1.1")) || bytes.Count(line, []byte(" ")) != 2 {
		return false
	}
	hosts, lengths, all := 0, 0, 0
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if all++; all > mostHeaders || !ok || !token(name) || !printable(value) {
			return false
		}
		value = bytes.Trim(value, " ")
		switch n := string(name); {
		case strings.EqualFold(n, "Host"):
			if hosts++; !host(value) {
				return false
			}
		case strings.EqualFold(n, "Content-Length"):
			if lengths++; !digits(value) {
				return false
			}
		case strings.EqualFold(n, "Connection"):
			if !strings.EqualFold(string(value), "keep-alive") {
				return false
			}
		case strings.EqualFold(n, "Transfer-Encoding"), strings.EqualFold(n, "Trailer"), strings.EqualFold(n, "Upgrade"),
			strings.EqualFold(n, "Expect"):
			return false
		}
	}
	return hosts == 1 && lengths <= 1
}

// printable reports whether every byte is printable ASCII or a space.
func printable(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// token reports whether b is the name of a header, of letters, digits, - and _: more is allowed, and hardly used.
func token(b []byte) bool {
	for _, c := range b {
		if !alphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return len(b) > 0
}

// host reports whether b is a plain name or address, with or without a port.
func host(b []byte) bool {
	for _, c := range b {
		if !alphanumeric(c) && !strings.ContainsRune(".:-_[]", rune(c)) {
			return false
		}
	}
	return len(b) > 0
}

func digits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

package http1

import (
	"net/http"
	"strconv"
	"time"
)

// AppendHead appends the head of an answer. length is that of its body; negative: the body goes out in chunks. Close says that the
// connection ends after it.
func AppendHead(b []byte, status int, h http.Header, length int64, close bool) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	if text := http.StatusText(status); text != "" {
		b = append(b, text...)
	} else {
		b = strconv.AppendInt(append(b, "status code "...), int64(status), 10)
	}
	b = append(b, "\r\n"...)
	for name, values := range h {
		if name == "Content-Length" || name == "Connection" || name == "Date" || name == "Transfer-Encoding" {
			continue
		}
		b = appendHeader(b, name, values)
	}
	switch {
	case !HasBody(status):
	case length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	default:
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), length, 10), "\r\n"...)
	}
	b = append(time.Now().UTC().AppendFormat(append(b, "Date: "...), http.TimeFormat), "\r\n"...)
	if close {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

func appendHeader(b []byte, name string, values []string) []byte {
	for _, v := range values {
		b = append(append(append(append(b, name...), ": "...), oneLine(v)...), "\r\n"...)
	}
	return b
}

// HasBody reports whether answers of a status have a body, if an empty one (RFC 9110, 6.4.1).
func HasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// oneLine is v without what would begin another header.
func oneLine(v string) string {
	for i := range len(v) {
		if v[i] == '\r' || v[i] == '\n' {
			b := []byte(v)
			for j := i; j < len(b); j++ {
				if b[j] == '\r' || b[j] == '\n' {
					b[j] = ' '
				}
			}
			return string(b)
		}
	}
	return v
}

package http1

import (
	"errors"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// bufferSize is how much of a body is gathered before it goes out, in bytes.
const bufferSize = 4 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Writer writes one answer to a connection. It is for the goroutine of a handler, except for the deadline.
type Writer struct {
	Last func() // is called before the last bytes of the answer go out; nil: nothing is
	// whether the connection is to end after the answer, also if the handler does not say so;
	// asked before its head goes out. nil: no
	Close func() bool

	conn   net.Conn
	header http.Header
	status int      // 0: not said yet
	length int64    // of the body, as the headers say; negative: they do not
	wrote  int64    // of the body
	begun  bool     // the head has gone out
	timed  bool     // there is a deadline
	after  []string // names of headers that follow the body
	failed error
	buffer *[bufferSize]byte
	n      int // bytes in the buffer
}

// NewWriter returns a Writer for one answer. End must be called if the handler has returned.
func NewWriter(conn net.Conn) *Writer {
	return &Writer{conn: conn, header: make(http.Header, 4)}
}

// Header implements http.ResponseWriter.
func (w *Writer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Informational answers are dropped.
func (w *Writer) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status, w.length = status, -1
	for _, list := range w.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			w.after = append(w.after, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	if len(w.after) > 0 {
		return // only a body in chunks can have something behind it
	}
	if text := w.header.Get("Content-Length"); text != "" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
			w.length = n
		}
	}
}

// Write implements http.ResponseWriter.
func (w *Writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.failed != nil:
		return 0, w.failed
	case !HasBody(w.status):
		return 0, http.ErrBodyNotAllowed
	case w.length >= 0 && w.wrote+int64(len(p)) > w.length:
		return 0, http.ErrContentLength
	}
	w.wrote += int64(len(p))
	if w.n+len(p) > bufferSize {
		return len(p), w.send(p, false)
	}
	if w.buffer == nil {
		w.buffer = buffers.Get().(*[bufferSize]byte)
	}
	w.n += copy(w.buffer[w.n:], p)
	return len(p), nil
}

// FlushError is for http.ResponseController.
func (w *Writer) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return w.send(nil, false)
}

// SetReadDeadline is for http.ResponseController. All of the request is here.
func (w *Writer) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is for http.ResponseController.
func (w *Writer) SetWriteDeadline(t time.Time) error {
	w.timed = true
	return w.conn.SetWriteDeadline(t)
}

// closes reports whether the connection ends after the answer.
func (w *Writer) closes() bool { return w.header.Get("Connection") == "close" }

// send sends what is in the buffer, and more. end: it is all.
func (w *Writer) send(more []byte, end bool) error {
	if w.failed != nil {
		return w.failed
	}
	var out net.Buffers
	if !w.begun {
		w.begun = true
		if w.Close != nil && w.Close() {
			w.header.Set("Connection", "close")
		}
		if w.length < 0 && end && len(w.after) == 0 {
			w.length = w.wrote
		}
		head := w.header
		if len(w.after) > 0 {
			head = maps.Clone(head)
			for _, name := range w.after {
				delete(head, name)
			}
		}
		out = append(out, AppendHead(nil, w.status, head, w.length, w.closes()))
	}
	n := w.n + len(more)
	chunks := w.length < 0 && HasBody(w.status)
	if chunks && n > 0 {
		out = append(out, append(strconv.AppendInt(nil, int64(n), 16), "\r\n"...))
	}
	if w.n > 0 {
		out = append(out, w.buffer[:w.n])
	}
	if len(more) > 0 {
		out = append(out, more)
	}
	if chunks && n > 0 {
		out = append(out, []byte("\r\n"))
	}
	if chunks && end {
		last := []byte("0\r\n")
		for _, name := range w.after {
			last = appendHeader(last, name, w.header[name])
		}
		out = append(out, append(last, "\r\n"...))
	}
	w.n = 0
	if all := end || w.wrote == w.length; all && w.Last != nil {
		w.Last()
		w.Last = nil
	}
	if len(out) > 0 {
		_, w.failed = out.WriteTo(w.conn)
	}
	return w.failed
}

var errShort = errors.New("http1: less of the body was written than its headers say")

// End ends the answer. last: the connection is to end.
func (w *Writer) End() (last bool) {
	w.WriteHeader(http.StatusOK)
	err := w.send(nil, true)
	if err == nil && HasBody(w.status) && w.wrote < w.length {
		err = errShort
	}
	if w.timed {
		_ = w.conn.SetWriteDeadline(time.Time{})
	}
	if w.buffer != nil {
		buffers.Put(w.buffer)
		w.buffer = nil
	}
	return err != nil || w.closes()
}

package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestWriter(t *testing.T) {
	long := strings.Repeat("0123456789", 1000)
	for _, c := range []struct {
		name    string
		serve   http.HandlerFunc
		status  int
		body    string
		chunked bool
		last    bool
	}{
		{"nothing is said", func(http.ResponseWriter, *http.Request) {}, 200, "", false, false},
		{"a short body", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "short") }, 200, "short", false, false},
		{"a status", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(404)
			w.WriteHeader(200)
			_, _ = io.WriteString(w, "no")
		}, 404, "no", false, false},
		{"no body", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
				t.Errorf("a body of 204: %v", err)
			}
		}, 204, "", false, false},
		{"a long body of a length that is known", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10000")
			_, _ = io.WriteString(w, long[:10])
			_, _ = io.WriteString(w, long[10:])
			if _, err := io.WriteString(w, "x"); err != http.ErrContentLength {
				t.Errorf("more than that: %v", err)
			}
		}, 200, long, false, false},
		{"a long body of a length that is not", func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(long); i += 100 {
				_, _ = io.WriteString(w, long[i:i+100])
			}
		}, 200, long, true, false},
		{"parts that go out", func(w http.ResponseWriter, _ *http.Request) {
			control := http.NewResponseController(w)
			for _, part := range []string{"a", "b"} {
				_, _ = io.WriteString(w, part)
				if err := errors.Join(control.SetWriteDeadline(time.Now().Add(time.Hour)),
					control.SetReadDeadline(time.Time{}), control.Flush()); err != nil {
					t.Error(err)
				}
			}
		}, 200, "ab", true, false},
		{"something follows the body", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-After, X-Never")
			_, _ = io.WriteString(w, "x")
			w.Header().Set("X-After", "said")
		}, 200, "x", true, false},
		{"the connection closes", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "x")
		}, 200, "x", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := &pipe{}
			w := NewWriter(conn)
			c.serve(w, nil)
			if last := w.End(); last != c.last {
				t.Errorf("the last: %v; want %v", last, c.last)
			}
			res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(conn.out.Bytes())), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != c.status || string(body) != c.body ||
				(len(res.TransferEncoding) > 0) != c.chunked || res.Close != c.last {
				t.Errorf("%d, %d bytes, %v, %v, closes: %v", res.StatusCode, len(body), err, res.TransferEncoding, res.Close)
			}
			if after := res.Trailer.Get("X-After"); (after == "said") != (c.name == "something follows the body") ||
				res.Header.Get("X-After") != "" {
				t.Errorf("behind the body: %v, in the head: %v", res.Trailer, res.Header)
			}
		})
	}
}

// An answer that is shorter than its headers say, or that cannot be written, is the last of its connection.
func TestWriterBreaks(t *testing.T) {
	w := NewWriter(&pipe{})
	w.Header().Set("Content-Length", "10")
	_, _ = io.WriteString(w, "short")
	if !w.End() {
		t.Error("half a body is taken for all of it")
	}
	w = NewWriter(broken{&pipe{}})
	_, _ = io.WriteString(w, "short")
	if !w.End() {
		t.Error("an answer that could not be written is taken for one")
	}
}

type broken struct{ *pipe }

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

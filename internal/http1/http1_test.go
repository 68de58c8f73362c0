package http1

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ask = "POST /v1/query?x=1 HTTP/1.1\r\nHost: localhost:7401\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{  }"

// read reads a request of which nothing was here before, or so much of its head.
func read(b []byte, old int) (r *http.Request, body []byte, state State) {
	r, size, state := Head(b, old)
	if state == Whole {
		body, state = Body(r, b[size:])
	}
	return r, body, state
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       State
	}{
		{"a request with a body", ask, Whole},
		{"one without", "GET /v1/status HTTP/1.1\r\nHost: a\r\nConnection: Keep-Alive\r\n\r\n", Whole},
		{"nothing", "", More},
		{"the beginning of a method", "PO", More},
		{"half a head", ask[:40], More},
		{"half a body", ask[:len(ask)-1], More},
		{"all but the last byte of the head", ask[:len(ask)-5], More},
		{"one request and the beginning of the next", ask + "P", Other},
		{"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Other},
		{"HTTP/1.0", "GET / HTTP/1.0\r\nHost: a\r\n\r\n", Other},
		{"another method", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", Other},
		{"a method in lower case", "get / HTTP/1.1\r\nHost: a\r\n\r\n", Other},
		{"no host", "GET / HTTP/1.1\r\n\r\n", Other},
		{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", Other},
		{"a host of a strange form", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Other},
		{"an absolute target", "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Other},
		{"the connection closes", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", Other},
		{"it is upgraded", "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n", Other},
		{"it asks first", strings.Replace(ask, "Content-Type", "Expect: 100-continue\r\nContent-Type", 1), Other},
		{"a body in chunks", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Other},
		{"two lengths", strings.Replace(ask, "Content-Type", "Content-Length: 4\r\nContent-Type", 1), Other},
		{"a length that is no number", strings.Replace(ask, "Length: 4", "Length: +4", 1), Other},
		{"a long body", strings.Replace(ask, "Length: 4", "Length: 16385", 1), Other},
		{"a line that goes on", "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", Other},
		{"a space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", Other},
		{"lines that end with LF alone", "GET / HTTP/1.1\nHost: a\n\r\n\r\n", Other},
		{"such lines to the end", "GET / HTTP/1.1\nHost: a\n\n", Other},
		{"a line that has come but for its LF", "GET / HTTP/1.1\r", More},
		{"a byte that is not ASCII", "GET / HTTP/1.1\r\nHost: a\r\nX: \xff\r\n\r\n", Other},
		{"a control character", "GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n", Other},
		{"many headers", "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a:\r\n", mostHeaders) + "\r\n", Other},
		{"as many as there may be", "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a:\r\n", mostHeaders-1) + "\r\n", Whole},
		{"more than there is room for", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", MostHead), Other},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, body, got := read([]byte(c.text), 0)
			if got != c.want {
				t.Fatalf("state %d; want %d", got, c.want)
			}
			if got == Whole && c.text == ask &&
				(r.Host != "localhost:7401" || r.URL.Path != "/v1/query" || r.URL.RawQuery != "x=1" ||
					string(body) != "{  }" || r.Header.Get("Content-Type") != "application/json") {
				t.Errorf("read as %+v with %q", r, body)
			}
		})
	}
}

// It makes no difference in which parts a head comes.
func TestHeadInParts(t *testing.T) {
	whole := strings.Index(ask, "{")
	for size := 1; size < 9; size++ {
		for old, n := 0, 0; ; old = n {
			n = min(n+size, len(ask))
			_, at, state := Head([]byte(ask[:n]), old)
			if n >= whole {
				if state != Whole || at != whole {
					t.Errorf("in parts of %d: %d, after %d bytes", size, state, at)
				}
				break
			}
			if state != More {
				t.Fatalf("in parts of %d, with %d bytes here: %d", size, n, state)
			}
		}
	}
}

// pipe is a connection that net/http's server reads from a text, and that keeps what it writes.
type pipe struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
	end chan struct{}
}

func (p *pipe) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	if err == io.EOF {
		<-p.end
	}
	return n, err
}
func (p *pipe) Write(b []byte) (int, error)      { return p.out.Write(b) }
func (p *pipe) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (p *pipe) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (p *pipe) SetDeadline(time.Time) error      { return nil }
func (p *pipe) SetReadDeadline(time.Time) error  { return nil }
func (p *pipe) SetWriteDeadline(time.Time) error { return nil }
func (p *pipe) Close() error                     { return nil }

// once is a listener of one connection.
type once struct {
	conn chan net.Conn
	net.Listener
}

func (l *once) Accept() (net.Conn, error) {
	if c, ok := <-l.conn; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l *once) Close() error   { return nil }
func (l *once) Addr() net.Addr { return &net.TCPAddr{} }

// asServer reads a request with net/http's server; nil: it is none for its handler.
func asServer(t *testing.T, text []byte) (r *http.Request, body []byte) {
	conn := &pipe{in: bytes.NewReader(text), end: make(chan struct{})}
	l := &once{conn: make(chan net.Conn, 1)}
	l.conn <- conn
	ended := make(chan struct{}, 1)
	s := http.Server{
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, got *http.Request) {
			if r == nil {
				r = got
				body, _ = io.ReadAll(got.Body)
			}
			close(conn.end)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed || state == http.StateIdle {
				select {
				case ended <- struct{}{}:
				default:
				}
			}
		},
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	<-ended
	close(l.conn)
	_ = s.Close()
	<-served
	return r, body
}

// FuzzHead compares what is read here with what net/http's server makes of the same bytes.
func FuzzHead(f *testing.F) {
	for _, text := range []string{
		ask,
		"GET /v1/status HTTP/1.1\r\nHost: a\r\nConnection: Keep-Alive\r\n\r\n",
		"GET //a/../b?c=%2f HTTP/1.1\r\nHost: [::1]:80\r\nX:\r\nx: y \r\nPragma: no-cache\r\n\r\n",
		"PUT /a%2Fb HTTP/1.1\r\nhOST:a\r\ncontent-length:0\r\n\r\n",
		"DELETE * HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, body, state := read(text, 0)
		if state != Whole {
			return
		}
		want, wantBody := asServer(t, text)
		if want == nil {
			t.Fatal("net/http's server does not take it")
		}
		if r.Method != want.Method || !reflect.DeepEqual(r.URL, want.URL) || r.Host != want.Host ||
			r.RequestURI != want.RequestURI || r.ContentLength != want.ContentLength || r.Close != want.Close ||
			!reflect.DeepEqual(r.Header, want.Header) || !bytes.Equal(body, wantBody) {
			t.Errorf("read as %+v with %q;\nnet/http's server: %+v with %q", r, body, want, wantBody)
		}
	})
}

func TestAppendHead(t *testing.T) {
	h := http.Header{"Content-Type": {"text/plain"}, "X-Two": {"a", "b"}, "X-Lines": {"a\r\nSet-Cookie: b"},
		"Content-Length": {"7"}, "Date": {"never"}}
	for _, c := range []struct {
		status int
		length int64
		close  bool
		want   map[string][]string
	}{
		{200, 5, false, map[string][]string{"Content-Length": {"5"}}},
		{200, -1, true, map[string][]string{"Transfer-Encoding": {"chunked"}, "Connection": {"close"}}},
		{204, 0, false, map[string][]string{}},
		{304, 0, false, map[string][]string{}},
		{599, 0, false, map[string][]string{"Content-Length": {"0"}}},
	} {
		head := string(AppendHead(nil, c.status, h, c.length, c.close))
		line, rest, _ := strings.Cut(head, "\r\n")
		if want := http.StatusText(c.status); !strings.HasPrefix(line, "HTTP/1.1 ") || !strings.Contains(line, want) {
			t.Errorf("the first line is %q", line)
		}
		got := map[string][]string{}
		for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\r\n\r\n"), "\r\n") {
			name, value, _ := strings.Cut(line, ": ")
			got[textproto.CanonicalMIMEHeaderKey(name)] = append(got[name], value)
		}
		if date, err := http.ParseTime(got["Date"][0]); err != nil || time.Since(date) > time.Minute {
			t.Errorf("the date is %q", got["Date"])
		}
		delete(got, "Date")
		c.want["Content-Type"], c.want["X-Two"], c.want["X-Lines"] = h["Content-Type"], h["X-Two"], []string{"a  Set-Cookie: b"}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d: the headers are %v; want %v", c.status, got, c.want)
		}
	}
}

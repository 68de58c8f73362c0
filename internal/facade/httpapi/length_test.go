package httpapi

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// overHTTP2 sends a request over a connection of its own, and returns the status of the answer; "": the stream was reset.
func overHTTP2(t *testing.T, address string, body string, headers ...string) (status string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	headers = append([]string{":scheme", "http", ":authority", "localhost"}, headers...)
	for i := 0; i < len(headers); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: headers[i], Value: headers[i+1]})
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: body == ""})
	if body != "" {
		_ = framer.WriteData(1, true, []byte(body))
	}
	for {
		switch frame, err := framer.ReadFrame(); f := frame.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return ""
		default:
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestBodiesThatAreNotAsLongAsTheySay: a request whose body has another length than its headers say is malformed (RFC 9113, 8.1.1), and
// must keep nothing. net/http takes one that ends with its headers, and looks at the first of several lengths only.
func TestBodiesThatAreNotAsLongAsTheySay(t *testing.T) {
	f := facadetest.Shelf(t)
	s := compose(t, facadetest.Small(), core.Deps{Driver: f}, facadetest.Entry(t, "values=t key=id:Uint64 value=v:String"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := s.api.Server()
	server.Protocols = new(http.Protocols)
	server.Protocols.SetUnencryptedHTTP2(true)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	s.Run(t, f, func() {
		_ = server.Close()
		serving.Wait()
	})
	const length = "content-length"
	put := []string{":method", "PUT", ":path", "/v1/kv/values?id=1"}
	begin := []string{":method", "POST", ":path", "/v1/tx/begin", "content-type", core.MediaJSON}
	for _, tc := range []struct {
		name, body string
		request    []string
		lengths    []string
		status     string
	}{
		{"no body of a put", "", put, []string{length, "5"}, "400"},
		{"no body of a call that needs none", "", begin, []string{length, "2"}, "400"},
		{"no body of a get", "", []string{":method", "GET", ":path", "/v1/status"}, []string{length, "2"}, "400"},
		{"two lengths", "{}", begin, []string{length, "2", length, "1"}, "400"},
		{"one length twice", "{}", begin, []string{length, "2", length, "2"}, "200"},
		{"a shorter body", "{}", begin, []string{length, "3"}, "400"},
		{"a longer body", "{}", begin, []string{length, "1"}, ""},
		{"no body, as it says", "", begin, []string{length, "0"}, "200"},
		{"a body without a length", "{}", begin, nil, "200"},
		{"an empty value", "", put, []string{length, "0"}, "204"},
	} {
		if got := overHTTP2(t, listener.Addr().String(), tc.body, append(tc.request, tc.lengths...)...); got != tc.status {
			t.Errorf("%s: got %q; want %q", tc.name, got, tc.status)
		}
	}
}

package wire

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// inflater reads compressed messages of a shard's calls.
type inflater struct {
	source bytes.Reader
	gzip   gzip.Reader
	zlib   io.ReadCloser // nil: not needed yet
}

var (
	errEncoding = refusal{codes.Unimplemented, Ydb.StatusIds_UNSUPPORTED, "ydb-sidecar: a request on a session may be compressed by gzip or deflate, and its grpc-encoding is neither"}
	errPacked   = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the compressed request cannot be read"}
	errInflated = refusal{codes.ResourceExhausted, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the request is longer than 64 MiB"}

	errTooLong = errors.New("longer than is allowed")
)

// canInflate reports whether the value of a header grpc-encoding is one of those that are
// known, https://github.com/grpc/grpc/blob/master/doc/compression.md.
func canInflate(encoding string) bool { return encoding == "gzip" || encoding == "deflate" }

// inflate appends a message of such an encoding to b, at most so many bytes. It returns
// what could be read also with an error.
func (i *inflater) inflate(b []byte, encoding string, packed []byte, most int) ([]byte, error) {
	i.source.Reset(packed)
	defer i.source.Reset(nil)
	var from io.Reader = &i.gzip
	var err error
	switch {
	case encoding == "gzip":
		err = i.gzip.Reset(&i.source)
	case i.zlib != nil:
		from, err = i.zlib, i.zlib.(zlib.Resetter).Reset(&i.source, nil)
	default: // it is zlib's format, RFC 1950
		i.zlib, err = zlib.NewReader(&i.source)
		from = i.zlib
	}
	start := len(b)
	for err == nil {
		b = slices.Grow(b, 512)
		var n int
		n, err = from.Read(b[len(b):cap(b)])
		if b = b[:len(b)+n]; len(b)-start > most {
			return b[:start+most], errTooLong
		}
	}
	if errors.Is(err, io.EOF) {
		return b, nil
	}
	return b, err
}

// inflate puts a compressed first message in its place as it was before, once it is whole.
func (f *frames) inflate(c *h2.Call, k *call) error {
	encoding := string(c.Header(headerEncoding))
	if !canInflate(encoding) {
		return k.refuse(errEncoding)
	}
	if _, whole := c.Raw(); !whole {
		return h2.ErrNeedWhole
	}
	err := c.Replace(func(b, message []byte) ([]byte, error) {
		return f.inflater.inflate(b, encoding, message, f.server.h2.Message)
	})
	switch {
	case errors.Is(err, errTooLong):
		return k.refuse(errInflated)
	case err != nil:
		return k.refuse(errPacked)
	}
	return nil
}

// headOfMessage is how much of a compressed message is looked at for its session's id, which
// comes at its start: bytes, inflated.
const headOfMessage = 4 << 10

// head is Call.Message for a call that goes on as it came: a compressed message is inflated as
// far as it is needed to find a session's id.
func (f *frames) head(c *h2.Call) (message []byte, whole bool) {
	if !c.Compressed() {
		return c.Message()
	}
	packed, whole := c.Raw()
	encoding := string(c.Header(headerEncoding))
	if !canInflate(encoding) {
		return nil, true
	}
	message, err := f.inflater.inflate(f.scratch[:0], encoding, packed, headOfMessage)
	f.scratch = message
	return message, whole || errors.Is(err, errTooLong)
}

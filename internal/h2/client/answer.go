package client

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// Going implements h2.Listener. From then on the goroutine says of no error that the call was not sent.
func (k *call) Going() bool {
	if !k.conn.ready.Load() {
		k.conn.ready.Store(true)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		return false
	}
	k.sent = true
	if !k.whole && len(k.in.b) == 0 {
		k.wakeLocked() // it may wait for that
	}
	return true
}

// Header implements h2.Listener.
func (k *call) Header(h h2.Headers, last bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := &k.statuses
	if st.http == 0 {
		st.code = -1
		k.body.recycle() // the node has the request, or does not want it; a stream may go on for long
		k.request.Body = nil
	}
	h.Each(func(name, value []byte) {
		switch string(name) {
		case ":status":
			for _, d := range value {
				st.http = st.http*10 + int(d-'0')
			}
		case "content-type":
			if kind, ok := bytes.CutPrefix(value, []byte("application/grpc")); !ok || len(kind) > 0 && kind[0] != '+' && kind[0] != ';' {
				st.bad = string(value)
			}
		case "grpc-status":
			st.code = number(value)
		case "grpc-message":
			st.message = decodePercent(string(value))
		case "grpc-status-details-bin":
			st.details = string(value)
		case "grpc-encoding", "grpc-accept-encoding": // no metadata: answers are never compressed here
		default:
			md := &k.header
			if last {
				md = &k.trailer
			}
			if *md == nil {
				*md = metadata.MD{}
			}
			(*md)[string(name)] = append((*md)[string(name)], decoded(string(name), string(value)))
		}
	})
	if !last && !st.isGRPC() && k.err == nil {
		k.err = st.foreign() // what follows is no message
	}
}

// decoded is the value of a header as metadata has it.
func decoded(name, value string) string {
	if !strings.HasSuffix(name, "-bin") {
		return value
	}
	if b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "=")); err == nil {
		return string(b)
	}
	return value
}

// Data implements h2.Listener.
func (k *call) Data(p []byte) (ahead bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone || k.err != nil {
		return false
	}
	k.in.add(p)
	if h := k.o.headers; h != nil && h.Arrived != nil {
		h.Arrived()
	}
	for len(k.in.b)-k.ripe >= prefix {
		size := int(binary.BigEndian.Uint32(k.in.b[k.ripe+1:]))
		if size > k.conn.target.Message {
			k.err = &Error{
				Status: status.Newf(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", size, k.conn.target.Message),
			}
			break
		}
		if lacks := k.ripe + prefix + size - len(k.in.b); lacks > 0 {
			k.in.b = slices.Grow(k.in.b, min(lacks, grown)) // once, not at every frame
			break
		}
		k.ripe += prefix + size
	}
	return k.waiting
}

// Flush implements h2.Listener.
func (k *call) Flush() {
	defer k.tellInline(true) // without the lock
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.err != nil && !k.over: // of a message that is too large, or of what is no answer of gRPC
		k.over = true
		if !k.gone {
			k.gone = true
			go k.conn.client.shard.Together((*leaving)(k)) // it is rare, and this is the shard's turn
		}
		k.wakeLocked()
	case k.ripe > 0 && !k.whole:
		k.wakeLocked()
	}
}

// End implements h2.Listener.
func (k *call) End(o *h2.Outcome, st *h2.Status) {
	if o.NotRun() {
		k.conn.ready.Store(false)
	}
	defer k.tellInline(true)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	if k.err == nil { // else a message was too large
		k.err, k.again = k.ended(o, st)
	}
	k.endLocked()
}

// ended is what came of the call.
func (k *call) ended(o *h2.Outcome, st *h2.Status) (err error, again bool) {
	here := o.End == h2.AnsweredBy
	lost := uint64(0)
	if o.Node != nil && o.Node.Finished() {
		lost = o.Node.Number()
	}
	s := &k.statuses
	switch {
	case o.End == h2.Refused:
		return &Error{Status: status.New(codes.Unavailable, "the node, or the connection to it, did not take the call"),
			NotSent: true, Lost: lost}, k.tries < maxTries || k.o.patient
	case st != nil:
		silent := o.End == h2.Lost && o.Node != nil && o.Node.Err() == h2.ErrSilent
		if silent && k.conn.silent != nil {
			k.conn.silent(o.Node)
		}
		return &Error{Status: status.New(codes.Code(st.Code), st.Message), NotSent: o.NotRun(), Here: here,
			Silent: silent, Lost: lost, Reset: o.End == h2.Broken}, false
	case o.End == h2.Cancelled:
		return &Error{Status: status.New(codes.Canceled, "the call was cancelled"), NotSent: o.NotRun(), Here: true}, false
	case s.code >= 0 && s.isGRPC():
		return k.answered()
	case !s.isGRPC():
		return s.foreign(), false
	}
	return &Error{Status: status.New(codes.Internal, "server closed the stream without sending trailers")}, false
}

// isGRPC reports whether the headers are those of an answer of gRPC.
func (s *statusOf) isGRPC() bool { return s.http == 200 && s.bad == "" }

// foreign is the error of an answer that is not of gRPC.
func (s *statusOf) foreign() error {
	if s.http != 200 {
		return &Error{Status: status.Newf(codeOfHTTP(s.http), "unexpected HTTP status code received from server: %d", s.http)}
	}
	return &Error{Status: status.Newf(codes.Unknown, "unexpected content-type %.100q", s.bad)}
}

// answered is what the trailer says.
func (k *call) answered() (err error, again bool) {
	s := &k.statuses
	switch {
	case k.ripe < len(k.in.b):
		return &Error{Status: status.New(codes.Internal, "the answer ends within a message")}, false
	case s.code == 0:
		return nil, false
	}
	if s.details != "" {
		p := new(spb.Status)
		if b, err := base64.RawStdEncoding.DecodeString(
			strings.TrimRight(s.details, "="),
		); err == nil && proto.Unmarshal(b, p) == nil && int(p.Code) == s.code {
			return &Error{Status: status.FromProto(p)}, false
		}
	}
	return &Error{Status: status.New(codes.Code(s.code), s.message)}, false
}

// codeOfHTTP is https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md.
func codeOfHTTP(code int) codes.Code {
	switch code {
	case 400:
		return codes.Internal
	case 401:
		return codes.Unauthenticated
	case 403:
		return codes.PermissionDenied
	case 404:
		return codes.Unimplemented
	case 429, 502, 503, 504:
		return codes.Unavailable
	}
	return codes.Unknown
}

// number reads a grpc-status; what is none is UNKNOWN.
func number(text []byte) int {
	n := 0
	for _, d := range text {
		if d < '0' || d > '9' || n > 99 {
			return int(codes.Unknown)
		}
		n = 10*n + int(d-'0')
	}
	return n
}

// decodePercent reads a grpc-message.
func decodePercent(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if hi, lo := hex(s[i+1]), hex(s[i+2]); hi >= 0 && lo >= 0 {
				b = append(b, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func hex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// scripted is a node that reads one request and then does what a script says, frame by frame.
type scripted struct {
	script []byte
	wg     sync.WaitGroup
}

// serve serves connections until lis is closed. Each has the same script.
func (s *scripted) serve(lis net.Listener) {
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			s.talk(conn)
		})
	}
}

func (s *scripted) talk(conn net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	fr := http2.NewFramer(conn, conn)
	if fr.WriteSettings() != nil {
		return
	}
	id, err := readRequest(fr)
	if err != nil {
		return
	}
	s.wg.Go(func() { // what the client says from now on
		for {
			if _, err := fr.ReadFrame(); err != nil && !errors.As(err, new(http2.StreamError)) {
				return
			}
		}
	})
	s.play(fr, id)
}

// readRequest reads up to the end of a request, and returns its stream.
func readRequest(fr *http2.Framer) (id uint32, err error) {
	for id == 0 {
		frame, err := fr.ReadFrame()
		if err != nil {
			return 0, err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = fr.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = fr.WritePing(true, f.Data)
		case *http2.DataFrame:
			if f.StreamEnded() {
				id = f.StreamID
			}
		}
	}
	return id, nil
}

// play answers a request by the script.
func (s *scripted) play(fr *http2.Framer, id uint32) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	headers := func(end bool, pairs ...string) error {
		block.Reset()
		for i := 0; i < len(pairs); i += 2 {
			_ = encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
		}
		return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
	}
	message := func(n int) []byte {
		b, _ := proto.Marshal(say(strings.Repeat("m", n)))
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
	}
	for p := s.script; len(p) > 1; p = p[2:] {
		arg := int(p[1])
		var err error
		switch p[0] % 14 {
		case 0, 1:
			err = headers(false, ":status", "200", "content-type", "application/grpc")
		case 2, 3:
			err = fr.WriteData(id, false, message(arg*7))
		case 4:
			err = headers(true, "grpc-status", strconv.Itoa(arg%18), "grpc-message", "no%20way", "x-units", "7")
		case 5:
			err = headers(true, "grpc-status", "0")
		case 6:
			err = headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status",
				strconv.Itoa(arg%18), "grpc-message", "alone")
		case 7:
			err = headers(arg%2 == 0, ":status", []string{"404", "503", "401", "500", "403", "429"}[arg%6], "content-type", "text/html")
		case 8:
			whole := message(arg)
			err = fr.WriteData(id, false, whole[:len(whole)/2])
		case 9:
			err = fr.WriteRSTStream(id, http2.ErrCode(arg%14))
		case 10:
			err = fr.WriteGoAway(0, http2.ErrCodeNo, nil)
		case 11:
			return
		case 12:
			err = fr.WriteData(id, true, message(arg))
		case 13:
			err = fr.WriteData(id, false, append(message(arg), message(arg)...))
		}
		if err != nil {
			return
		}
	}
}

// told is what a caller is told.
type told struct {
	code     codes.Code
	text     string
	messages []int // their lengths
	units    string
}

// ask makes a call, unary or a stream.
func ask(ctx context.Context, c grpc.ClientConnInterface, isUnary bool) (t told) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if isUnary {
		out := new(text)
		var trailer metadata.MD
		err := c.Invoke(ctx, unary, say("q"), out, grpc.Trailer(&trailer))
		t.code, t.text, t.units = status.Code(err), status.Convert(err).Message(), strings.Join(trailer.Get("x-units"), ",")
		if err == nil {
			t.messages = []int{len(out.Value)}
		}
		return t
	}
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streaming)
	if err == nil {
		if err = s.SendMsg(say("q")); err == nil || errors.Is(err, io.EOF) {
			err = s.CloseSend()
		}
	}
	for err == nil {
		out := new(text)
		if err = s.RecvMsg(out); err == nil {
			t.messages = append(t.messages, len(out.Value))
		}
	}
	if err == io.EOF {
		err = nil
	}
	t.code, t.text = status.Code(err), status.Convert(err).Message()
	if s != nil {
		t.units = strings.Join(s.Trailer().Get("x-units"), ",")
	}
	return t
}

// FuzzAsGRPC has grpc-go's client and this one make the same call to a node that does the same, and compares what
// their callers are told.
func FuzzAsGRPC(f *testing.F) {
	for _, seed := range []string{
		"\x00\x00\x02\x05\x05\x00", "\x00\x00\x02\x05\x02\x09\x04\x0b", "\x06\x05", "\x07\x01",
		"\x00\x00\x08\x64\x05\x00", "\x00\x00\x02\x01\x09\x02",
		"\x0a\x00", "\x00\x00\x0c\x05", "\x0b\x00", "\x00\x00\x0d\x05\x05\x00", "\x09\x07", "\x09\x08", "\x04\x03",
		"\x02\x03", "\x00\x00\x05\x00", "\x00\x00\x00\x00\x05\x00",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, script []byte, isUnary bool) {
		if len(script) > 40 {
			return
		}
		// What comes behind the end of an answer may break the connection before grpc-go has told of the end.
		var got, want told
		for range 5 {
			if got, want = both(t, script, isUnary); same(got, want) {
				return
			}
		}
		t.Errorf("script %q, unary %t:\n got %+v\nwant %+v", script, isUnary, got, want)
	})
}

// both are what this client and grpc-go's tell of the same call.
func both(t *testing.T, script []byte, isUnary bool) (got, want told) {
	lis := bufconn.Listen(1 << 20)
	node := &scripted{script: script}
	node.wg.Go(func() { node.serve(lis) })
	own := New(h2.Default())
	got = ask(t.Context(), own.Connect(Target{Dial: lis.DialContext, Authority: "node", UserAgent: "test", Message: 64_000_000}), isUnary)
	own.Close()
	oracle, err := grpc.NewClient(
		"passthrough:///node",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64_000_000)),
	)
	if err != nil {
		t.Fatal(err)
	}
	want = ask(t.Context(), oracle, isUnary)
	oracle.Close()
	lis.Close()
	node.wg.Wait()
	return got, want
}

// same tells whether callers are told the same, except what is done otherwise on purpose.
func same(got, want told) bool {
	switch {
	case want.code == codes.Canceled && got.code == codes.Unavailable:
		want.code = got.code // a node that stops cancels what is left: who is told so tries again
	case strings.HasPrefix(got.text, "the node broke the protocol"):
		return true // grpc-go lets some of it pass
	case want.code != codes.OK && len(want.messages) == 0 && strings.HasPrefix(got.text, "unexpected "):
		return true // grpc-go first reads the body of what is no answer of gRPC
	}
	if got.code != codes.OK {
		got.units, want.units = "", "" // one of the two may have ended before the trailer
	}
	return fmt.Sprint(got.messages) == fmt.Sprint(want.messages) && got.code == want.code && got.units == want.units
}

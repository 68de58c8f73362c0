package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// A stream that a node resets when it has the whole request may have run, whatever the code of HTTP/2 stands for in gRPC.
func TestResetCallsMayHaveRun(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeEnhanceYourCalm, http2.ErrCodeFlowControl,
		http2.ErrCodeInadequateSecurity, http2.ErrCodeInternal} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go resetAll(l, code)
		over := client.New(h2.Default())
		defer over.Close()
		own := over.Connect(client.Target{Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}, Message: 1 << 20})
		defer own.Close()
		other, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		for name, conn := range map[string]grpc.ClientConnInterface{"h2": own, "grpc": other} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := conn.Invoke(ctx, "/a.B/C", new(emptypb.Empty), new(emptypb.Empty))
			s, e := failure(ctx, err, false)
			cancel()
			s.Kind = cluster.CallExecute
			if v := ydbstatus.Judge(
				s,
			); s.Code != codes.Internal || e.Code != codes.Internal || !v.Unknown || !v.DropSession || v.Retry == ydbstatus.RetryAlways {
				t.Errorf("%v, %s: %v: %+v", code, name, err, v)
			}
		}
	}
}

// resetAll resets each stream once its request has ended.
func resetAll(l net.Listener, code http2.ErrCode) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			r := bufio.NewReader(conn)
			if _, err := io.ReadFull(r, make([]byte, len(http2.ClientPreface))); err != nil {
				return
			}
			f := http2.NewFramer(conn, r)
			err := f.WriteSettings()
			for err == nil {
				var frame http2.Frame
				if frame, err = f.ReadFrame(); err != nil {
					return
				}
				switch x := frame.(type) {
				case *http2.SettingsFrame:
					if !x.IsAck() {
						err = f.WriteSettingsAck()
					}
				case *http2.PingFrame:
					if !x.IsAck() {
						err = f.WritePing(true, x.Data)
					}
				case *http2.DataFrame:
					if x.StreamEnded() {
						err = f.WriteRSTStream(x.StreamID, code)
					}
				}
			}
		}()
	}
}

package upstream

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// grpcLine is a line of grpc-go. What is silent is found by watchSilence.
type grpcLine struct {
	*grpc.ClientConn
	d *Driver
	c *nodeConn
}

func (l grpcLine) hurry()  { l.ResetConnectBackoff() }
func (l grpcLine) ask()    { l.d.check(l.c) }
func (l grpcLine) shelve() {}                // its flights are cut, and its sockets are mute
func (l grpcLine) close()  { _ = l.Close() } // its only error says that it was closed before

// lineGRPC prepares a connection; nothing is sent before the first call.
func (d *Driver) lineGRPC(c *nodeConn) (line, error) {
	n := c.node
	creds := insecure.NewCredentials()
	if conf := d.tlsFor(n.Address, n.TLSName); conf != nil {
		creds = credentials.NewTLS(conf)
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return d.Dial(ctx, n) }
	options := []grpc.DialOption{
		grpc.WithContextDialer(c.wire.dialer(dial)),
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: d.config.KeepAlive, Timeout: d.config.KeepAliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
			MinConnectTimeout: d.config.ConnectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDisableRetry(), // only one layer retries: Client
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(h2.Default().Idle), // attach streams keep it busy
		grpc.WithUserAgent(d.build),
	}
	cc, err := grpc.NewClient("passthrough:///"+n.Address, options...)
	if err != nil {
		return nil, err
	}
	return grpcLine{cc, d, c}, nil
}

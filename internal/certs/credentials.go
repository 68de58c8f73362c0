package certs

import (
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials are those of a server of gRPC. If a connection has a method Shaken(), that is called once its handshake is over, well or not.
func Credentials(config *tls.Config) credentials.TransportCredentials {
	return telling{credentials.NewTLS(config)}
}

type telling struct {
	credentials.TransportCredentials
}

func (t telling) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := t.TransportCredentials.ServerHandshake(conn)
	if h, ok := conn.(interface{ Shaken() }); ok {
		h.Shaken()
	}
	return secure, info, err
}

func (t telling) Clone() credentials.TransportCredentials {
	return telling{t.TransportCredentials.Clone()}
}

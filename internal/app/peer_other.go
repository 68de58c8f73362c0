//go:build !linux

package app

import (
	"net"
	"os"
)

// unixPeer trusts the mode of the socket and its directory.
func unixPeer(*net.UnixConn) (uint32, error) { return uint32(os.Getuid()), nil }

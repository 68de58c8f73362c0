//go:build !linux

package takeover

import (
	"errors"
	"net"
	"os"
)

// PeerUser returns errors.ErrUnsupported.
func PeerUser(*net.UnixConn) (uid uint32, err error) { return 0, errors.ErrUnsupported }

// Peer returns errors.ErrUnsupported.
func Peer(*net.UnixConn) (uid uint32, pid int32, err error) { return 0, 0, errors.ErrUnsupported }

func pair() (a, b *os.File, err error) { return nil, nil, errors.ErrUnsupported }

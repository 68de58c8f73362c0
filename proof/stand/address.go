package stand

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Ports below those that the kernel gives to a program that asks for any, and above those that the
// development cluster takes.
const firstPort, endPort = 30000, 32768

var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(endPort - firstPort)) }

// FreeAddress returns an address on the loopback interface at which no program listens, another
// one each time: for a program that does not say where it listens, and for one that goes away
// and comes back. The kernel gives its port to no other meanwhile.
func FreeAddress() (string, error) {
	port, err := FreePorts(1)
	return at(port), err
}

// FreePorts returns the first of some ports in a row at which no program listens on the loopback
// interface, as FreeAddress does for one.
func FreePorts(n int) (first int, err error) {
	const window = endPort - firstPort
	for range window {
		first := firstPort + int((nextPort.Add(uint32(n))-uint32(n))%uint32(window-n+1))
		if free(first, n) {
			return first, nil
		}
	}
	return 0, errors.New("find a free port: none from 30000 to 32767")
}

func free(first, n int) bool {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", at(port))
		if err != nil || l.Close() != nil {
			return false
		}
	}
	return true
}

func at(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

package stand

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Ports below those that the kernel gives to whoever asks for any, and above those that the
// development cluster takes.
const firstPort, endPort = 30000, 32768

var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(endPort - firstPort)) }

// FreeAddress returns an address on the loopback interface at which nobody listens, another
// one each time: for a program that does not say where it listens, and for one that goes away
// and comes back. The kernel gives its port to nobody meanwhile.
func FreeAddress() (string, error) {
	for range endPort - firstPort {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+int(nextPort.Add(1)%(endPort-firstPort))))
		if l, err := net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", errors.New("find a free port: none from 30000 to 32767")
}

package admin

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// tcpPeer returns the user of the program at the other end of a TCP connection
// that was made on this machine, as the kernel's table of sockets tells it.
func tcpPeer(remote string, local net.Addr) (uid uint32, err error) {
	client, err := netip.ParseAddrPort(remote)
	if err != nil {
		return 0, err
	}
	if local == nil {
		return 0, errors.New("no local address")
	}
	server, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.Open(name)
		if err != nil {
			continue // no IPv6
		}
		uid, err := owner(table, client, server)
		table.Close()
		if err == nil {
			return uid, nil
		}
	}
	return 0, errors.New("it does not run here")
}

// owner looks in a table of the form of /proc/net/tcp for the socket that is
// bound to local and connected to remote.
func owner(table io.Reader, local, remote netip.AddrPort) (uid uint32, err error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid ...
		f := strings.Fields(lines.Text())
		if len(f) < 8 || f[3] != "01" {
			// Only an established socket has its user beside it: what the program
			// has closed belongs to nobody and reads as root's.
			continue
		}
		if (f[1] == hex4(local) && f[2] == hex4(remote)) || (f[1] == hex16(local) && f[2] == hex16(remote)) {
			n, err := strconv.ParseUint(f[7], 10, 32)
			return uint32(n), err
		}
	}
	return 0, errors.New("not found")
}

// hex4 and hex16 write an address as the kernel does in tables of IPv4 and IPv6:
// words of four bytes in the order of the machine. "" if it is not of that kind.
func hex4(a netip.AddrPort) string {
	if !a.Addr().Unmap().Is4() {
		return ""
	}
	b := a.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}

func hex16(a netip.AddrPort) string {
	b := a.Addr().As16()
	var text strings.Builder
	for i := 0; i < 16; i += 4 {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(b[i:]))
	}
	return fmt.Sprintf("%s:%04X", text.String(), a.Port())
}

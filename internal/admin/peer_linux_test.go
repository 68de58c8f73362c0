//go:build amd64 || arm64

package admin

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// The table is one of a little-endian machine.
func TestOwner(t *testing.T) {
	const header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(local, remote, state string, uid int) string {
		return fmt.Sprintf("   7: %s %s %s 00000000:00000000 00:00000000 00000000 %5d        0 12345 1 ffff 20 0 0 10 -1\n",
			local, remote, state, uid)
	}
	client, server := netip.MustParseAddrPort("127.0.0.1:40000"), netip.MustParseAddrPort("127.0.0.1:7402")
	client6, server6 := netip.MustParseAddrPort("[::1]:40000"), netip.MustParseAddrPort("[::1]:7402")
	const c, s = "0100007F:9C40", "0100007F:1CEA"
	const c6, s6 = "00000000000000000000000001000000:9C40", "00000000000000000000000001000000:1CEA"
	const mapped, mappedServer = "0000000000000000FFFF00000100007F:9C40", "0000000000000000FFFF00000100007F:1CEA"
	for _, tc := range []struct {
		name          string
		table         string
		local, remote netip.AddrPort
		uid           uint32
		found         bool
	}{
		{"found", line(s, c, "01", 1) + line(c, s, "01", 1000), client, server, 1000, true},
		{"ipv6", line(c6, s6, "01", 1000), client6, server6, 1000, true},
		{"a_client_that_speaks_ipv4_over_ipv6", line(mapped, mappedServer, "01", 1000), client, server, 1000, true},
		{"only_our_side", line(s, c, "01", 1000), client, server, 0, false},
		{"another_port", line("0100007F:9C41", s, "01", 1000), client, server, 0, false},
		{"closed_by_its_program", line(c, s, "04", 0), client, server, 0, false},
		{"in_time_wait", line(c, s, "06", 0), client, server, 0, false},
		{"nonsense", "x\n\n1 2 3\n", client, server, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			uid, err := owner(strings.NewReader(header+tc.table), tc.local, tc.remote)
			if uid != tc.uid || (err == nil) != tc.found {
				t.Errorf("owner = %d, %v; want %d, found: %v", uid, err, tc.uid, tc.found)
			}
		})
	}
}

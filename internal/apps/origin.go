package apps

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// HeaderOrigin is the metadata in which the data path says of a call that it hands to the server in this process where
// that comes from. What a client says in this header goes nowhere.
const HeaderOrigin = "x-sidecar-connection"

// Origin is where a call comes from.
type Origin struct {
	Connection uint64         // a number that no other one of this process has; 0: unknown
	User       uint32         // the user that the client's program runs as, if Local
	Local      bool           // the kernel has said who User is: the call came over a Unix socket
	Remote     netip.AddrPort // address of the client; zero: it has none, or it is unknown

	Certificate *Certificate // of the client, verified; nil: none
}

// From sets the address of the client, if it is one of IP.
func (o *Origin) From(client net.Addr) {
	if a, ok := client.(*net.TCPAddr); ok {
		o.Remote = a.AddrPort()
	}
}

// MostOrigin is how many bytes the value of HeaderOrigin has at most, without a certificate and without the zone of an address.
const MostOrigin = 31 + 1 + 47

// Append appends o as the value of HeaderOrigin.
func (o Origin) Append(to []byte) []byte {
	to = strconv.AppendUint(to, o.Connection, 10)
	if o.Local {
		to = strconv.AppendUint(append(to, ' '), uint64(o.User), 10)
	}
	if o.Remote.IsValid() {
		to = o.Remote.AppendTo(append(to, '@'))
	}
	if o.Certificate != nil {
		to = append(append(to, ';'), o.Certificate.text...)
	}
	return to
}

// ParseOrigin is the inverse of Append. What is not understood is unknown.
func ParseOrigin(value string) (o Origin) {
	value, certificate, shown := strings.Cut(value, ";")
	if shown {
		o.Certificate = parseCertificate(certificate)
	}
	value, address, _ := strings.Cut(value, "@")
	o.Remote, _ = netip.ParseAddrPort(address)
	number, user, _ := strings.Cut(value, " ")
	o.Connection, _ = strconv.ParseUint(number, 10, 64)
	if uid, err := strconv.ParseUint(user, 10, 32); err == nil {
		o.User, o.Local = uint32(uid), true
	}
	return o
}

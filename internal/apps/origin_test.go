package apps

import (
	"math"
	"net/netip"
	"testing"
)

func TestOriginsComeThrough(t *testing.T) {
	for _, o := range []Origin{{}, {Connection: 7}, {Connection: math.MaxUint64, User: math.MaxUint32, Local: true},
		{Connection: 1, Local: true}, {Connection: 2, Remote: netip.MustParseAddrPort("192.0.2.7:4711")},
		{Connection: math.MaxUint64, User: math.MaxUint32, Local: true,
			Remote: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535")},
	} {
		text := o.Append(nil)
		if got := ParseOrigin(string(text)); got != o || len(text) > MostOrigin {
			t.Errorf("%+v comes through %q as %+v", o, text, got)
		}
	}
	for _, text := range []string{"", "x", "1 -5", "1 4294967296", "1 2 3", " ", "99999999999999999999"} {
		if o := ParseOrigin(text); o.Local {
			t.Errorf("%q names a user: %+v", text, o)
		}
	}
}

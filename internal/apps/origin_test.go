package apps

import (
	"math"
	"testing"
)

func TestOriginsComeThrough(t *testing.T) {
	for _, o := range []Origin{{}, {Connection: 7}, {Connection: math.MaxUint64, User: math.MaxUint32, Local: true},
		{Connection: 1, Local: true}} {
		text := o.Append(nil)
		if got := ParseOrigin(string(text)); got != o || len(text) > 31 {
			t.Errorf("%+v comes through %q as %+v", o, text, got)
		}
	}
	for _, text := range []string{"", "x", "1 -5", "1 4294967296", "1 2 3", " ", "99999999999999999999"} {
		if o := ParseOrigin(text); o.Local {
			t.Errorf("%q names a user: %+v", text, o)
		}
	}
}

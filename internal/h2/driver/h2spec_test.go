package driver

import (
	"net"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// All of h2spec's cases pass, strict ones too, and none is skipped.
func TestH2Spec(t *testing.T) {
	addr, shard, _ := forward(t, nil, func(*Shard) []*Upstream { return nil })
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	c := &config.Config{Host: host, Port: number, Path: "/", Timeout: 2 * time.Second, MaxHeaderLen: 4000, Strict: true}
	passed := 0
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(c) // prints
		passed += group.PassedCount
		if group.FailedCount+group.SkippedCount > 0 {
			t.Errorf("%s: %d failed, %d skipped", group.Name, group.FailedCount, group.SkippedCount)
		}
	}
	if passed != 146 {
		t.Errorf("%d cases have passed; there are 146", passed)
	}
	if s := shard.Stats(); s.Buffered != 0 || s.Held != 0 {
		t.Errorf("after the last case: %+v", s)
	}
}

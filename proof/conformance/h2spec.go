package conformance

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// h2specCases is how many h2spec has, strict ones included.
const h2specCases = 146

// H2Spec runs all of h2spec's cases, strict ones too, against a server in plaintext,
// and prints them. The error says how many have failed or were skipped.
func H2Spec(address string) error {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	port, err := net.LookupPort("tcp", text)
	if err != nil {
		return err
	}
	// No case waits for the end of the timeout: it is for a server that does not answer at all.
	c := &config.Config{Host: host, Port: port, Path: "/", Timeout: time.Minute, MaxHeaderLen: 4000, Strict: true}
	passed := 0
	var errs []error
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(c)
		passed += group.PassedCount
		if group.FailedCount+group.SkippedCount > 0 {
			errs = append(errs, fmt.Errorf("%s: %d failed, %d skipped", group.Name, group.FailedCount, group.SkippedCount))
		}
	}
	if passed != h2specCases {
		errs = append(errs, fmt.Errorf("%d cases of h2spec have passed; there are %d", passed, h2specCases))
	}
	return errors.Join(errs...)
}

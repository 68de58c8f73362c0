package core

import "github.com/ydb-sidecar/sidecar/internal/memguard"

// TooMuch is the fault of a call for which there is no memory; nil: there is some.
func TooMuch(why string) error {
	if why == "" {
		return nil
	}
	return Faultf(CodeMemory, "%s", why)
}

// TakeRequest takes n bytes for what a request itself needs. The fault of one that is too large for all of the memory is that of a limit,
// since it would be rejected every time. Others are those of TooMuch: a reply, for example, may be smaller the next time.
func TakeRequest(r *memguard.Reservation, n int) error {
	why := r.Take(n)
	if why != "" && !r.Fits(n) {
		return Faultf(CodeLimit, "%s", why)
	}
	return TooMuch(why)
}

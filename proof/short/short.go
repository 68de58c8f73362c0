// Package short says what `make check` leaves to `make test`, which runs every
// test whole. It owns the two ways to be shorter under -short: fewer rounds of
// the same test, and no run of a test that holds a machine rather than logic.
// What always holds: without -short nothing is left out.
package short

import "testing"

// Of is full, or few under -short.
func Of(full, few int) int {
	if testing.Short() {
		return min(full, few)
	}
	return full
}

// Skip ends the test under -short, and says why.
func Skip(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("in make test only: " + why)
	}
}

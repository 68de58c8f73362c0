package core

import "testing"

func TestParameterNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "A9": true, "_": true, "order_id": true, "Z": true, "z": true,
		"": false, "9a": false, "$a": false, "a b": false, "a;": false, "é": false, "@": false, "[": false, "`": false, "{": false,
	} {
		if got := isName(name); got != want {
			t.Errorf("%q: %v; want %v", name, got, want)
		}
	}
}

package yql

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFields(t *testing.T) {
	for _, c := range []struct {
		name, message string
		want          []string
	}{
		{"nothing", "", nil},
		{"texts", "\x0a\x01a\x12\x00\x0a\x02bc", []string{"1 a", "2 ", "1 bc"}},
		{"numbers_between_them", "\x08\x7f\x0a\x01a\x15\x01\x02\x03\x04", []string{"1, no text", "1 a", "2, no text"}},
		{"a_group", "\x0b\x08\x01\x0c\x0a\x01a", []string{"1, no text", "1 a"}},
		{"cut_off_in_a_text", "\x0a\x01a\x0a\x02b", []string{"1 a", "0, no text"}},
		{"cut_off_in_a_tag", "\x0a\x01a\x80", []string{"1 a", "0, no text"}},
		{"field_number_0", "\x0a\x01a\x02\x01b", []string{"1 a", "0, no text"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for number, b := range Fields([]byte(c.message)) {
				if b == nil {
					got = append(got, fmt.Sprintf("%d, no text", number))
				} else {
					got = append(got, fmt.Sprintf("%d %s", number, b))
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for range Fields([]byte("\x0a\x01a\x0a\x01b")) {
		break // which is no fault
	}
}

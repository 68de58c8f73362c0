package short

import (
	"flag"
	"testing"
)

func TestShort(t *testing.T) {
	was := flag.Lookup("test.short").Value.String()
	defer func() { _ = flag.Set("test.short", was) }()
	for _, on := range []string{"false", "true"} {
		if err := flag.Set("test.short", on); err != nil {
			t.Fatal(err)
		}
		want, ran := 60, false
		if on == "true" {
			want = 6
		}
		if got := Of(60, 6); got != want {
			t.Errorf("short %s: %d rounds; want %d", on, got, want)
		}
		if got := Of(3, 6); got != 3 {
			t.Errorf("short %s: %d rounds of 3", on, got)
		}
		t.Run(on, func(t *testing.T) {
			Skip(t, "a machine")
			ran = true
		})
		if ran != (on == "false") {
			t.Errorf("short %s: the test ran: %v", on, ran)
		}
	}
}

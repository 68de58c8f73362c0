package audit

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEveryActHasALine(t *testing.T) {
	var out strings.Builder
	l := New(slog.New(slog.NewTextHandler(&out, nil)))
	for range 3 * Rate {
		l.Acted(Deed{Who: "uid 0, pid 5", What: "POST /drain?mode=off", From: "admin.socket", Outcome: "200"})
	}
	if n := strings.Count(out.String(),
		`msg="an operator acted" who="uid 0, pid 5" what="POST /drain?mode=off" from=admin.socket outcome=200`+"\n"); n != 3*Rate {
		t.Errorf("%d lines; want %d:\n%s", n, 3*Rate, out.String())
	}
}

func TestDenialsHaveARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := New(slog.New(slog.NewTextHandler(&out, nil)))
		for range 3 * Rate {
			l.Denied(Deed{App: "shop", What: "Execute"})
		}
		if n := strings.Count(out.String(), "msg=denied app=shop what=Execute\n"); n != Rate {
			t.Errorf("%d lines; want %d", n, Rate)
		}
		time.Sleep(time.Second)
		l.Denied(Deed{App: "shop", What: "Execute"})
		if !strings.HasSuffix(out.String(), "denials_without_a_line=20\n") {
			t.Errorf("the last line does not count those before: %s", out.String())
		}
	})
}

func TestLinesOfLongNamesAreShort(t *testing.T) {
	var out strings.Builder
	l := New(slog.New(slog.NewTextHandler(&out, nil)))
	l.Denied(Deed{App: "shop", What: "/" + strings.Repeat("ä", 10_000)})
	if n := len(out.String()); n > 2*mostText {
		t.Errorf("a line of %d bytes: %s", n, out.String())
	}
}

func TestNilWritesNothing(*testing.T) {
	var l *Log
	l.Acted(Deed{})
	l.Denied(Deed{})
}

package upstream

import (
	"testing"
	"testing/synctest"
)

// A session on which a statement left something goes to nobody else.
func TestSessionsWithSomethingOnThemAreNotUsedAgain(t *testing.T) {
	for text, clean := range map[string]bool{
		"SELECT 1":                        true,
		"CREATE TEMP TABLE t (id Uint64)": false,
		"--!syntax_pg\nSET x TO y":        false,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 1, nil)
			s, _ := b.mustOpen(1)
			stream, err := s.Execute(t.Context(), statement(text))
			for err == nil {
				_, err = stream.Next()
			}
			if !isEOF(err) || s.clean() != clean {
				t.Errorf("%q: %v; clean %v", text, err, s.clean())
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

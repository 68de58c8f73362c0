package upstream

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shipped is Default, with the client that the environment names: all tests hold for both.
func shipped() Config {
	c := Default()
	c.Client = cmp.Or(os.Getenv("UPSTREAM_CLIENT"), c.Client)
	return c
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// textLog logs everything into w.
func textLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

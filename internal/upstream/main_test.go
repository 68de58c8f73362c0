package upstream

import (
	"errors"
	"io"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

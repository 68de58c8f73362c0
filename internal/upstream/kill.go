package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
)

// ErrKilled is why calls on a session fail that was killed.
var ErrKilled = errors.New("the session was killed by an operator")

// Kill ends the session whoever has it: the call that runs on it is cut, further
// ones fail, and the session is deleted on its node, which rolls back. It may be
// called beside the driving goroutine, and is Close for the rest.
func (s *Session) Kill(ctx context.Context) error {
	s.killed.Store(true)
	if h := s.running.Load(); h != nil {
		h.cut(ErrKilled)
	}
	return s.Close(ctx)
}

// Hash is a short name of the session that does not give its id away.
func (s *Session) Hash() string {
	sum := sha256.Sum256([]byte(s.id))
	return hex.EncodeToString(sum[:6])
}

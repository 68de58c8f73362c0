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

// Hash is HashOf the session.
func (s *Session) Hash() string { return HashOf(s.id) }

// HashOf is a short name of the session of that id. It does not give the id away, which lets
// others use the session.
func HashOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:6])
}

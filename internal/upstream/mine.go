package upstream

import "sync"

// mine are the ids of the sessions that pools have: clients are to use none of them, and nodes show them.
type mine struct {
	mu  sync.RWMutex // guards all; taken last
	all map[string]struct{}
}

func (m *mine) add(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]struct{}{}
	}
	m.all[id] = struct{}{}
}

func (m *mine) drop(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, id)
}

// Mine reports whether a session of that id was opened for a pool and has not been closed.
func (w *watching) Mine(id []byte) bool {
	w.mine.mu.RLock()
	defer w.mine.mu.RUnlock()
	_, ok := w.mine.all[string(id)]
	return ok
}

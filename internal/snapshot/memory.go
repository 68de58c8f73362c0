package snapshot

import "github.com/ydb-sidecar/sidecar/internal/memguard"

// MemoryState is /state/memory.
type MemoryState struct {
	memguard.State
	Requests memguard.BudgetState `json:"requests"`
}

// MemoryState returns /state/memory.
func (s *Source) MemoryState() MemoryState { return MemoryState{s.Memory.State(), s.Requests.State()} }

package devcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Bridge"
)

// Pile is one of the parts of a cluster in bridge mode, each of which can carry the whole database.
type Pile struct {
	Name  string
	State Ydb_Bridge.PileState_State
}

// ParsePiles reads piles as the command line has them: a=PRIMARY,b=SYNCHRONIZED.
func ParsePiles(text string) ([]Pile, error) {
	var piles []Pile
	for _, one := range strings.Split(text, ",") {
		name, state, _ := strings.Cut(one, "=")
		p, err := newPile(name, state)
		if err != nil {
			return nil, err
		}
		piles = append(piles, p)
	}
	return piles, validatePiles(piles)
}

func newPile(name, state string) (Pile, error) {
	n, ok := Ydb_Bridge.PileState_State_value[state]
	if !ok || n == 0 {
		return Pile{}, fmt.Errorf("pile %q: state %q; must be PRIMARY, PROMOTED, SYNCHRONIZED, NOT_SYNCHRONIZED, SUSPENDED or DISCONNECTED",
			name, state)
	}
	return Pile{name, Ydb_Bridge.PileState_State(n)}, nil
}

func validatePiles(piles []Pile) error {
	seen := make(map[string]bool)
	for _, p := range piles {
		if p.Name == "" || seen[p.Name] {
			return fmt.Errorf("pile %q: each needs a name of its own", p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

// pile is that of a node; "" without piles.
func (c Config) pile(id uint32) string {
	if len(c.Piles) == 0 {
		return ""
	}
	return c.Piles[(int(id)-1)%len(c.Piles)].Name
}

// pileStates are those that discovery tells.
func (s *shared) pileStates() []*Ydb_Bridge.PileState {
	var states []*Ydb_Bridge.PileState
	if piles := s.piles.Load(); piles != nil {
		for _, p := range *piles {
			states = append(states, &Ydb_Bridge.PileState{PileName: p.Name, State: p.State})
		}
	}
	return states
}

// SetPiles gives piles new states. Those that are not named keep theirs.
func (c *Cluster) SetPiles(_ context.Context, states map[string]string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var piles []Pile
	if old := c.piles.Load(); old != nil {
		piles = slices.Clone(*old)
	}
	for name, state := range states {
		p, err := newPile(name, state)
		if err != nil {
			return badRequest("%v", err)
		}
		i := slices.IndexFunc(piles, func(p Pile) bool { return p.Name == name })
		if i < 0 {
			return notFound("no pile %q", name)
		}
		piles[i] = p
	}
	c.piles.Store(&piles)
	return nil
}

// SetPiles always fails: the command line refuses piles of nodes that are processes.
func (s *Supervisor) SetPiles(context.Context, map[string]string) error {
	return notFound("no piles with -processes")
}

func parsePileStates(body []byte) (map[string]string, error) {
	var states map[string]string
	if err := json.Unmarshal(body, &states); err != nil {
		return nil, badRequest(`body: %v; it is {"a":"SYNCHRONIZED","b":"PRIMARY"}`, err)
	}
	return states, nil
}

package routing

import (
	"slices"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// feed remembers who was told what. Router.mu guards it.
type feed struct {
	version     uint64 // of view; 0: none yet
	view        cluster.View
	subscribers []subscriber
}

type subscriber struct {
	f       func(cluster.View)
	version uint64 // the last one it was told
}

func (f *feed) add(call func(cluster.View)) {
	f.subscribers = append(f.subscribers, subscriber{f: call})
}

// publish makes v the view to tell, unless it is the one told last.
func (f *feed) publish(v cluster.View) {
	if f.version == 0 || v.Panic != f.view.Panic || v.Alone != f.view.Alone || !slices.Equal(v.Nodes, f.view.Nodes) {
		f.version++
		f.view = v
	}
}

// next returns the first subscriber that is behind, and what to tell it.
func (f *feed) next() (func(cluster.View), cluster.View, bool) {
	for i := range f.subscribers {
		if s := &f.subscribers[i]; s.version != f.version {
			s.version = f.version
			return s.f, f.view, true
		}
	}
	return nil, cluster.View{}, false
}

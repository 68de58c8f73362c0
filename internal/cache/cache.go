// Package cache is a typed, bounded view of go-cache, for what wants a time to
// live and is off the path of forwarded calls: declared parameter types, table
// descriptions, explain results, answers of discovery. Never for sessions,
// transactions or pools, which own resources.
//
// What always holds: a cache holds at most Config.Max entries of Config.Bytes
// bytes in all, the oldest leave first; an entry is never returned after its
// time; a key costs at most 64 bytes, however long the text it stands for; no
// goroutine runs except Run's caller's. Values are shared by all readers, who must not change them.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	gocache "github.com/patrickmn/go-cache"
)

// Config bounds a cache.
type Config struct {
	Max   int           // entries; at least 1
	Bytes int           // of all entries, with what each takes besides; 0: only Max counts
	TTL   time.Duration // of an entry, from Set; at least 1ms
}

// perEntry is what an entry takes besides its value, in bytes: its key, its places in the map and in the order.
const perEntry = 256

// Validate reports a fault of c.
func (c Config) Validate() error {
	if c.Max < 1 || c.Bytes < 0 || c.TTL < time.Millisecond {
		return fmt.Errorf("cache of %d entries and %d bytes for %v; need at least 1 of no less than 0 for 1ms", c.Max, c.Bytes, c.TTL)
	}
	return nil
}

// Cache holds values of one type by text. It is safe for concurrent use.
type Cache[V any] struct {
	config Config
	items  *gocache.Cache

	mu    sync.Mutex // guards what follows, and every write to items
	order []string   // keys from the oldest Set to the newest; may name keys that are gone, or twice
	size  int        // bytes of all entries
}

// entry is a value as it is kept.
type entry[V any] struct {
	value V
	size  int
}

// New returns an empty cache; it panics when c is not valid.
func New[V any](c Config) *Cache[V] {
	if err := c.Validate(); err != nil {
		panic("cache: " + err.Error())
	}
	if c.Bytes == 0 {
		c.Bytes = math.MaxInt
	}
	// Interval 0: go-cache's own janitor is stopped by a finalizer only; Run does its work.
	out := &Cache[V]{config: c, items: gocache.New(c.TTL, 0)}
	out.items.OnEvicted(func(_ string, v any) { out.size -= v.(entry[V]).size }) // whoever writes to items holds mu
	return out
}

// Get returns the value of key, if it is there and its time is not over.
func (c *Cache[V]) Get(key string) (V, bool) {
	v, ok := c.items.Get(short(key))
	if !ok {
		var none V
		return none, false
	}
	return v.(entry[V]).value, true
}

// Set stores a value for the time to live, in place of an older one.
func (c *Cache[V]) Set(key string, value V) { c.SetSized(key, value, 0) }

// SetSized does what Set does with a value of that size in bytes. A value of more than a
// quarter of Config.Bytes is not kept: it would drive out too many others.
func (c *Cache[V]) SetSized(key string, value V, size int) {
	key = short(key)
	size += perEntry
	c.mu.Lock()
	defer c.mu.Unlock()
	if size > c.config.Bytes/4 {
		c.items.Delete(key)
		return
	}
	old, had := c.items.Get(key)
	if had {
		c.size -= old.(entry[V]).size // readers find the old value until the new one is there
	} else {
		c.items.Delete(key) // an expired one still counts
		c.order = append(c.order, key)
	}
	c.items.SetDefault(key, entry[V]{value, size})
	c.size += size
	// An expired entry still counts until it is deleted, so this bounds memory.
	for (c.items.ItemCount() > c.config.Max || c.size > c.config.Bytes) && len(c.order) > 0 {
		oldest := c.order[0]
		c.order = c.order[1:]
		c.items.Delete(oldest)
	}
	if len(c.order) > 2*c.config.Max {
		c.compactLocked()
	}
}

// Delete forgets a key.
func (c *Cache[V]) Delete(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.items.Delete(short(key))
}

// Len is the number of entries, expired ones included until they are swept.
func (c *Cache[V]) Len() int { return c.items.ItemCount() }

// Bytes is what the entries take, expired ones included until they are swept.
func (c *Cache[V]) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// Run sweeps expired entries until ctx ends.
func (c *Cache[V]) Run(ctx context.Context) error {
	tick := time.NewTicker(c.config.TTL)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.sweep()
		}
	}
}

func (c *Cache[V]) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compactLocked()
}

// compactLocked drops expired entries, keys that are gone, and the later of two mentions.
func (c *Cache[V]) compactLocked() {
	c.items.DeleteExpired() // one that order does not name could not make room
	live := make(map[string]bool, len(c.order))
	kept := make([]string, 0, len(c.order))
	for _, key := range c.order {
		if _, ok := c.items.Get(key); ok && !live[key] {
			live[key] = true
			kept = append(kept, key)
		}
	}
	c.order = kept
}

// longKey is where keys begin to be replaced by their hash: statements may be
// megabytes.
const longKey = 64

func short(key string) string {
	if len(key) < longKey {
		return key
	}
	// A short key is never 64 bytes long, so the two kinds cannot meet.
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(key), len(key))) // it only reads; a copy may be megabytes
	return hex.EncodeToString(sum[:])
}

package pool

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"

	settings "github.com/ydb-sidecar/sidecar/internal/config" // tests have a function config
)

// maxSessions bounds Config.Max: the number of a session in a stack has 16 bits.
const maxSessions = 60_000

// Config bounds a pool.
//
// Wide: one field for each setting.
type Config struct {
	// Largest number of sessions at a time: opening, live and closing; 1 to 60000
	Max int `yaml:"max"`
	// Largest number of sessions on one node. 0: half of pool.max, rounded up, or the node's fair share of
	// pool.max if that is more
	MaxPerNode int `yaml:"max_per_node"`
	// Number of sessions that stay open when idle and are opened ahead of need; 0 to pool.max
	Min int `yaml:"min"`
	// Largest number of waiting callers, all classes together; 1 to 1000000
	Queue int `yaml:"queue"`
	// Longest wait of a caller in the queue, whatever its deadline. 0: no limit
	QueueAge time.Duration `yaml:"queue_age"`
	// Wait above which callers are rejected, once callers of their app have waited for 100ms without a
	// pause. Class batch is exempt. Set it to about the time of a usual call. 0: off
	QueueTarget time.Duration `yaml:"queue_target"`
	// Reject at once calls that cannot finish by their deadline, judged by the time of the same work
	// before and by the wait in the queue. Also reject calls that would wait longer than their work takes,
	// once 12.5 % of their app's calls that reach the queue get no session for 100ms or more. Class batch
	// is exempt from the second rule
	Shed bool `yaml:"shed"`
	// Idle time after which a session is closed, up to 20 % later. 0: never
	Idle time.Duration `yaml:"idle"`
	// Age at which a session is closed: at 80 % to 105 % of this, so that not all close at once. 0: never
	Age time.Duration `yaml:"age"`
	// Longest time for opening a session. After 5 % of it the pool opens another session elsewhere
	CreateTimeout time.Duration `yaml:"create_timeout"`
	// Largest number of sessions that open at a time on one node, and four times as many in all. After
	// failures, and on a node that returns, it begins with 1; 1 to 1000
	CreateBurst int `yaml:"create_burst"`
	// Longest time for deleting a session on its node. Deletions that wait for others there have ten times
	// as long in all, while the node answers. Until then they count against the limits
	DeleteTimeout time.Duration `yaml:"delete_timeout"`
	// Percent of pool.max that may move to other nodes per second when the spread is uneven, at least one
	// session. 0 to 100; 0: none
	MoveRate int `yaml:"move_rate"`
	// Adapt the number of sessions in use to latency and OVERLOADED, so that many sidecars share a weak
	// cluster; pool.max stays the limit
	Adaptive bool `yaml:"adaptive"`
	// Smallest number of sessions that pool.adaptive always allows in use; 1 to 60000, and never more than
	// pool.max
	AdaptiveFloor int    `yaml:"adaptive_floor"`
	Shares        Shares `yaml:"shares"` // Smallest shares of the classes that wait
}

// Shares are the percentages of the sessions handed to the queue that a class
// gets at least while it has somebody waiting. The system class needs none, it
// goes first. What is left goes to the highest class that waits.
type Shares struct {
	// Smallest percent of the sessions given to the queue that class interactive gets while it waits, at
	// least 1
	Interactive int `yaml:"interactive"`
	// Smallest percent of the sessions given to the queue that class normal gets while it waits, at least
	// 1
	Normal int `yaml:"normal"`
	// Smallest percent of the sessions given to the queue that class batch gets while it waits, at least
	// 1; all three at most 90
	Batch int `yaml:"batch"`
}

// Default returns the settings of a pool for one application host.
func Default() Config {
	return Config{
		Max:           50,
		Queue:         1000,
		QueueAge:      time.Minute,
		Shed:          true,
		Idle:          5 * time.Minute,
		Age:           time.Hour,
		CreateTimeout: 5 * time.Second,
		CreateBurst:   16,
		DeleteTimeout: 2 * time.Second,
		MoveRate:      20,
		AdaptiveFloor: 2,
		Shares:        Shares{Interactive: 20, Normal: 10, Batch: 5},
	}
}

// Validate returns all faults of c, joined, each naming its setting.
func (c Config) Validate() error {
	var errs []error
	fault := func(bad bool, setting, format string, args ...any) {
		if bad {
			errs = append(errs, settings.Faultf(setting, format, args...))
		}
	}
	fault(c.Max < 1 || c.Max > maxSessions, "max", " = %d; must be 1 to %d", c.Max, maxSessions)
	fault(c.MaxPerNode < 0, "max_per_node", " = %d; must be >= 0", c.MaxPerNode)
	fault(c.Min < 0 || c.Min > c.Max, "min", " = %d; must be 0 to max = %d", c.Min, c.Max)
	fault(c.Queue < 1 || c.Queue > 1_000_000, "queue", " = %d; must be 1 to 1000000", c.Queue)
	fault(c.QueueAge != 0 && c.QueueAge < time.Millisecond, "queue_age", " = %v; must be 0 or at least 1ms", c.QueueAge)
	fault(c.QueueTarget != 0 && c.QueueTarget < time.Millisecond, "queue_target", " = %v; must be 0 or at least 1ms", c.QueueTarget)
	fault(c.Idle != 0 && c.Idle < 100*time.Millisecond, "idle", " = %v; must be 0 or at least 100ms", c.Idle)
	fault(c.Age != 0 && c.Age < 100*time.Millisecond, "age", " = %v; must be 0 or at least 100ms", c.Age)
	fault(c.CreateTimeout < 10*time.Millisecond, "create_timeout", " = %v; must be at least 10ms", c.CreateTimeout)
	fault(c.CreateBurst < 1 || c.CreateBurst > 1000, "create_burst", " = %d; must be 1 to 1000", c.CreateBurst)
	fault(c.MoveRate < 0 || c.MoveRate > 100, "move_rate", " = %d; must be 0 to 100", c.MoveRate)
	fault(c.DeleteTimeout < 10*time.Millisecond, "delete_timeout", " = %v; must be at least 10ms", c.DeleteTimeout)
	fault(c.Adaptive && (c.AdaptiveFloor < 1 || c.AdaptiveFloor > maxSessions), "adaptive_floor", " = %d; must be 1 to %d",
		c.AdaptiveFloor, maxSessions)
	sum := 0
	for class, share := range c.Shares.byClass() {
		sum += share
		fault(Class(class) != System && share < 1, "shares."+Class(class).String(), " = %d; must be at least 1", share)
	}
	fault(sum > 90, "shares", " add up to %d; must be at most 90", sum)
	return errors.Join(errs...)
}

func (s Shares) byClass() [ClassSize]int {
	return [ClassSize]int{Interactive: s.Interactive, Normal: s.Normal, Batch: s.Batch}
}

// expiry returns when a session that is opened now expires by its age; zero: never.
func (c Config) expiry(now time.Time) time.Time {
	if c.Age == 0 {
		return time.Time{}
	}
	return now.Add(c.Age - rand.N(c.Age/5))
}

// nodeCap is the most sessions that a node may have: one of a number of eligible nodes,
// with a part of their weight, up to 1.
func (c Config) nodeCap(eligible int, part float64) int {
	switch {
	case c.MaxPerNode > 0:
		return min(c.MaxPerNode, c.Max)
	case eligible > 1:
		return max((c.Max+1)/2, int(math.Ceil(float64(c.Max)*part-1e-9)))
	default:
		return c.Max
	}
}

package pool

import (
	"strings"
	"testing"
	"time"
)

func TestConfig(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		faults []string // names of the settings that the error must have; none: valid
	}{
		{"default", func(*Config) {}, nil},
		{"least", func(c *Config) {
			*c = Config{Max: 1, Queue: 1, CreateTimeout: time.Second, CreateBurst: 1, DeleteTimeout: time.Second, Shares: Shares{1, 1, 1}}
		}, nil},
		{"no_sessions", func(c *Config) { c.Max = 0 }, []string{"max ="}},
		{"too_many_sessions", func(c *Config) { c.Max = maxSessions + 1 }, []string{"max ="}},
		{"min_above_max", func(c *Config) { c.Min = 51 }, []string{"min ="}},
		{"negative_cap", func(c *Config) { c.MaxPerNode = -1 }, []string{"max_per_node ="}},
		{"no_queue", func(c *Config) { c.Queue = 0 }, []string{"queue ="}},
		{"share_of_nothing", func(c *Config) { c.Shares.Batch = 0 }, []string{"shares.batch ="}},
		{"shares_of_all", func(c *Config) { c.Shares.Normal = 90 }, []string{"shares add up to 115"}},
		{"all_at_once", func(c *Config) { *c = Config{Min: -1, Idle: 1, Age: 1, MoveRate: 101} }, []string{
			"max =", "min =", "queue =", "idle =", "age =", "create_timeout =", "create_burst =", "move_rate =",
			"delete_timeout =", "shares.interactive =", "shares.normal =", "shares.batch =",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Default()
			tt.change(&c)
			err := c.Validate()
			if (err == nil) != (tt.faults == nil) {
				t.Fatalf("Validate: %v; want faults %v", err, tt.faults)
			}
			for _, f := range tt.faults {
				if !strings.Contains(err.Error(), f) {
					t.Errorf("Validate: %v; want %q in it", err, f)
				}
			}
		})
	}
}

func TestNodeCap(t *testing.T) {
	for _, tt := range []struct {
		max, perNode, nodes int
		part                float64
		want                int
	}{
		{50, 0, 1, 1, 50}, {50, 0, 2, 0.5, 25}, {51, 0, 3, 1. / 3, 26}, {1, 0, 3, 1. / 3, 1}, {50, 7, 1, 1, 7}, {50, 70, 3, 1. / 3, 50},
		{50, 0, 2, 0.9, 45}, {50, 0, 2, 0.1, 25}, {50, 0, 9, 1, 50}, {50, 0, 9, 0, 25}, {50, 7, 2, 0.9, 7}, {51, 0, 2, 0.9, 46},
	} {
		c := Config{Max: tt.max, MaxPerNode: tt.perNode}
		if got := c.nodeCap(tt.nodes, tt.part); got != tt.want {
			t.Errorf("max %d, max_per_node %d, %d nodes, part %v: cap %d; want %d", tt.max, tt.perNode, tt.nodes, tt.part, got, tt.want)
		}
	}
}

func TestParseClass(t *testing.T) {
	for name, want := range map[string]Class{"system": System, "Interactive": Interactive, "NORMAL": Normal, "batch": Batch, "": Normal} {
		if got, err := ParseClass(name); got != want || err != nil {
			t.Errorf("ParseClass(%q) = %v, %v; want %v", name, got, err, want)
		}
	}
	for c := range Class(ClassSize) {
		if got, err := ParseClass(c.String()); got != c || err != nil {
			t.Errorf("ParseClass(%q) = %v, %v", c, got, err)
		}
	}
	if _, err := ParseClass("urgent"); err == nil || !strings.Contains(err.Error(), "system, interactive, normal, batch") {
		t.Errorf("ParseClass(urgent): %v; want the names in it", err)
	}
	if c := (Ask{}).Class; c != Normal {
		t.Errorf("who names no class is in %v; want normal", c)
	}
	if got := Class(200).String(); got != "batch" {
		t.Errorf("an unknown class is %q; want batch", got)
	}
}

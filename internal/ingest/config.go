package ingest

import (
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// maxAttempt is the longest time for a BulkUpsert that YDB heeds, and what it takes where none is given.
const maxAttempt = 5 * time.Minute

// Config bounds streams (settings ingest.*).
type Config struct {
	BatchRows int `yaml:"batch_rows"` // Largest number of keys in one batch; 1 to 100000
	// Largest size of one batch in bytes, where each row counts 64 more; 4096 to 16777216
	BatchBytes int           `yaml:"batch_bytes"`
	Delay      time.Duration `yaml:"delay"` // Longest wait of a row for others of its batch. 0: none
	// Largest number of batches of one stream under way at a time; 1 to 64
	Window int `yaml:"window"`
	// Largest size in bytes of one row, as it is received; 64 to 8388608
	MaxRow     int           `yaml:"max_row"`
	MaxStreams int           `yaml:"max_streams"` // Largest number of open streams
	Timeout    time.Duration `yaml:"timeout"`     // Longest time for one request of a batch, with all its attempts
	// Longest time for one attempt of a request within the database; 1ms to 5m
	Attempt time.Duration `yaml:"attempt"`
	// Largest difference between the clocks of the cluster. The keys of a lost attempt wait for
	// ingest.attempt and this time
	Settle time.Duration `yaml:"settle"`
	Idle   time.Duration `yaml:"idle"` // Time without rows after which a stream is ended
}

// Default returns the settings of a fresh installation.
func Default() Config {
	return Config{
		BatchRows: 1000, BatchBytes: 1 << 20, Delay: 20 * time.Millisecond, Window: 4, MaxRow: 1 << 20, MaxStreams: 256,
		Timeout: 30 * time.Second, Attempt: 5 * time.Second, Settle: time.Second, Idle: 10 * time.Minute,
	}
}

// Validate names every setting below ingest that cannot work.
func (c Config) Validate() error {
	var errs []error
	for _, n := range []struct {
		key                string
		value, least, most int
	}{
		{"batch_rows", c.BatchRows, 1, 100_000}, {"batch_bytes", c.BatchBytes, 4 << 10, 16 << 20}, {"window", c.Window, 1, 64},
		{"max_row", c.MaxRow, 64, 8 << 20}, {"max_streams", c.MaxStreams, 1, 100_000},
	} {
		if n.value < n.least || n.value > n.most {
			errs = append(errs, config.Faultf(n.key, " = %d; must be %d to %d", n.value, n.least, n.most))
		}
	}
	for _, d := range []struct {
		key          string
		value, least time.Duration
	}{{"delay", c.Delay, 0}, {"timeout", c.Timeout, time.Millisecond}, {"attempt", c.Attempt, time.Millisecond},
		{"settle", c.Settle, 0}, {"idle", c.Idle, time.Millisecond}} {
		if d.value < d.least {
			errs = append(errs, config.Faultf(d.key, " = %v; must be >= %v", d.value, d.least))
		}
	}
	if c.Attempt > maxAttempt {
		errs = append(errs, config.Faultf("attempt", " = %v; must be <= %v, the most that YDB heeds", c.Attempt, maxAttempt))
	}
	return errors.Join(errs...)
}

package ingest

import (
	"errors"
	"fmt"
	"time"
)

// maxAttempt is the longest time for a BulkUpsert that YDB heeds, and what it takes where none is given.
const maxAttempt = 5 * time.Minute

// Config bounds streams (settings ingest.*).
type Config struct {
	BatchRows  int           `yaml:"batch_rows"`  // keys in one batch; 1 to 100000
	BatchBytes int           `yaml:"batch_bytes"` // of the rows of one batch, with 64 for each row; 4096 to 16777216
	Delay      time.Duration `yaml:"delay"`       // longest wait of a row for others to go with it; 0: none
	Window     int           `yaml:"window"`      // batches of one stream that are under way at a time; 1 to 64
	MaxRow     int           `yaml:"max_row"`     // bytes of one row, as it comes; 64 to 8388608
	MaxStreams int           `yaml:"max_streams"` // streams open at a time
	Timeout    time.Duration `yaml:"timeout"`     // for one request of a batch, with all its tries
	Attempt    time.Duration `yaml:"attempt"`     // for one try of a request, within the database; 1ms to 5m
	// how far clocks of the cluster may differ: keys of a try that got lost rest for
	// ingest.attempt and so long
	Settle time.Duration `yaml:"settle"`
	Idle   time.Duration `yaml:"idle"` // a stream without rows for so long is ended
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
			errs = append(errs, fmt.Errorf("%s = %d; must be %d to %d", n.key, n.value, n.least, n.most))
		}
	}
	for _, d := range []struct {
		key          string
		value, least time.Duration
	}{{"delay", c.Delay, 0}, {"timeout", c.Timeout, time.Millisecond}, {"attempt", c.Attempt, time.Millisecond},
		{"settle", c.Settle, 0}, {"idle", c.Idle, time.Millisecond}} {
		if d.value < d.least {
			errs = append(errs, fmt.Errorf("%s = %v; must be >= %v", d.key, d.value, d.least))
		}
	}
	if c.Attempt > maxAttempt {
		errs = append(errs, fmt.Errorf("attempt = %v; must be <= %v, the most that YDB heeds", c.Attempt, maxAttempt))
	}
	return errors.Join(errs...)
}

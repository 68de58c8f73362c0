package ingest

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds streams (settings ingest.*).
type Config struct {
	BatchRows  int           `yaml:"batch_rows"`  // keys in one batch; 1 to 100000
	BatchBytes int           `yaml:"batch_bytes"` // of the rows of one batch, with 64 for each row; 4096 to 16777216
	Delay      time.Duration `yaml:"delay"`       // longest wait of a row for others to go with it; 0: none
	Window     int           `yaml:"window"`      // batches of one stream that are under way at a time; 1 to 64
	MaxRow     int           `yaml:"max_row"`     // bytes of one row, as it comes; 64 to 8388608
	MaxStreams int           `yaml:"max_streams"` // streams open at a time
	Timeout    time.Duration `yaml:"timeout"`     // for one request of a batch, with all its tries
	Settle     time.Duration `yaml:"settle"`      // keys whose last write may still be under way on a lost connection are not written again for so long
	Idle       time.Duration `yaml:"idle"`        // a stream without rows for so long is ended
}

// Default returns the settings of a fresh installation.
func Default() Config {
	return Config{
		BatchRows: 1000, BatchBytes: 1 << 20, Delay: 20 * time.Millisecond, Window: 4, MaxRow: 1 << 20, MaxStreams: 256,
		Timeout: 30 * time.Second, Settle: time.Second, Idle: 10 * time.Minute,
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
	}{{"delay", c.Delay, 0}, {"timeout", c.Timeout, time.Millisecond}, {"settle", c.Settle, 0}, {"idle", c.Idle, time.Millisecond}} {
		if d.value < d.least {
			errs = append(errs, fmt.Errorf("%s = %v; must be >= %v", d.key, d.value, d.least))
		}
	}
	return errors.Join(errs...)
}

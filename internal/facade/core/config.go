package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Config holds the settings api.* and tx.*.
type Config struct {
	API API
	Tx  lease.Config
}

// API bounds calls. The errors of every limit name its setting.
type API struct {
	// deadline of a call that brings none; of a stream that brings none, the longest pause between
	// parts
	Timeout    time.Duration `yaml:"timeout"`
	MaxTimeout time.Duration `yaml:"max_timeout"` // a later deadline is moved to this
	// calls open at once, both faces together; those whose body over HTTP is still to come count
	// for memory.requests alone
	MaxOpen       int           `yaml:"max_open"`
	MaxBody       int           `yaml:"max_body"`       // bytes of a request
	MaxHeaders    int           `yaml:"max_headers"`    // bytes of a request's headers or metadata
	MaxDepth      int           `yaml:"max_depth"`      // nesting of a request's values
	MaxParams     int           `yaml:"max_params"`     // parameters of a statement
	MaxStatements int           `yaml:"max_statements"` // statements of one Transact or Batch
	MaxGroups     int           `yaml:"max_groups"`     // different sets of columns in one BulkUpsert
	MaxRows       int           `yaml:"max_rows"`       // rows of a reply that is not streamed; more are cut off and "truncated" says so
	MaxBytes      int           `yaml:"max_bytes"`      // bytes of such a reply, as YDB sends the values; likewise
	BatchParallel int           `yaml:"batch_parallel"` // statements of one Batch that run at a time
	CacheTTL      time.Duration `yaml:"cache_ttl"`      // how long descriptions of tables and explained plans are believed
	CacheSize     int           `yaml:"cache_size"`     // entries of each cache: declared types, tables, plans
	// current; or old: statuses of errors as in the version before (docs/reference/errors.md)
	Statuses string `yaml:"statuses"`
}

// DefaultAPI are the settings of a fresh installation.
func DefaultAPI() API {
	return API{
		Timeout: 10 * time.Second, MaxTimeout: time.Hour, MaxOpen: 10_000,
		MaxBody: 16 << 20, MaxHeaders: 32 << 10, MaxDepth: 32, MaxParams: 1000, MaxStatements: 1000, MaxGroups: 64,
		MaxRows: 100_000, MaxBytes: 32 << 20, BatchParallel: 4,
		CacheTTL: time.Minute, CacheSize: 10_000, Statuses: statusesCurrent,
	}
}

// Validate names every setting below api that cannot work.
func (a API) Validate() error {
	var errs []error
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"timeout", a.Timeout}, {"max_timeout", a.MaxTimeout}, {"cache_ttl", a.CacheTTL}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s = %v; must be > 0", d.key, d.value))
		}
	}
	for _, n := range []struct {
		key          string
		value, least int
	}{
		{"max_open", a.MaxOpen, 1}, {"max_body", a.MaxBody, 1 << 10}, {"max_headers", a.MaxHeaders, 1 << 10},
		{"max_depth", a.MaxDepth, 4}, {"max_params", a.MaxParams, 1}, {"max_statements", a.MaxStatements, 1},
		{"max_groups", a.MaxGroups, 1}, {"max_rows", a.MaxRows, 1}, {"max_bytes", a.MaxBytes, 1 << 10},
		{"batch_parallel", a.BatchParallel, 1}, {"cache_size", a.CacheSize, 1},
	} {
		if n.value < n.least {
			errs = append(errs, fmt.Errorf("%s = %d; must be >= %d", n.key, n.value, n.least))
		}
	}
	if a.MaxDepth > yql.MaxTypeDepth {
		errs = append(errs, fmt.Errorf("max_depth = %d; must be <= %d", a.MaxDepth, yql.MaxTypeDepth))
	}
	errs = append(errs, checkStatuses(a.Statuses)) // nil if it is fine
	if a.Timeout > a.MaxTimeout {
		errs = append(errs, fmt.Errorf("timeout = %v; must be <= max_timeout = %v", a.Timeout, a.MaxTimeout))
	}
	return errors.Join(errs...)
}

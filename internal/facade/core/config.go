package core

import (
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
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
	// Deadline of a call that sets none. For a stream that sets none, the longest time in which nothing moves
	Timeout    time.Duration `yaml:"timeout"`
	MaxTimeout time.Duration `yaml:"max_timeout"` // Latest deadline; a call with a later one gets this
	// Largest number of open calls, HTTP and gRPC together. Calls whose body over HTTP is still incomplete
	// count only for memory.requests
	MaxOpen       int `yaml:"max_open"`
	MaxBody       int `yaml:"max_body"`       // Largest size of a request in bytes
	MaxHeaders    int `yaml:"max_headers"`    // Largest size of a request's headers or metadata in bytes
	MaxDepth      int `yaml:"max_depth"`      // Deepest nesting of a request's values
	MaxParams     int `yaml:"max_params"`     // Largest number of parameters of a statement
	MaxStatements int `yaml:"max_statements"` // Largest number of statements of one Transact or Batch
	MaxGroups     int `yaml:"max_groups"`     // Largest number of different sets of columns in one BulkUpsert
	// Largest number of rows in an answer that is not a stream. Further rows are cut off, and "truncated"
	// reports it
	MaxRows int `yaml:"max_rows"`
	// Largest size in bytes of an answer that is not a stream, as YDB sends the values. Further rows are
	// cut off, and "truncated" reports it
	MaxBytes      int           `yaml:"max_bytes"`
	BatchParallel int           `yaml:"batch_parallel"` // Largest number of statements of one Batch that run at a time
	CacheTTL      time.Duration `yaml:"cache_ttl"`      // Age at which descriptions of tables and explained plans expire
	// Largest number of entries of each cache: declared types, tables, plans
	CacheSize int `yaml:"cache_size"`
	// Statuses of errors: current, or old (as in the version before: docs/reference/errors.md)
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
			errs = append(errs, config.Faultf(d.key, " = %v; must be > 0", d.value))
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
			errs = append(errs, config.Faultf(n.key, " = %d; must be >= %d", n.value, n.least))
		}
	}
	if a.MaxDepth > yql.MaxTypeDepth {
		errs = append(errs, config.Faultf("max_depth", " = %d; must be <= %d", a.MaxDepth, yql.MaxTypeDepth))
	}
	errs = append(errs, checkStatuses(a.Statuses)) // nil if it is fine
	if a.Timeout > a.MaxTimeout {
		errs = append(errs, config.Faultf("timeout", " = %v; must be <= max_timeout = %v", a.Timeout, a.MaxTimeout))
	}
	return errors.Join(errs...)
}

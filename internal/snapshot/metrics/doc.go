// Package metrics makes metrics of what the parts count themselves; histograms are made by
// the parts.
//
// It owns the tables of rows: name, unit, help, and how values are read; and the choice of
// the nodes that have series of their own. What always holds: all metrics are read from one
// look at the parts; a name is in one row; a metric has no more series of nodes than
// telemetry keeps; docs/reference/metrics.md lists every row.
package metrics

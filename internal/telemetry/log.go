package telemetry

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// LogConfig is the section "log" of the configuration.
type LogConfig struct {
	Format string     `yaml:"format"` // Format of the log: json, or text for people
	Level  slog.Level `yaml:"level"`  // Lowest level that is logged: DEBUG, INFO, WARN or ERROR
}

// DefaultLog returns the defaults.
func DefaultLog() LogConfig { return LogConfig{Format: "json", Level: slog.LevelInfo} }

// Validate returns all faults, joined.
func (c LogConfig) Validate() error {
	if c.Format != "json" && c.Format != "text" {
		return errors.Join(config.Faultf("format", " = %q; must be json or text", c.Format))
	}
	return nil
}

// NewLogger returns a logger that writes lines to w. A line logged with the
// context of a span has its trace_id and span_id. level is set to c.Level, and rules
// from then on; nil: it stays as it is. What a w that is Lines drops, is logged.
func NewLogger(w io.Writer, c LogConfig, level *slog.LevelVar) *slog.Logger {
	if level == nil {
		level = new(slog.LevelVar)
	}
	level.Set(c.Level)
	to := func(w io.Writer) *slog.Logger {
		options := &slog.HandlerOptions{Level: level}
		if c.Format == "text" {
			return slog.New(&traced{slog.NewTextHandler(w, options)})
		}
		return slog.New(&traced{slog.NewJSONHandler(w, options)})
	}
	log := to(w)
	if lines, ok := w.(*Lines); ok {
		direct := to(lines.to) // this line itself must not be dropped
		lines.onLoss(func(lost uint64) {
			direct.Warn("lines of the log were dropped, because whoever reads it did not keep up", "lines", lost)
		})
	}
	return log
}

// traced adds the ids of the span in the context.
type traced struct{ slog.Handler }

func (h *traced) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h *traced) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &traced{h.Handler.WithAttrs(attrs)}
}

func (h *traced) WithGroup(name string) slog.Handler { return &traced{h.Handler.WithGroup(name)} }

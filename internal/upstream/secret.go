package upstream

import "log/slog"

// hidden stands for a secret wherever one could be shown.
const hidden = "[hidden]"

// Secret is a value that must never be shown. Only string(s) reveals it; every
// way of printing, logging or marshalling writes a placeholder.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString keeps %#v from showing the value.
func (s Secret) GoString() string { return s.String() }

// LogValue keeps slog from showing the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps JSON and YAML from showing the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

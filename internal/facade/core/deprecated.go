package core

import (
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Deprecation says since when something of the plain API is deprecated, and what to use instead.
type Deprecation struct {
	Since   time.Time
	Sunset  time.Time // when it goes, at the earliest; zero: that is not decided
	Instead string    // address of a page
}

// Deprecated names a part of the plain API: a call such as "Execute" or "KeyValue/Get", the full name of a field of a request such as
// "sidecar.v1.ExecuteRequest.stats", or a code of errors such as "TX_LOST".
type Deprecated map[string]Deprecation

// deprecated is what version 1 has that is deprecated: docs/reference/compatibility.md has the rules.
// The .proto files mark the same calls and fields.
var deprecated = Deprecated{}

// deprecatedStatuses deprecates the statuses of the version before. They go with api.statuses in the next version, which has no
// date yet.
var deprecatedStatuses = Deprecation{
	Since:   time.Date(2026, time.November, 28, 0, 0, 0, 0, time.UTC),
	Instead: errorsPage + "#statuses-of-the-version-before",
}

// Within reports whether a request may have a deprecated field.
func (d Deprecated) Within(m protoreflect.MessageDescriptor) bool {
	return len(d) > 0 && d.within(m, make(map[protoreflect.FullName]bool))
}

// within is Within, except for messages that were seen: values have values within.
func (d Deprecated) within(m protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[m.FullName()] {
		return false
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if _, is := d[string(f.FullName())]; is || f.Message() != nil && d.within(f.Message(), seen) {
			return true
		}
	}
	return false
}

// Uses notes what a call uses; the first part that is deprecated counts.
func (d Deprecated) Uses(c *Call, part string) {
	if len(d) == 0 || c.deprecation != nil {
		return
	}
	if one, ok := d[part]; ok {
		c.deprecation = &one
	}
}

// Shows notes what an answered error shows: a code or statuses that are deprecated.
func (d Deprecated) Shows(c *Call, f *Fault) {
	d.Uses(c, f.Code.Name)
	if c.deprecation == nil && f.Code.old {
		c.deprecation = &deprecatedStatuses
	}
}

// UsesFields notes the fields that a request has.
func (s *Service) UsesFields(c *Call, m proto.Message) {
	if len(s.Deprecated) > 0 {
		s.usesFields(c, m.ProtoReflect())
	}
}

func (s *Service) usesFields(c *Call, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		s.Deprecated.Uses(c, string(f.FullName()))
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				s.usesFields(c, v.List().Get(i).Message())
			}
		default:
			s.usesFields(c, v.Message())
		}
		return true
	})
}

// Headers calls each with the headers that tell a caller that it uses something deprecated (RFC 9745, RFC 8594), if it does.
func (c *Call) Headers(each func(name, value string)) {
	d := c.deprecation
	if d == nil {
		return
	}
	each("Deprecation", "@"+strconv.FormatInt(d.Since.Unix(), 10))
	each("Link", "<"+d.Instead+`>; rel="deprecation"`)
	if !d.Sunset.IsZero() {
		each("Sunset", d.Sunset.UTC().Format(http.TimeFormat))
	}
}

package kv

import (
	"errors"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Config opens tables to the key-value API. Without tables it is off.
type Config struct {
	// Tables of the key-value API, each as `name=path key=column:Type value=column:Type
	// [version=column:Type] [media=type/subtype] [max_value=size] [read_only]`: docs/reference/kv.md
	Tables []Entry `yaml:"tables"`
	// Largest size in bytes of a value to store, for tables without max_value
	MaxValue int `yaml:"max_value"`
	MaxID    int `yaml:"max_id"`  // Largest size of an id in bytes
	MaxIDs   int `yaml:"max_ids"` // Largest number of ids of one batchGet
}

// Default returns the settings of a fresh installation.
func Default() Config { return Config{MaxValue: 1 << 20, MaxID: 1 << 10, MaxIDs: 100} }

// maxKVTables bounds what is built at the start.
const maxKVTables = 1000

// Validate names every setting below kv that cannot work.
func (k Config) Validate() error {
	var errs []error
	for _, n := range []struct {
		key   string
		value int
	}{{"max_value", k.MaxValue}, {"max_id", k.MaxID}, {"max_ids", k.MaxIDs}} {
		if n.value < 1 {
			errs = append(errs, config.Faultf(n.key, " = %d; must be >= 1", n.value))
		}
	}
	if len(k.Tables) > maxKVTables {
		errs = append(errs, config.Faultf("tables", " has %d; at most %d are allowed", len(k.Tables), maxKVTables))
	}
	seen := make(map[string]bool)
	for _, t := range k.Tables {
		if seen[t.Name] {
			errs = append(errs, config.Faultf("tables", ": %q is opened twice", t.Name))
		}
		seen[t.Name] = true
	}
	return errors.Join(errs...)
}

// Column is a column with its type.
type Column struct {
	Name string
	Type *Ydb.Type
}

// Entry opens one table. Its text form is that of the setting kv.tables.
type Entry struct {
	Name     string   // in requests
	Path     string   // of the table, relative to the database or absolute
	Key      []Column // the whole primary key, in its order
	Value    Column
	Version  Column // Uint64 or Int64; no name: there is none
	Media    string // Content-Type of values; "": by the type of Value
	MaxValue int    // bytes; 0: kv.max_value
	ReadOnly bool
}

// UnmarshalText reads words with spaces between: name=path, key=column:Type (again
// for each further column of the key), value=column:Type, and what may follow.
// Everything that goes into the text of a statement is checked here: names and
// paths have no character that could end them.
func (t *Entry) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	if len(words) == 0 {
		return errors.New("want name=path key=column:Type value=column:Type")
	}
	var out Entry
	var ok bool
	if out.Name, out.Path, ok = strings.Cut(words[0], "="); !ok || !isPlain(out.Name, "-._") || !isPlain(out.Path, "-._/") {
		return errors.New("want name=path first, of letters, digits and -._ (in the path also /)")
	}
	for _, word := range words[1:] {
		if err := out.word(word); err != nil {
			return err
		}
	}
	if err := out.check(); err != nil {
		return err
	}
	*t = out
	return nil
}

func (t *Entry) word(word string) (err error) {
	key, v, _ := strings.Cut(word, "=")
	switch key {
	case "key":
		var c Column
		c, err = kvColumn(key, v)
		t.Key = append(t.Key, c)
		return err
	case "value", "version":
		at := &t.Value
		if key == "version" {
			at = &t.Version
		}
		if at.Name != "" {
			return fmt.Errorf("%s appears twice", key)
		}
		*at, err = kvColumn(key, v)
		return err
	case "media":
		if _, _, err := mime.ParseMediaType(v); err != nil || t.Media != "" {
			return errors.New("want one media=type/subtype")
		}
		t.Media = v
	case "max_value":
		n, err := core.ParseBytes(v)
		if err != nil || n < 1 || n > 1<<30 {
			return errors.New("max_value: want a size between 1 and 1GiB, such as 64KiB")
		}
		t.MaxValue = int(n)
	case "read_only":
		if word != key {
			return errors.New("read_only takes no value")
		}
		t.ReadOnly = true
	default:
		return fmt.Errorf("%.64q is none of key=, value=, version=, media=, max_value=, read_only", word)
	}
	return nil
}

func kvColumn(key, text string) (Column, error) {
	name, typ, ok := strings.Cut(text, ":")
	if !ok || !isPlain(name, "-_") {
		return Column{}, fmt.Errorf("want %s=column:Type, the name of letters, digits, - and _", key)
	}
	t, err := yql.ParseType(typ)
	if err != nil {
		return Column{}, fmt.Errorf("%s: %w", key, err)
	}
	return Column{name, t}, nil
}

// isPlain tells whether s is of letters, digits and the characters of more.
func isPlain(s, more string) bool {
	for i := range len(s) {
		c := s[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return s != ""
}

// check checks the words together.
func (t *Entry) check() error {
	if len(t.Key) == 0 || t.Value.Name == "" {
		return fmt.Errorf("%s: want key=column:Type for each column of the primary key, and value=column:Type", t.Name)
	}
	names := []string{t.Value.Name}
	for _, c := range t.Key {
		if !yql.IsKey(c.Type) {
			return fmt.Errorf("%s: key column %s: %s cannot be in a key", t.Name, c.Name, yql.FormatType(c.Type))
		}
		names = append(names, c.Name)
	}
	if !yql.IsBytes(t.Value.Type) {
		return fmt.Errorf("%s: value column %s: want String, Utf8, Json, JsonDocument or Yson", t.Name, t.Value.Name)
	}
	if t.Version.Name != "" {
		if id := t.Version.Type.GetTypeId(); id != Ydb.Type_UINT64 && id != Ydb.Type_INT64 {
			return fmt.Errorf("%s: version column %s: want Uint64 or Int64", t.Name, t.Version.Name)
		}
		names = append(names, t.Version.Name)
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != len(names) {
		return fmt.Errorf("%s: a column appears twice", t.Name)
	}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (t Entry) MarshalText() ([]byte, error) {
	var b strings.Builder
	b.WriteString(t.Name + "=" + t.Path)
	column := func(key string, c Column) { b.WriteString(" " + key + "=" + c.Name + ":" + yql.FormatType(c.Type)) }
	for _, c := range t.Key {
		column("key", c)
	}
	column("value", t.Value)
	if t.Version.Name != "" {
		column("version", t.Version)
	}
	if t.Media != "" {
		b.WriteString(" media=" + t.Media)
	}
	if t.MaxValue > 0 {
		b.WriteString(" max_value=" + strconv.Itoa(t.MaxValue))
	}
	if t.ReadOnly {
		b.WriteString(" read_only")
	}
	return []byte(b.String()), nil
}

// MediaType is the Content-Type of the values.
func (t *Entry) MediaType() string {
	if t.Media != "" {
		return t.Media
	}
	switch t.Value.Type.GetTypeId() {
	case Ydb.Type_UTF8:
		return "text/plain; charset=utf-8"
	case Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
		return core.MediaJSON
	}
	return core.MediaOctets
}

// fits tells why the table is not as its entry says; nil: it is. A key that is
// not the whole primary key, or has another type, would make each call a scan.
func (t *Entry) fits(d *Ydb_Table.DescribeTableResult) error {
	var names []string
	for _, c := range t.Key {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, d.GetPrimaryKey()) {
		return fmt.Errorf("its primary key is (%s), not (%s)", strings.Join(d.GetPrimaryKey(), ", "), strings.Join(names, ", "))
	}
	columns := append(slices.Clone(t.Key), t.Value)
	if t.Version.Name != "" {
		columns = append(columns, t.Version)
	}
	for _, c := range columns {
		i := slices.IndexFunc(d.GetColumns(), func(m *Ydb_Table.ColumnMeta) bool { return m.GetName() == c.Name })
		if i < 0 {
			return fmt.Errorf("it has no column %s", c.Name)
		}
		is := d.GetColumns()[i].GetType()
		if o := is.GetOptionalType(); o != nil {
			is = o.GetItem()
		}
		if !yql.EqualTypes(is, c.Type) {
			return fmt.Errorf("its column %s is %s, not %s", c.Name, yql.FormatType(is), yql.FormatType(c.Type))
		}
	}
	return nil
}

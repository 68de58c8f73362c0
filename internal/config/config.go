// Package config lays settings from a file, the environment and the command
// line onto any struct. It knows no setting: names come from the struct's yaml
// tags, defaults are what the struct holds when it is bound.
// It also tells whether a file that is read again has changed.
//
// A setting has one name, sections joined by dots ("pool.max"). The same name
// is meant by the file (nested or with dots), by the environment (a prefix and
// the name in capitals, with _ for each dot) and by "pool.max=50" on the
// command line, and one setter parses the value wherever it comes from.
//
// What always holds: two settings never share a name, nor a name in the
// environment; what is not a setting is an error that names the nearest one;
// all faults of a source are reported together, each with its place; a faulty
// value leaves its setting as it was; a retired name is a warning, not a fault;
// no error shows the value of a secret.
package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Settings are the settings of one struct. Not safe for concurrent use.
type Settings struct {
	all    []*setting // in the order of the struct's fields
	byName map[string]*setting
	byEnv  map[string]*setting // without the prefix

	retired  map[string]string // names that were settings once, and why they are none
	warnings []string          // where retired names were set
	doubts   []string          // names of faulty settings; sections with their dot; "": a whole file
}

// setting is one leaf of the struct.
type setting struct {
	name     string
	value    reflect.Value
	secret   bool
	fallback string // the default, as text
	source   string // "default", or where the value was set
	leaves   string // why the next version rejects the setting; "": it stays
}

// Setting is one setting as it stands, fit to be shown: secrets are hidden.
type Setting struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Source  string `json:"source"` // "default", "file:3:8", "SIDECAR_POOL_MAX", "-set"
}

// Bind finds the settings in the struct that target points to. Every exported
// field needs a yaml tag; a struct is a section, ",inline" puts its settings
// into the section around it, and "-" hides the field. A field that cannot
// hold a setting, and two settings of one name, are errors of the programmer.
func Bind(target any) (*Settings, error) {
	v := reflect.ValueOf(target)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("config: %T is not a pointer to a struct", target)
	}
	s := &Settings{byName: map[string]*setting{}, byEnv: map[string]*setting{}}
	if err := s.bind("", v.Elem()); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Settings) bind(section string, v reflect.Value) error {
	var errs []error
	for i := range v.NumField() {
		field := v.Type().Field(i)
		key, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case key == "-" || !field.IsExported():
			continue
		case options == "inline" && field.Type.Kind() == reflect.Struct:
			errs = append(errs, s.bind(section, v.Field(i)))
			continue
		case key == "" || options != "":
			errs = append(errs, fmt.Errorf("config: field %v.%s has the yaml tag %q", v.Type(), field.Name, field.Tag.Get("yaml")))
			continue
		}
		name := section + key
		if field.Type.Kind() == reflect.Struct && !isText(field.Type) {
			errs = append(errs, s.bind(name+".", v.Field(i)))
			continue
		}
		errs = append(errs, s.add(name, v.Field(i)))
	}
	return errors.Join(errs...)
}

func (s *Settings) add(name string, v reflect.Value) error {
	if !settable(v.Type()) {
		return fmt.Errorf("config: %s has type %v, which no setting can have", name, v.Type())
	}
	env := environmentName(name)
	if other := s.byEnv[env]; other != nil {
		return fmt.Errorf("config: %s and %s are one name in the environment", other.name, name)
	}
	set := &setting{name: name, value: v, secret: secretName(name), source: "default"}
	set.fallback = set.text()
	s.all = append(s.all, set)
	s.byName[name], s.byEnv[env] = set, set
	return nil
}

// secretName reports whether a setting holds a secret itself, by the habits of
// naming. Settings that name files and kinds of secrets are no secrets.
func secretName(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	for _, word := range []string{"password", "token", "secret", "key", "credentials"} {
		if last == word || strings.HasSuffix(last, "_"+word) {
			return true
		}
	}
	return false
}

func environmentName(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, ".", "_"))
}

// Retire takes a name out of the settings. A name that still has a field sets it as
// before; any other name is accepted without effect. Either way Warnings lists where the
// name was set. why ends the sentence of that warning, without a full stop.
func (s *Settings) Retire(name, why string) {
	if set := s.byName[name]; set != nil {
		set.leaves = why
		return
	}
	if s.retired == nil {
		s.retired = map[string]string{}
	}
	s.retired[name] = why
}

// Warnings returns a sentence for each place where a retired name was set.
func (s *Settings) Warnings() []string { return s.warnings }

// Warn keeps a warning about the value of a setting. No doubt, which is "", and a default are no warning.
func (s *Settings) Warn(name, doubt string) {
	if set := s.byName[name]; doubt != "" && set.source != "default" {
		s.warnings = append(s.warnings, fmt.Sprintf("%s: %s = %s", set.source, name, doubt))
	}
}

// ignore reports whether name is retired, and keeps a warning if it is.
func (s *Settings) ignore(name, source string) bool {
	why, retired := s.retired[name]
	if retired {
		s.warnings = append(s.warnings,
			fmt.Sprintf("%s: %s has no effect any more: %s. Remove it: the next version rejects it", source, name, why))
	}
	return retired
}

// setFrom records where a setting got its value, and keeps a warning if the setting is retired.
func (s *Settings) setFrom(set *setting, source string) {
	set.source = source
	if set.leaves != "" {
		s.warnings = append(s.warnings,
			fmt.Sprintf("%s: %s still counts, but the next version rejects it: %s. Remove it", source, set.name, set.leaves))
	}
}

// Set sets one setting. source says where the value comes from and begins the
// text of every error.
func (s *Settings) Set(name, value, source string) error {
	set := s.byName[name]
	switch {
	case s.ignore(name, source):
		return nil
	case set == nil:
		s.doubt(name)
		return fmt.Errorf("%s: %s", source, s.unknown(name))
	}
	if err := set.parse([]string{value}, false); err != nil {
		s.doubt(name)
		return fmt.Errorf("%s: %w", source, err)
	}
	s.setFrom(set, source)
	return nil
}

// Source returns where a setting was set: "file:3:8", "SIDECAR_POOL_MAX", "-set". It is "" for a default and for a name that
// is no setting.
func (s *Settings) Source(name string) string {
	if set := s.byName[name]; set != nil && set.source != "default" {
		return set.source
	}
	return ""
}

func (s *Settings) doubt(name string) { s.doubts = append(s.doubts, name) }

// Doubtful reports whether a fault may have kept a setting of section ("admin.") from
// the value that is meant: the fault is in that section or in one whose name is like it,
// the section stands at the wrong depth, or a file could not be read.
func (s *Settings) Doubtful(section string) bool {
	word := strings.TrimSuffix(section, ".")
	return slices.ContainsFunc(s.doubts, func(d string) bool {
		top, below, _ := strings.Cut(d, ".")
		if d == "" || top == word || slices.Contains(strings.Split(below, "."), word) {
			return true
		}
		return s.byName[top] == nil && !s.isSection(top) && alike(top, word)
	})
}

// alike reports whether name may be meant for word: by a typing error, or as its beginning.
func alike(name, word string) bool {
	name = strings.ToLower(name[:min(len(name), 100)])
	return len(name) >= 3 && (strings.HasPrefix(name, word) || strings.HasPrefix(word, name)) || len(name) >= 4 && distance(name, word) <= 2
}

// IsSecret reports whether a setting holds a secret itself.
func (s *Settings) IsSecret(name string) bool {
	set := s.byName[name]
	return set != nil && set.secret
}

// EnvironmentName returns the variable that sets a setting.
func EnvironmentName(prefix, name string) string { return prefix + environmentName(name) }

// Assign takes "name=value", as from the command line.
func (s *Settings) Assign(assignment, source string) error {
	name, value, ok := strings.Cut(assignment, "=")
	if !ok {
		return fmt.Errorf("%s %.100q: want name=value", source, assignment)
	}
	return s.Set(strings.TrimSpace(name), value, source)
}

// Environ takes all variables that begin with prefix ("SIDECAR_") out of
// environ, which has the form of os.Environ. It returns all faults, joined.
func (s *Settings) Environ(prefix string, environ []string) error {
	var errs []error
	for _, entry := range environ {
		variable, value, _ := strings.Cut(entry, "=")
		env, ours := strings.CutPrefix(variable, prefix)
		if !ours {
			continue
		}
		set := s.byEnv[env]
		switch {
		case set != nil:
			errs = append(errs, s.Set(set.name, value, variable))
		case s.ignoreEnv(env, variable):
		case !serviceLink(env, value):
			s.doubt(strings.ToLower(strings.Replace(env, "_", ".", 1)))
			errs = append(errs, fmt.Errorf("%s: %s", variable, s.unknownEnv(prefix, env)))
		}
	}
	return errors.Join(errs...)
}

// ignoreEnv is ignore for a variable without the prefix.
func (s *Settings) ignoreEnv(env, variable string) bool {
	for name := range s.retired {
		if environmentName(name) == env {
			return s.ignore(name, variable)
		}
	}
	return false
}

// serviceLink reports whether a variable was not set by a person, but by a
// kubelet for a Service that happens to be called like the prefix.
func serviceLink(env, value string) bool {
	switch {
	case strings.HasSuffix(env, "SERVICE_HOST"), strings.HasSuffix(env, "SERVICE_PORT"), strings.Contains(env, "SERVICE_PORT_"):
		return true
	case env == "PORT" || strings.HasSuffix(env, "_PORT"):
		return strings.Contains(value, "://")
	default:
		_, protocol, ok := strings.Cut(env, "PORT_")
		return ok && (strings.Contains(protocol, "_TCP") || strings.Contains(protocol, "_UDP") || strings.Contains(protocol, "_SCTP"))
	}
}

// List returns the settings in the order of the struct's fields. A retired one is listed
// only where it is set.
func (s *Settings) List() []Setting {
	list := make([]Setting, 0, len(s.all))
	for _, set := range s.all {
		if set.leaves != "" && set.source == "default" {
			continue
		}
		list = append(list, Setting{Name: set.name, Value: set.shown(set.text()), Default: set.shown(set.fallback), Source: set.source})
	}
	return list
}

// names returns the names of the settings that stay, each through form.
func (s *Settings) names(form func(string) string) []string {
	names := make([]string, 0, len(s.all))
	for _, set := range s.all {
		if set.leaves == "" {
			names = append(names, form(set.name))
		}
	}
	return names
}

func (set *setting) shown(text string) string {
	if set.secret && text != "" {
		return "***"
	}
	return text
}

// isSection reports whether settings begin with name and a dot.
func (s *Settings) isSection(name string) bool {
	return slices.ContainsFunc(s.all, func(set *setting) bool { return strings.HasPrefix(set.name, name+".") })
}

// Change is a setting that two configurations have with different values; secrets
// are hidden.
type Change struct {
	Name   string `json:"name"`
	Old    string `json:"old"`
	New    string `json:"new"`
	Source string `json:"source"` // of the new value
}

// Names are the names of the settings that changed.
func Names(changes []Change) (names []string) {
	for _, c := range changes {
		names = append(names, c.Name)
	}
	return names
}

// Changes returns the settings whose value in s is another than in old, which is
// bound to a struct of the same type, in the order of the struct's fields.
func (s *Settings) Changes(old *Settings) (all []Change) {
	for i, set := range s.all {
		was := old.all[i]
		if same(set.value, was.value) {
			continue
		}
		all = append(all, Change{Name: set.name, Old: was.shown(was.text()), New: set.shown(set.text()), Source: set.source})
	}
	return all
}

// same compares values as settings: a list without elements is one, nil or not.
func same(a, b reflect.Value) bool {
	if a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// Keep gives a setting the value and the source that it has in from, which is bound
// to a struct of the same type.
func (s *Settings) Keep(name string, from *Settings) {
	set, was := s.byName[name], from.byName[name]
	set.value.Set(was.value)
	set.source = was.source
}

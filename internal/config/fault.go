package config

import (
	"errors"
	"fmt"
)

// Fault is what is wrong with a setting, so that whoever knows the Settings can say where it was set.
type Fault struct {
	Setting string // its name; within its section until Under has named that
	err     error  // its text begins with the name
}

// Error implements error.
func (f *Fault) Error() string { return f.err.Error() }

// Unwrap returns what the fault was made of.
func (f *Fault) Unwrap() error { return f.err }

// Faultf returns a *Fault. Its text is the setting's name, and format right behind it, as in
// Faultf("max", " = %d; must be at least 1", n).
func Faultf(setting, format string, args ...any) error {
	what := fmt.Errorf(format, args...)
	return &Fault{setting, fmt.Errorf("%s%w", setting, what)}
}

// named is a fault of a package that imports nothing of this module, as Under takes it.
type named interface {
	error
	OfSetting() string // its name, with which the text begins
}

// Under puts the name of a section, such as "pool.", before each fault in err. It returns them joined.
func Under(section string, err error) error {
	var all []error
	for _, e := range Faults(err) {
		under := fmt.Errorf("%s%w", section, e)
		switch f := e.(type) {
		case *Fault:
			under = &Fault{section + f.Setting, under}
		case named:
			under = &Fault{section + f.OfSetting(), under}
		}
		all = append(all, under)
	}
	return errors.Join(all...)
}

// Faults takes joined errors apart.
func Faults(err error) (all []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, Faults(e)...)
		}
		return all
	}
	if err != nil {
		all = append(all, err)
	}
	return all
}

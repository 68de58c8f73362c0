package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/config"
)

// checkConfig checks the settings, and prints them with -print.
func checkConfig(i *invocation) func() error {
	show := i.set.Bool("print", false, "Print every setting with its value and its source")
	return func() error {
		_, settings, err := app.Load(i.file, i.environ, i.assignments)
		if err != nil {
			return i.listFaults(config.Faults(err))
		}
		for _, warning := range settings.Warnings() {
			if _, err := fmt.Fprintln(i.stderr, warning); err != nil {
				return err
			}
		}
		if !*show {
			_, err := fmt.Fprintln(i.stdout, "OK: all settings are valid")
			return err
		}
		var text strings.Builder
		for _, s := range settings.List() {
			fmt.Fprintf(&text, "%s: %q # %s\n", s.Name, s.Value, s.Source)
		}
		_, err = io.WriteString(i.stdout, text.String())
		return err
	}
}

// listFaults writes each fault of the settings on a line of its own.
func (i *invocation) listFaults(faults []error) error {
	for _, fault := range faults {
		if _, err := fmt.Fprintln(i.stderr, app.FaultLine(fault)); err != nil {
			return err
		}
	}
	if len(faults) == 1 {
		return errors.New("the settings have 1 fault")
	}
	return fmt.Errorf("the settings have %d faults", len(faults))
}

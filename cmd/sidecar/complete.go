package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Completion: a script in each shell's language asks the program itself what may come next, so that
// the scripts know no command and no flag.

// completeCommand is what the scripts call. The words of the command line follow, the one at the
// cursor last. It prints a line for each that may stand there: the word, a tab, what it is.
const completeCommand = "__complete"

// completeLimit is how long a running sidecar may take to list what may come next.
const completeLimit = time.Second

//go:embed completion
var scripts embed.FS

// printCompletion prints the script for one shell.
func printCompletion(i *invocation) func() error {
	return func() error {
		shell := i.args[0]
		text, err := scripts.ReadFile(path.Join("completion", "sidecar."+shell))
		if err != nil {
			return i.usageFault("%q is not a shell that it knows; %s", shell, i.lacks)
		}
		_, err = i.stdout.Write(text)
		return err
	}
}

// A candidate is a word that may come next, and what it is.
type candidate struct{ word, what string }

// complete prints the candidates for the last of the words.
func complete(e *environment, words []string) error {
	last := ""
	if len(words) > 0 {
		last = words[len(words)-1]
	}
	for _, c := range e.candidates(words) {
		if !strings.HasPrefix(c.word, last) {
			continue
		}
		if _, err := fmt.Fprintf(e.stdout, "%s\t%s\n", c.word, c.what); err != nil {
			return err
		}
	}
	return nil
}

// candidates returns the words that may stand in place of the last one, whatever it begins with.
func (e *environment) candidates(words []string) []candidate {
	if len(words) < 2 {
		return commandNames()
	}
	c, ok := findCommand(words[0])
	if !ok {
		return nil
	}
	i := invoke(e, c)
	before, last := words[1:len(words)-1], words[len(words)-1]
	if len(before) > 0 {
		name := strings.TrimLeft(before[len(before)-1], "-")
		if f := i.set.Lookup(name); f != nil && strings.HasPrefix(before[len(before)-1], "-") && takesValue(f) {
			return valuesOf(name)
		}
	}
	if strings.HasPrefix(last, "-") {
		return i.flagNames(strings.HasPrefix(last, "--"))
	}
	if len(strings.Fields(c.args)) == 0 {
		return nil
	}
	switch c.args {
	case "SHELL":
		return []candidate{{"bash", ""}, {"zsh", ""}, {"fish", ""}}
	case "[COMMAND]":
		return commandNames()
	case "NODE":
		return i.knownNodes(before)
	default:
		return nil
	}
}

func commandNames() (all []candidate) {
	for _, c := range allCommands() {
		all = append(all, candidate{c.name, c.does})
	}
	return all
}

// flagNames lists the flags, with two dashes for a user who types two.
func (i *invocation) flagNames(twoDashes bool) (all []candidate) {
	dash := "-"
	if twoDashes {
		dash = "--"
	}
	i.set.VisitAll(func(f *flag.Flag) {
		_, usage := flag.UnquoteUsage(f)
		all = append(all, candidate{dash + f.Name, usage})
	})
	return all
}

// takesValue reports whether the next word is the flag's value.
func takesValue(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return !ok || !b.IsBoolFlag()
}

// valuesOf lists the values of a flag that has few, and the names of settings for -set. Without any,
// the shell completes names of files.
func valuesOf(name string) (all []candidate) {
	for _, value := range map[string][]string{
		"o": {"table", "json"}, "level": {"DEBUG", "INFO", "WARN", "ERROR"}, "by": {"time", "calls", "errors"}, "log": {"json", "text"},
	}[name] {
		all = append(all, candidate{value, ""})
	}
	if name == "set" {
		defaults := app.Default()
		if settings, err := config.Bind(&defaults); err == nil {
			for _, s := range settings.List() {
				all = append(all, candidate{s.Name + "=", ""})
			}
		}
	}
	return all
}

// knownNodes asks the sidecar that the words before name for its nodes. It lists none when no sidecar answers soon.
func (i *invocation) knownNodes(before []string) (all []candidate) {
	silent := *i.environment
	silent.stderr = io.Discard
	if err := i.set.Parse(before); err != nil || i.set.NArg() > 0 {
		return nil // a fault, or the node is there already
	}
	i.environment = &silent
	op, err := i.operate()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeLimit)
	defer cancel()
	text, err := op.ask(ctx, http.MethodGet, "/state/nodes", nil)
	if err != nil {
		return nil
	}
	var state struct{ Nodes []nodeLine }
	if err := read(text, &state); err != nil {
		return nil
	}
	for _, n := range state.Nodes {
		all = append(all, candidate{fmt.Sprint(n.ID), n.Address + " " + n.state()})
	}
	return all
}

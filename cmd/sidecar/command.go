package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/config"
)

// A command is a word that may follow the name of the program. It has one table for everything
// that is shown of it: the general help, its own help, completion and docs/reference/cli.md.
type command struct {
	name     string
	group    string
	args     string   // arguments as its help shows them, in brackets if they may be left out; "": it takes none
	lacks    string   // what to say when a needed argument is missing
	does     string   // what it does: an imperative without a full stop
	more     string   // further sentences of its help; "": there are none
	examples []string // command lines without the name of the program
	flags    flagKind
	// begin defines the command's own flags, and returns what runs it once they are parsed.
	begin func(i *invocation) func() error
}

// A flagKind says which shared flags a command takes.
type flagKind int

const (
	noFlags      flagKind = iota
	settingFlags          // flags that make up a configuration
	sidecarFlags          // flags that find a running sidecar
)

// The groups, in the order in which the general help lists them.
const (
	groupProcess  = "Process"
	groupConfig   = "Config"
	groupNodes    = "Nodes"
	groupPool     = "Pool"
	groupSessions = "Sessions"
	groupCalls    = "Calls"
)

// groups lists them in that order.
var groups = []string{groupProcess, groupConfig, groupNodes, groupPool, groupSessions, groupCalls}

// allCommands returns the commands, those of a group in the order of the general help.
func allCommands() []command {
	return slices.Concat(processCommands(), aboutCommands(), configCommands(), nodeCommands(), poolCommands(), sessionCommands(),
		callCommands())
}

// findCommand returns the command of that name.
func findCommand(name string) (command, bool) {
	all := allCommands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i < 0 {
		return command{}, false
	}
	return all[i], true
}

// An invocation is one command line: a command, its flags and its arguments.
type invocation struct {
	*environment
	command
	set    *flag.FlagSet
	args   []string // without the flags; they may stand before, between and behind them
	asJSON bool     // of -o and -json
	file   string   // of -config
	// assignments are the settings that flags set.
	assignments []app.Assignment
	run         func() error
}

// errUsage wraps a fault of the command line that has been explained already.
var errUsage = errors.New("wrong command line")

// invoke begins a command: its flags are defined, and not parsed yet.
func invoke(e *environment, c command) *invocation {
	i := &invocation{environment: e, command: c, set: flag.NewFlagSet(c.name, flag.ContinueOnError)}
	i.set.SetOutput(io.Discard) // usageFault says what is wrong, in one way for all faults
	i.run = c.begin(i)
	i.shared()
	return i
}

// sharedFlag is a flag that sets one setting.
type sharedFlag struct{ flag, setting, usage string }

// The flags of a whole configuration, and of them those that find a sidecar.
var (
	clusterFlags = []sharedFlag{
		{"ydb", "ydb.url", "Address and database of the cluster, as `url` grpc://host:port/database"},
		{"grpc", "grpc.listen", "Address of the gRPC API, as `host:port`"},
		{"http", "http.listen", "Address of the HTTP API, as `host:port`"},
	}
	adminFlags = []sharedFlag{
		{"admin", "admin.listen", "Address of the admin API, as `host:port`"},
		{"socket", "admin.socket", "Unix socket of the admin API, as `path`"},
	}
	logFlag = sharedFlag{"log", "log.format", "Format of the log, `json|text`"}
)

// sharedBy returns the flags of a kind that set one setting.
func sharedBy(kind flagKind) []sharedFlag {
	switch kind {
	case settingFlags:
		return slices.Concat(clusterFlags, adminFlags, []sharedFlag{logFlag})
	case sidecarFlags:
		return adminFlags
	default:
		return nil
	}
}

// shared defines the flags that commands of the same kind have in common.
func (i *invocation) shared() {
	if i.flags == noFlags {
		return
	}
	i.set.StringVar(&i.file, "config", i.variable(app.FileVariable), "YAML `file` of settings (variable "+app.FileVariable+")")
	i.set.Func("set", "One setting, as `name=value`; give the flag again for another one", func(text string) error {
		i.assignments = append(i.assignments, app.Assignment{Setting: text, Source: "-set"})
		return nil
	})
	for _, one := range sharedBy(i.flags) {
		i.set.Func(one.flag, one.usage+" ("+one.setting+")", func(text string) error {
			i.assignments = append(i.assignments, app.Assignment{Setting: one.setting + "=" + text, Source: "-" + one.flag})
			return nil
		})
	}
}

// isShared reports whether a flag is one of those that shared defines.
func (i *invocation) isShared(name string) bool {
	return i.flags != noFlags && (name == "config" || name == "set" ||
		slices.ContainsFunc(sharedBy(i.flags), func(s sharedFlag) bool { return s.flag == name }))
}

// output defines -o and -json.
func (i *invocation) output() {
	i.set.Func("o", "Form of the output, `table|json`; json has everything that is known", func(text string) error {
		if text != "table" && text != "json" {
			return errors.New("want table or json")
		}
		i.asJSON = text == "json"
		return nil
	})
	i.set.BoolVar(&i.asJSON, "json", false, "Print JSON, as -o json does")
}

// duration defines a flag for a time.
func (i *invocation) duration(name string, preset time.Duration, usage string) *time.Duration {
	value := preset
	i.set.Func(name, usage, func(text string) (err error) {
		if value, err = time.ParseDuration(text); err != nil {
			return errors.New("want a time such as 500ms, 30s or 5m")
		}
		return nil
	})
	return &value
}

// number defines a flag for a whole number.
func (i *invocation) number(name string, preset int, usage string) *int {
	value := preset
	i.set.Func(name, usage, func(text string) (err error) {
		if value, err = strconv.Atoi(text); err != nil {
			return errors.New("want a whole number")
		}
		return nil
	})
	return &value
}

// parse takes flags and arguments in any order.
func (i *invocation) parse(args []string) error {
	for {
		if err := i.set.Parse(args); errors.Is(err, flag.ErrHelp) {
			return err
		} else if err != nil {
			return i.usageFault("%s", i.reason(err))
		}
		if i.set.NArg() == 0 {
			break
		}
		i.args, args = append(i.args, i.set.Arg(0)), i.set.Args()[1:]
	}
	most := len(strings.Fields(i.command.args))
	if len(i.args) > most {
		return i.usageFault("unexpected %q", i.args[most])
	}
	if len(i.args) < most && !strings.HasPrefix(i.command.args, "[") {
		return i.usageFault("%s", i.lacks)
	}
	return nil
}

// reason says what is wrong with a flag, with the flag that may be meant.
func (i *invocation) reason(err error) string {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return err.Error()
	}
	text := fmt.Sprintf("there is no flag -%s", name)
	var names []string
	i.set.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if near := config.Nearest(name, names); near != "" {
		text += fmt.Sprintf("; did you mean -%s?", near)
	}
	return text
}

// usageFault says in two lines what is wrong with the command line and what a right one looks like.
func (i *invocation) usageFault(format string, args ...any) error {
	fmt.Fprintf(i.stderr, "sidecar %s: %s\nusage: %s; sidecar %s -h has more\n", i.name, fmt.Sprintf(format, args...), i.usage(), i.name)
	return errUsage
}

// usage is the line that shows how a command is called: its arguments, its own flags, and that there are others.
func (i *invocation) usage() string {
	words := []string{"sidecar", i.name}
	if i.command.args != "" {
		words = append(words, i.command.args)
	}
	i.set.VisitAll(func(f *flag.Flag) {
		if !i.isShared(f.Name) {
			words = append(words, "["+flagForm(f)+"]")
		}
	})
	if i.flags != noFlags {
		words = append(words, "[flags]")
	}
	return strings.Join(words, " ")
}

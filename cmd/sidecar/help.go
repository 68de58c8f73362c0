package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// generalHelp lists the commands by group.
func generalHelp(to io.Writer) {
	fmt.Fprint(to, "ydb-sidecar keeps the YDB sessions of a host or pod and serves their queries over HTTP and gRPC.\n\n"+
		"Usage: sidecar COMMAND [flags]\n")
	for _, group := range groups {
		fmt.Fprintf(to, "\n%s:\n", group)
		for _, c := range allCommands() {
			if c.group == group {
				fmt.Fprintf(to, "  %-14s %s\n", c.name, c.does)
			}
		}
	}
	fmt.Fprint(to, "\nsidecar COMMAND -h shows the arguments and flags of a command, with an example.\n"+
		"Commands for a running sidecar find it by -socket or -admin, or by its settings.\n"+
		"Each setting has one name: pool.max in the file, SIDECAR_POOL_MAX, and -set pool.max=50.\n")
}

// writeHelp explains one command: what it does, examples, its flags.
func (i *invocation) writeHelp(to io.Writer) {
	fmt.Fprintf(to, "%s.\n\nUsage: %s\n", i.does, i.usage())
	if i.more != "" {
		fmt.Fprintf(to, "\n%s\n", folded(i.more))
	}
	heading := "Example"
	if len(i.examples) > 1 {
		heading = "Examples"
	}
	fmt.Fprintf(to, "\n%s:\n", heading)
	for _, line := range i.examples {
		fmt.Fprintf(to, "  sidecar %s\n", line)
	}
	i.writeFlags(to, "Flags", func(name string) bool { return !i.isShared(name) })
	title := "Flags that set settings"
	if i.flags == sidecarFlags {
		title = "Flags that find the sidecar"
	}
	i.writeFlags(to, title, i.isShared)
}

// writeFlags lists the flags that belong, if there are any.
func (i *invocation) writeFlags(to io.Writer, title string, belongs func(name string) bool) {
	table, begun := newTable(to), false
	i.set.VisitAll(func(f *flag.Flag) {
		if !belongs(f.Name) {
			return
		}
		if !begun {
			fmt.Fprintf(to, "\n%s:\n", title)
			begun = true
		}
		_, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(table, "  %s\t%s\n", flagForm(f), usage)
	})
	_ = table.Flush() // to a terminal or a buffer: there is nothing to do about an error
}

// flagForm is how a flag is given: -for TIME, -o table|json, -wait.
func flagForm(f *flag.Flag) string {
	value, _ := flag.UnquoteUsage(f)
	if !strings.Contains(value, "|") { // what it may be is given as it is
		value = strings.ToUpper(value)
	}
	return strings.TrimSpace("-" + f.Name + " " + value)
}

// folded breaks a text into lines of at most 80 columns.
func folded(text string) string {
	const width = 80
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
		case column+1+len(word) > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// help explains the program, or one command.
func help(i *invocation) func() error {
	return func() error {
		if len(i.args) == 0 {
			generalHelp(i.stdout)
			return nil
		}
		c, ok := findCommand(i.args[0])
		if !ok {
			return i.environment.noCommand(i.args[0])
		}
		invoke(i.environment, c).writeHelp(i.stdout)
		return nil
	}
}

// noCommand says that there is no such command, and which one may be meant.
func (e *environment) noCommand(name string) error {
	var names []string
	for _, c := range allCommands() {
		names = append(names, c.name)
	}
	text := "sidecar help lists them"
	if near := config.Nearest(name, names); near != "" {
		text = fmt.Sprintf("did you mean %q? %s all", near, text[:len("sidecar help lists")])
	}
	fmt.Fprintf(e.stderr, "sidecar: there is no command %q; %s\n", name, text)
	return errUsage
}

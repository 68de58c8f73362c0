package main

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

// commandPage is the page that is made of the commands.
const commandPage = "docs/reference/cli.md"

var update = flag.Bool("update", false, "write docs/reference/cli.md")

// TestReference holds docs/reference/cli.md to the tables of the commands.
func TestReference(t *testing.T) {
	doctable.Whole(t, *update, "../../"+commandPage, reference())
}

// reference is the page of the commands.
func reference() string {
	var b strings.Builder
	b.WriteString("# Command line\n\n" +
		"One program, `sidecar`, runs the sidecar, checks its settings and operates one that runs. `sidecar help` lists the commands, " +
		"`sidecar COMMAND -h` explains one. Flags may have one dash or two, and may stand before or behind the arguments.\n\n" +
		"| exit code | meaning |\n|---|---|\n" +
		"| 0 | Success |\n" +
		"| 1 | The command failed, or the sidecar rejected it; stderr says why |\n" +
		"| 2 | The command line is wrong |\n" +
		"| 3 | No sidecar answers |\n\n" +
		"Completion of commands, flags, names of settings and nodes: `sidecar completion bash`, `zsh` or `fish` prints the script, and " +
		"`sidecar completion -h` says where it goes.\n\n")
	for _, shared := range []struct {
		title, intro string
		kind         flagKind
	}{
		{"Flags that find the sidecar", "Commands for a running sidecar find it by `-socket` or `-admin`. Without them they read " +
			"its settings from `-config` or the file that the variable `SIDECAR_CONFIG` names, the environment and `-set`, and without " +
			"these they ask `127.0.0.1:7402`.", sidecarFlags},
		{"Flags that set settings", "`sidecar serve`, `check-config` and `doctor` read the same settings: the file first, then the " +
			"environment, then these flags.", settingFlags},
	} {
		fmt.Fprintf(&b, "## %s\n\n%s\n", shared.title, shared.intro)
		i := invoke(&environment{}, command{flags: shared.kind, begin: func(*invocation) func() error { return nil }})
		flagTable(&b, i, i.isShared)
		b.WriteString("\n")
	}
	for _, group := range groups {
		fmt.Fprintf(&b, "## %s\n\n", group)
		for _, c := range allCommands() {
			if c.group == group {
				commandReference(&b, c)
			}
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// commandReference explains one command.
func commandReference(b *strings.Builder, c command) {
	i := invoke(&environment{}, c)
	fmt.Fprintf(b, "### sidecar %s\n\n%s.", c.name, c.does)
	if c.more != "" {
		fmt.Fprintf(b, " %s", strings.TrimSpace(c.more))
	}
	fmt.Fprintf(b, "\n\n```\n%s\n```\n\n", i.usage())
	fmt.Fprint(b, "```sh\n")
	for _, line := range c.examples {
		fmt.Fprintf(b, "sidecar %s\n", line)
	}
	fmt.Fprint(b, "```\n")
	flagTable(b, i, func(name string) bool { return !i.isShared(name) })
	b.WriteString("\n")
}

// flagTable lists flags, if there are any.
func flagTable(b *strings.Builder, i *invocation, belongs func(name string) bool) {
	first := true
	i.set.VisitAll(func(f *flag.Flag) {
		if !belongs(f.Name) {
			return
		}
		if first {
			b.WriteString("\n| flag | meaning |\n|---|---|\n")
			first = false
		}
		_, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(b, "| `%s` | %s |\n", strings.ReplaceAll(flagForm(f), "|", "\\|"), strings.ReplaceAll(usage, "|", " or "))
	})
}

// Every command has what its help shows, and its examples are right command lines.
func TestHelp(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCommands() {
		if seen[c.name] {
			t.Errorf("there are two commands %q", c.name)
		}
		seen[c.name] = true
		if c.does == "" || len(c.examples) == 0 || c.args != "" && !strings.HasPrefix(c.args, "[") && c.lacks == "" {
			t.Errorf("%s: %+v; want a sentence, an example, and what to say when an argument is missing", c.name, c)
		}
		for _, line := range c.examples {
			if name, _, _ := strings.Cut(line, " "); name != c.name {
				t.Errorf("%s: the example %q is of another command", c.name, line)
			}
			bare, _, _ := strings.Cut(line, " >") // what a shell takes
			if fault := faultOf(t, strings.ReplaceAll(bare, `"`, "'")); fault != "" {
				t.Errorf("%s: the example %q: %s", c.name, line, fault)
			}
		}
		want := ""
		for _, args := range [][]string{{"help", c.name}, {c.name, "-h"}, {c.name, "x", "y", "--help"}} {
			code, stdout, stderr := call(t, nil, args...)
			if code != 0 || stderr != "" || !strings.HasPrefix(stdout, c.does+".\n\nUsage: sidecar "+c.name) ||
				!strings.Contains(stdout, "\n  sidecar "+c.examples[0]+"\n") || want != "" && stdout != want {
				t.Errorf("%q: exit code %d, stderr %q, stdout\n%s", args, code, stderr, stdout)
			}
			want = stdout
		}
		concerns := strings.Contains(want, "-ydb URL")
		if concerns != (c.flags == settingFlags) || strings.Contains(want, "-admin HOST:PORT") != (c.flags != noFlags) {
			t.Errorf("%s: it lists flags that do not concern it, or lacks some:\n%s", c.name, want)
		}
	}
}

// A fault of the command line is one line, and the usage one more.
func TestUsageFaults(t *testing.T) {
	for line, want := range map[string]string{
		"bna 2":     "sidecar: there is no command \"bna\"; did you mean \"ban\"? sidecar help lists all\n",
		"help quit": "sidecar: there is no command \"quit\"; sidecar help lists them\n",
		"ban -fro 10m 2": "sidecar ban: there is no flag -fro; did you mean -for?\nusage: sidecar ban NODE " +
			"[-for TIME] [-reason TEXT] [flags]; sidecar ban -h has more\n",
		"ban 2 -for ten":      "sidecar ban: invalid value \"ten\" for flag -for: want a time such as 500ms, 30s or 5m\nusage: ",
		"sessions -n many":    "sidecar sessions: invalid value \"many\" for flag -n: want a whole number\nusage: ",
		"nodes -o xml":        "sidecar nodes: invalid value \"xml\" for flag -o: want table or json\nusage: ",
		"nodes -zzz":          "sidecar nodes: there is no flag -zzz\nusage: ",
		"why":                 "sidecar why: want the number of a node; sidecar nodes lists them\nusage: ",
		"completion":          "sidecar completion: want bash, zsh or fish\nusage: sidecar completion SHELL; ",
		"completion tcsh":     "sidecar completion: \"tcsh\" is not a shell that it knows; want bash, zsh or fish\nusage: ",
		"nodes -ydb grpc://x": "sidecar nodes: there is no flag -ydb\nusage: ",
	} {
		code, stdout, stderr := call(t, nil, strings.Fields(line)...)
		if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, want) || strings.Count(stderr, "\n") > 2 {
			t.Errorf("sidecar %s: exit code %d, stdout %q, stderr\n%s; want\n%s", line, code, stdout, stderr, want)
		}
	}
}

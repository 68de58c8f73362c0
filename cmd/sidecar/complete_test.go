package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// completions runs the command that the scripts of the shells run, and returns the words without what they are.
func completions(t *testing.T, words ...string) (all []string) {
	t.Helper()
	code, stdout, stderr := call(t, nil, append([]string{completeCommand}, words...)...)
	if code != 0 || stderr != "" {
		t.Errorf("%q: exit code %d, stderr %q", words, code, stderr)
	}
	for line := range strings.Lines(stdout) {
		word, _, tab := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !tab {
			t.Errorf("%q: the line %q has no tab", words, line)
		}
		all = append(all, word)
	}
	return all
}

func TestComplete(t *testing.T) {
	admin, _ := fakeAdmin(t, map[string]string{
		"/state/nodes": `{"nodes":[{"id":1,"address":"a:1","health":"healthy"},{"id":12,"address":"b:1"},{"id":3,"address":"c:1"}]}`,
	})
	const free = "127.0.0.1:1" // another program takes no such port
	for _, tc := range []struct{ words, want string }{
		{"|dra", "drain drain-node"},
		{"|zzz", ""},
		{"ban|-re", "-reason"},
		{"ban|--fo", "--for"},
		{"shutdown|-", "-admin -config -set -socket -timeout -wait -yes"},
		{"nodes|-o|", "table json"},
		{"log-level|-level|W", "WARN"},
		{"statements|-by|", "time calls errors"},
		{"serve|-set|pool.max", "pool.max= pool.max_per_node="},
		{"serve|-set|zzz", ""},
		{"serve|-config|", ""}, // the shell completes files
		{"completion|", "bash zsh fish"},
		{"help|kil", "kill kill-call"},
		{"nodes|", ""},
		{"ban|-admin|" + admin + "|1", "1 12"},
		{"ban|-for|10m|-admin|" + admin + "|", "1 12 3"},
		{"ban|-admin|" + admin + "|1|", ""},
		{"ban|-admin|" + free + "|", ""},
		{"ban|-fro|10m|", ""},
		{"quit|", ""},
	} {
		if got := completions(t, strings.Split(strings.TrimPrefix(tc.words, "|"), "|")...); strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q; want %q", tc.words, got, tc.want)
		}
	}
	if got := completions(t); len(got) != len(allCommands()) {
		t.Errorf("without a word: %d candidates; want the %d commands", len(got), len(allCommands()))
	}
}

// asProgram is the variable that makes this test program the program itself.
const asProgram = "TEST_RUNS_THE_PROGRAM"

// program puts the program, by its own name, into a new directory, which it returns.
func program(t *testing.T) (dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	text := "#!/bin/sh\n" + asProgram + "=1 exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "sidecar"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The scripts work in the shells. A shell that is not installed is left out, except bash.
func TestCompletionScripts(t *testing.T) {
	dir := program(t)
	for shell, ask := range map[string]string{
		"bash": `. ./script; COMP_WORDS=(sidecar ban -re); COMP_CWORD=2; _sidecar; printf '%s\n' "${COMPREPLY[@]}"; complete -p sidecar`,
		"zsh": `autoload -U compinit; compinit -u -d ./dump; . ./script; print -r -- $_comps[sidecar]
words=(sidecar ban -re); CURRENT=3; _describe() { print -rl -- $words_found }; _sidecar`,
		"fish": `source ./script; complete -C 'sidecar ban -re'`,
	} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil && shell != "bash" {
				t.Skip(err)
			}
			code, script, stderr := call(t, nil, "completion", shell)
			if code != 0 {
				t.Fatal(stderr)
			}
			if err := os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
			c := exec.CommandContext(t.Context(), path, "-c", ask)
			c.Dir = dir
			c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "-reason") || strings.Contains(string(out), "-admin") {
				t.Errorf("%v:\n%s", err, out)
			}
			if shell == "bash" && !strings.Contains(string(out), "-F _sidecar sidecar") {
				t.Errorf("the function is not in use:\n%s", out)
			}
		})
	}
}

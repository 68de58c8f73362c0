package docstest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds one block. A reader would not wait for longer.
const patience = 3 * time.Minute

// Page is a document and the place where its blocks run.
type Page struct {
	Path string   // the document
	Dir  string   // where the blocks run; "": an empty directory
	Env  []string // added to this process's own

	// Replace is pairs of what the blocks say and what is meant here, as for strings.NewReplacer: the addresses of `make run` and those of
	// the processes of the test. What a block prints is compared after the way back.
	Replace []string

	Started  []string            // sh blocks whose work the test has done, such as "make run"
	Programs map[string][]string // command line of a language, to which the file of its blocks is added: {"python": {"python3"}}
}

// session runs the blocks of one page.
type session struct {
	*testing.T
	page  Page
	state string // directory with what lasts between sh blocks
	there *strings.Replacer
	back  *strings.Replacer

	pending []block // blocks of a program that is not complete yet, each with what it must print
	want    []*string
}

// mark is printed between the blocks of a program. No document has it.
const mark = "--- docstest: the next block ---"

// marks print mark, by language.
var marks = map[string]string{
	"python": "print('" + mark + "', flush=True)\n", "js": "console.log('" + mark + "');\n", "php": "echo \"" + mark + "\\n\";\n",
}

// Run runs all blocks of a page.
func Run(t *testing.T, page Page) {
	t.Helper()
	text, err := os.ReadFile(page.Path)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := parse(text)
	if err != nil {
		t.Fatalf("%s: %v", page.Path, err)
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no fenced block", page.Path)
	}
	if page.Dir == "" {
		page.Dir = t.TempDir()
	}
	back := slices.Clone(page.Replace)
	for i := 0; i+1 < len(back); i += 2 {
		back[i], back[i+1] = back[i+1], back[i]
	}
	s := &session{T: t, page: page, state: t.TempDir(), there: strings.NewReplacer(page.Replace...), back: strings.NewReplacer(back...)}
	for i, b := range blocks {
		var want *string
		if i+1 < len(blocks) && blocks[i+1].language == "text" {
			want = &blocks[i+1].text
		}
		s.block(b, want)
	}
	s.program()
}

func (s *session) block(b block, want *string) {
	s.Helper()
	program := s.page.Programs[b.language]
	switch {
	case b.language == "text" || b.shown():
	case b.file() != "":
		if err := os.WriteFile(filepath.Join(s.page.Dir, b.file()), []byte(s.there.Replace(b.text)), 0o644); err != nil {
			s.Fatal(err)
		}
	case b.language == "sh":
		s.program()
		if !slices.Contains(s.page.Started, strings.TrimSpace(b.text)) {
			s.shell(b, want)
		}
	case program != nil:
		if len(s.pending) > 0 && s.pending[0].language != b.language {
			s.program()
		}
		s.pending, s.want = append(s.pending, b), append(s.want, want)
	default:
		s.Errorf("%s:%d: a block of %q is run by nothing here", s.page.Path, b.line, b.language)
	}
}

// shell runs a block of commands, with the directory and the variables that the block before left behind.
func (s *session) shell(b block, want *string) {
	s.Helper()
	script := "set -eo pipefail; test ! -e \"$DOCSTEST/pwd\" || cd -- \"$(cat \"$DOCSTEST/pwd\")\"\n" +
		"test ! -e \"$DOCSTEST/env\" || . \"$DOCSTEST/env\"\n" + s.there.Replace(b.text) +
		"\npwd >\"$DOCSTEST/pwd\"; export -p >\"$DOCSTEST/env\"\n"
	s.compare(b, want, s.run(b, "bash", "-c", script))
}

// program runs the blocks of a program that is complete now.
func (s *session) program() {
	s.Helper()
	if len(s.pending) == 0 {
		return
	}
	blocks, want := s.pending, s.want
	s.pending, s.want = nil, nil
	language := blocks[0].language
	var text strings.Builder
	for i, b := range blocks {
		if i > 0 {
			text.WriteString(marks[language])
		}
		text.WriteString(s.there.Replace(b.text))
	}
	name := filepath.Join(s.page.Dir, "page."+map[string]string{"python": "py", "js": "mjs", "php": "php"}[language])
	if err := os.WriteFile(name, []byte(text.String()), 0o644); err != nil {
		s.Fatal(err)
	}
	command := slices.Concat(s.page.Programs[language], []string{name})
	printed := strings.Split(s.run(blocks[0], command[0], command[1:]...), mark+"\n")
	for i, b := range blocks {
		if i < len(printed) {
			s.compare(b, want[i], printed[i])
		}
	}
}

// run runs a command to its good end and returns what it printed.
func (s *session) run(b block, name string, args ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.page.Dir, &stdout, &stderr
	cmd.WaitDelay = time.Second
	cmd.Env = append(append(os.Environ(), s.page.Env...), "DOCSTEST="+s.state)
	if err := cmd.Run(); err != nil {
		s.Fatalf("%s:%d: %v\n%s\n%s%s", s.page.Path, b.line, err, b.text, stdout.String(), stderr.String())
	}
	return s.back.Replace(stdout.String())
}

func (s *session) compare(b block, want *string, got string) {
	s.Helper()
	if want != nil && !matches(*want, got) {
		s.Errorf("%s:%d: the block printed\n%s\nand not, as the document says,\n%s", s.page.Path, b.line, got, *want)
	}
}

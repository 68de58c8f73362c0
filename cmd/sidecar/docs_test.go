package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// asCode is a command in code, up to a comment or a column that describes it.
	asCode = regexp.MustCompile(`(?:^\s*(?:\$ )?|-- |exec \S+ )(?:[\w./]*/)?sidecar\s+(\S.*?)(?:\s{2,}|\s#|$)`)
	// inProse is the name of one where a sentence begins with it: the program has an article.
	inProse   = regexp.MustCompile(`(?:[.;:|] |\()sidecar ([a-z-]+)`)
	quoted    = regexp.MustCompile("`([^`]+)`")
	continued = regexp.MustCompile(`\s*\\\n\s*`)
)

// documented are the command lines in a page, without the program. "a | -b | c" in it are
// two commands, the first one also with another flag; [-b] need not be given.
func documented(t *testing.T, page, text string) (lines []string) {
	t.Helper()
	fenced := false
	take := func(code string) {
		for _, m := range asCode.FindAllStringSubmatch(code, -1) {
			name := ""
			for part := range strings.SplitSeq(m[1], "|") {
				words := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(part))
				switch {
				case len(words) == 0:
					t.Errorf("%s: %q has an empty part", page, m[0])
					continue
				case strings.HasPrefix(words[0], "-"):
					words = slices.Insert(words, 0, name)
				}
				name = words[0]
				lines = append(lines, strings.Join(words, " "))
			}
		}
	}
	for line := range strings.Lines(continued.ReplaceAllString(text, " ")) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced, strings.HasPrefix(line, "    "), strings.HasPrefix(line, "\t"):
			take(line)
		default:
			if strings.Count(line, "`")%2 != 0 {
				t.Errorf("%s: code goes on in the next line: %s", page, line)
			}
			for _, m := range quoted.FindAllStringSubmatch(line, -1) {
				take(m[1])
			}
			for _, m := range inProse.FindAllStringSubmatch(line, -1) {
				lines = append(lines, m[1])
			}
		}
	}
	return lines
}

// unquoted joins the words that single quotes hold together, as a shell does.
func unquoted(words []string) (args []string) {
	open := false
	for _, word := range words {
		bare := strings.ReplaceAll(word, "'", "")
		if open {
			args[len(args)-1] += " " + bare
		} else {
			args = append(args, bare)
		}
		if strings.Count(word, "'")%2 == 1 {
			open = !open
		}
	}
	return args
}

// faultOf is what the program says to a documented command line; "": it takes it. The
// command itself is not run.
func faultOf(t *testing.T, line string) string {
	t.Helper()
	args := unquoted(strings.Fields(line))
	for i, word := range args {
		if word == "N" {
			args[i] = "1"
		}
	}
	c, known := findCommand(args[0])
	if !known {
		_, _, stderr := call(t, nil, args...)
		return stderr
	}
	var stderr strings.Builder
	err := invoke(&environment{stderr: &stderr}, c).parse(args[1:])
	if first, _, _ := strings.Cut(stderr.String(), "\n"); err != nil && first != "sidecar "+c.name+": "+c.lacks {
		return first
	}
	return "" // or it is named without its argument
}

// Every command that the documents name is one of the program, with these flags, and
// every command of the program stands in them.
func TestDocumentedCommands(t *testing.T) {
	pages := []string{"README.md", "ARCHITECTURE.md", "deploy/README.md"}
	more, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range more {
		if page := strings.TrimPrefix(filepath.ToSlash(path), "../../"); page != commandPage { // TestHelp has its examples
			pages = append(pages, page)
		}
	}
	named := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range documented(t, page, string(text)) {
			if fault := faultOf(t, line); fault != "" {
				t.Errorf("%s: sidecar %s: %s", page, line, fault)
			}
			name, _, _ := strings.Cut(line, " ")
			named[name] = true
		}
	}
	for _, c := range allCommands() {
		if !named[c.name] {
			t.Errorf("no document names sidecar %s", c.name)
		}
	}
}

func TestUnquoted(t *testing.T) {
	got := unquoted(strings.Fields("serve -set 'kv.tables=a key=id:Uint64 value=v:String' -x 'y' z"))
	if want := []string{"serve", "-set", "kv.tables=a key=id:Uint64 value=v:String", "-x", "y", "z"}; !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
}

// What the above finds in a page, and what it would say to a wrong one.
func TestDocumentedFinds(t *testing.T) {
	const page = "The sidecar runs `bin/sidecar check-config -print`, and `docker exec NAME sidecar nodes`. Then\n" +
		"| `pause` | calls wait (`sidecar pools`); sidecar resume ends it (sidecar resize -max N). A sidecar rests, `ydb.sidecar x`.\n\n" +
		"    $ sidecar serve -config c.yaml \\\n        -takeover   # again: kubectl exec -it POD -- /sidecar top\n" +
		"    sidecar drain -lameduck | -off | [-timeout 20s] [-wait] | why NODE   what it does\n" +
		"    -> sidecar is no command here\n\n" +
		"```sh\nsidecar kil 1\n```\n"
	want := []string{
		"check-config -print", "nodes", "pools", "resume", "resize", "serve -config c.yaml -takeover", "top",
		"drain -lameduck", "drain -off", "drain -timeout 20s -wait", "why NODE", "kil 1",
	}
	if got := documented(t, "a page", page); !slices.Equal(got, want) {
		t.Errorf("found\n%q; want\n%q", got, want)
	}
	for line, want := range map[string]string{
		"kil 1":               `there is no command "kil"`,
		"drain -lame":         "there is no flag -lame; did you mean -lameduck?",
		"resize -max":         "flag needs an argument: -max",
		"nodes 5":             `unexpected "5"`,
		"ban 2 -for ten":      "invalid value",
		"ban NODE -for 10m":   "",
		"resize -max N":       "",
		"events -follow":      "",
		"serve -takeover now": `unexpected "now"`,
	} {
		if got := faultOf(t, line); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("sidecar %s: %q; want %q", line, got, want)
		}
	}
}

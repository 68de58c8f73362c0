package archtest

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateWords = flag.Bool("update-words", false, "write testdata/words.txt, if no rule has more hits than before")

// wordsFile lists how many hits of each rule are left in each folder.
const wordsFile = "testdata/words.txt"

// A wordRule finds wording that a reader has to read twice.
type wordRule struct {
	name string
	say  string         // what to write instead
	re   *regexp.Regexp // of a text on one line, code in backticks taken out; nil: each of has is a hit
	has  []string       // every hit has one of these as words of its own: most texts do not, which is cheap to see; nil: look
	only string         // kind of text that the rule is for; "": each
	not  *regexp.Regexp // no hit if the text behind the hit begins so
}

var wordRules = withPatterns([]wordRule{
	{name: "headless who", has: []string{"who"}, say: `name the subject: "callers that ..."`,
		re: regexp.MustCompile(`\b(of|for|to|by|from|with|than|as|when|since|so|that|but|how long|because) who\b`)},
	{name: "begins with Who", has: []string{"Who"}, say: `begin with a noun: "A caller that ..."`,
		re: regexp.MustCompile(`(^|[.;:] )Who [^.?]*([.;:]|$)`)},
	{name: "continues its name", say: "begin with a noun or a verb, so that the comment stands alone", only: trailing,
		re: regexp.MustCompile(`^(that|whose|whom|who)\b`)},
	{name: "points at its neighbour", say: "say it again, so that the comment stands alone", only: trailing,
		re: regexp.MustCompile(`^(of (that|them|these|those|it)|the same|likewise|these|those)\b`)},
	{name: "only a pronoun", say: "name the object", only: doc,
		re: regexp.MustCompile(`^[A-Za-z_]\w* (is |are )?(\w+ ){0,2}(that|those|these|them|it|the same|one|likewise)\.( |$)`)},
	{name: "so many", has: []string{"so many", "so long", "so much", "so few", "so often"}, say: "name the number, or what it counts",
		re: regexp.MustCompile(
			`\b(for|of|with|in|at|after|to|than|takes?|took|cost|costs|lasts?|waits?|returns?|brings?|holds?|once in|are|has|have) so (many|long|much|few|often)\b`,
		),
		not: regexp.MustCompile(`^ (as|that)\b|^[^.;,:]{0,60} (that|as) `)},
	{name: "but for", say: `"except"`, has: []string{"but for"}},
	{name: "archaic", say: `"again", "gradually", "long ago", "also", "about" ...`,
		has: []string{"anew", "by and by", "since long", "lest", "be it that", "be they that", "has better", "had better",
			"give or take", "likewise"}},
	{name: "octet", say: `"byte"`, has: []string{"octet", "octets", "Octet", "Octets"}},
	{name: "line", has: []string{"line"}, say: `"queue"`,
		re: regexp.MustCompile(
			`\b(in line|waiting line|(stands?|waits?|waited|come|comes|came|joins?|joined|out of|head of|in|turned away from|to) (its|the|the pool's) line)\b`,
		),
		not: regexp.MustCompile(`^ (with|of|the|that|above|below|for an?)\b`)},
	{name: "face", say: `"API"`, has: []string{"face", "faces", "Face", "Faces"},
		not: regexp.MustCompile(`^ of (the )?(it|this|that)\b`)},
	{name: "lend", say: `"check out", "check in", "in use"`,
		has: []string{"lend", "lends", "lent", "lending", "loan", "loans", "borrow", "borrows", "borrowed", "borrowing", "repay",
			"repaid"}},
	{name: "he", say: `"the caller", "the operator", "you"`, has: []string{"he", "He", "his", "His", "him", "himself"}},
	{name: "heir", say: `"successor", "hot restart"`, has: []string{"heir", "heirs", "Heir", "Heirs", "succession", "Succession"}},
	{name: "at rest", say: `"idle"`, has: []string{"at rest"}},
	{name: "begins small", say: "begin with a noun or an imperative and a capital, or with a number: the text stands alone", only: shown,
		re: regexp.MustCompile("^[^A-Z0-9`].{0,40}")},
	{name: "headless text", say: "begin with a noun or an imperative: the text stands alone", only: shown,
		re: regexp.MustCompile(`^(That|Whose|Whom|Who|What|Of|For|With|Also|Likewise|The same|These|Those|Meanwhile|Then|So)\b`)},
	{name: "long sentence", say: "at most 35 words in a sentence", only: shown,
		re: regexp.MustCompile(`([^\s.?!]|[.?!]\S)+(\s+([^\s.?!]|[.?!]\S)+){35,}`)},
})

// withPatterns gives the rules without a pattern the one that matches any of their words.
func withPatterns(rules []wordRule) []wordRule {
	for i := range rules {
		if r := &rules[i]; r.re == nil {
			r.re = regexp.MustCompile(`\b(` + strings.Join(r.has, "|") + `)\b`)
		}
	}
	return rules
}

// said are texts that a rule does not concern, by file, rule and a part of the text, and why.
var said = map[[3]string]string{
	{"docs/reference/glossary.md", "line", "callers that wait for a session"}:    "the page lists the words that are not used",
	{"docs/reference/glossary.md", "face", "A way to call the sidecar"}:          "the page lists the words that are not used",
	{"docs/reference/glossary.md", "lend", "To take a session from its pool"}:    "the page lists the words that are not used",
	{"docs/reference/glossary.md", "at rest", "To take a session from its pool"}: "the page lists the words that are not used",
	{"docs/reference/glossary.md", "heir", "A new process takes the place"}:      "the page lists the words that are not used",
}

// TestWords counts, by rule and folder, wording that CONTRIBUTING.md and docs/reference/glossary.md
// exclude, in comments and messages of Go, in proto, YAML and Markdown, in what is not released of the changelog,
// on the dashboard and on the page. wordsFile has the numbers that are left:
// they may only fall. After a commit that has made them smaller, or has moved texts to another folder,
// `make words` writes the file.
func TestWords(t *testing.T) {
	left := readWords(t)
	found, hits, used := map[wordPlace]int{}, map[wordPlace][]string{}, map[[3]string]bool{}
	for _, file := range proseFiles(t, root) {
		for _, p := range readProse(t, root, file) {
			for i := range wordRules {
				r := &wordRules[i]
				for _, hit := range r.find(p) {
					if isSaid(file, r.name, p.text, used) {
						continue
					}
					at := wordPlace{r.name, path.Dir(file)}
					found[at]++
					hits[at] = append(hits[at], fmt.Sprintf("%s:%d: %q: write %s", file, p.line, hit, r.say))
				}
			}
		}
	}
	for of := range said {
		if !used[of] {
			t.Errorf("%q is excused and not there", of)
		}
	}
	if *updateWords {
		writeWords(t, left, found)
		return
	}
	for _, at := range slices.SortedFunc(maps.Keys(found), wordPlace.compare) {
		if found[at] > left[at] {
			t.Errorf("%q in %s: %d, %s has %d; one of these is new (docs/reference/glossary.md):\n\t%s", at.rule, at.folder,
				found[at], wordsFile, left[at], strings.Join(hits[at], "\n\t"))
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(left), wordPlace.compare) {
		if found[at] < left[at] {
			t.Errorf("%q in %s: %d, which is less than the %d of %s; run `make words`", at.rule, at.folder, found[at], left[at], wordsFile)
		}
	}
}

// find returns the parts of a text that the rule matches.
func (r *wordRule) find(p prose) (hits []string) {
	if r.only != "" && r.only != p.kind || r.has != nil && !slices.ContainsFunc(r.has, func(words string) bool {
		return hasWords(p.text, words)
	}) {
		return nil
	}
	for _, m := range r.re.FindAllStringIndex(p.text, -1) {
		if r.not == nil || !r.not.MatchString(p.text[m[1]:]) {
			hits = append(hits, p.text[m[0]:min(m[1], m[0]+60)])
		}
	}
	return hits
}

// hasWords reports whether a text has words that no letter, digit or "_" continues, as \b of a pattern has it.
func hasWords(text, words string) bool {
	for from := 0; ; from++ {
		i := strings.Index(text[from:], words)
		if i < 0 {
			return false
		}
		from += i
		end := from + len(words)
		if (from == 0 || !isWord(text[from-1])) && (end == len(text) || !isWord(text[end])) {
			return true
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

// isSaid reports whether said has a text, and notes that it is there.
func isSaid(file, rule, text string, used map[[3]string]bool) bool {
	for of := range said {
		if of[0] == file && of[1] == rule && strings.Contains(text, of[2]) {
			used[of] = true
			return true
		}
	}
	return false
}

// A wordPlace is a rule and the folder in which it is broken.
type wordPlace struct{ rule, folder string }

func (p wordPlace) compare(q wordPlace) int {
	return strings.Compare(p.rule+"\t"+p.folder, q.rule+"\t"+q.folder)
}

func readWords(t *testing.T) map[wordPlace]int {
	t.Helper()
	text, err := os.ReadFile(wordsFile)
	if err != nil && !*updateWords {
		t.Fatal(err)
	}
	left := map[wordPlace]int{}
	for line := range strings.Lines(string(text)) {
		var n int
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(parts) == 3 {
			_, err = fmt.Sscan(parts[2], &n)
		}
		if len(parts) != 3 || err != nil || n < 1 {
			t.Fatalf("%s: %q is no rule, folder and number", wordsFile, line)
		}
		left[wordPlace{parts[0], parts[1]}] = n
	}
	return left
}

// writeWords writes the numbers, unless one of the rules has more hits than before.
func writeWords(t *testing.T, left, found map[wordPlace]int) {
	t.Helper()
	before, now := map[string]int{}, map[string]int{}
	for at, n := range left {
		before[at.rule] += n
	}
	var text strings.Builder
	for _, at := range slices.SortedFunc(maps.Keys(found), wordPlace.compare) {
		now[at.rule] += found[at]
		fmt.Fprintf(&text, "%s\t%s\t%d\n", at.rule, at.folder, found[at])
	}
	for _, r := range wordRules {
		n := now[r.name]
		t.Logf("%-24s %4d, before %4d", r.name, n, before[r.name])
		if len(left) > 0 && n > before[r.name] {
			t.Fatalf("%q has %d hits, %d before: %s is left as it is", r.name, n, before[r.name], wordsFile)
		}
	}
	if err := os.WriteFile(wordsFile, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// root is the folder of the repository.
const root = "../.."

// written are the folders and files whose text a program wrote, or that tell what happened once.
var written = []string{"docs/dev/adaptive", "docs/dev/benchmarks", "docs/dev/chaos",
	"docs/operations/page", "docs/dev/peers",
	"deploy/sidecar.yaml"} // has the comments of the settings, which count where they stand

// isProse reports whether a file has texts for people: code, documents, the dashboard, and the page.
func isProse(file string) bool {
	switch path.Ext(file) {
	case ".go", ".proto", ".yaml", ".yml", ".md":
		return true
	case ".json":
		return path.Dir(file) == "deploy/grafana"
	case ".js", ".html":
		return path.Dir(file) == "internal/admin/page"
	}
	return false
}

// proseFiles returns the files that people write and read, relative to the folder top.
func proseFiles(t *testing.T, top string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		base := path.Base(rel)
		if d.IsDir() {
			if rel != "." &&
				(strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules" || base == "bin" || base == "dist" ||
					base == "report" || slices.Contains(
					written, rel,
				)) {
				return fs.SkipDir
			}
			return nil
		}
		if isProse(rel) && !slices.Contains(written, rel) {
			files = append(files, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

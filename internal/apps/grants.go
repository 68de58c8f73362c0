package apps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Calls is a kind of calls, or a set of kinds.
type Calls uint8

// The kinds of calls that "calls=" lists.
const (
	Statements Calls = 1 << iota // with a text: Execute, Transact, Batch, Explain, and transactions
	KeyValue                     // of the key-value API
	Bulk                         // BulkUpsert and streams of rows
	Describe                     // descriptions of tables
	SDK                          // YDB's own protocol, through the SDK proxy

	everyCall = Statements | KeyValue | Bulk | Describe | SDK
)

// callNames are the kinds in the order of their bits.
var callNames = []string{"statements", "kv", "bulk", "describe", "sdk"}

// Grant is one of the words of apps.limits that take something away from an app.
type Grant uint8

// The grants, in the order in which a call is checked against them.
const (
	GrantCalls    Grant = iota // "calls="
	GrantReadOnly              // "read_only=yes"
	GrantTables                // "tables="
	GrantTimeout               // "timeout="
	GrantRows                  // "rows="
	GrantClass                 // "class="

	grants = int(GrantClass) + 1
)

// String returns the word of the grant.
func (g Grant) String() string {
	return [grants]string{"calls", "read_only", "tables", "timeout", "rows", "class"}[g]
}

// Grants is what an app may do. Nil is everything. It is immutable.
type Grants struct {
	app      string
	line     string   // of apps.limits: the app's name or *
	listed   Calls    // by "calls="; 0: there is none
	calls    Calls    // allowed kinds
	tables   []string // patterns; nil: any table
	readOnly bool
	timeout  time.Duration // 0: no limit of its own
	rows     uint64        // 0: no limit of its own
	class    bool          // its class is below that of the SDK proxy's calls
}

// NotGranted says which grant of an app a call is against.
type NotGranted struct {
	App   string
	Line  string // of apps.limits, which has the grant: the app's name or *
	Grant Grant
	Words string // of the grant in apps.limits, such as "tables=orders/*"
	Why   string // what the call does; it quotes no statement
}

// Error implements error.
func (e *NotGranted) Error() string {
	line := "its line"
	if e.Line == everybody {
		line = "the line *"
	}
	return fmt.Sprintf("app %s has %s in %s of apps.limits, and %s", e.App, e.Words, line, e.Why)
}

// words is a grant as apps.limits has it.
func (g *Grants) words(of Grant) string {
	switch of {
	case GrantCalls:
		return "calls=" + g.listed.String()
	case GrantReadOnly:
		return "read_only=yes"
	case GrantTables:
		return "tables=" + strings.Join(g.tables, ",")
	case GrantTimeout:
		return "timeout=" + g.timeout.String()
	case GrantRows:
		return fmt.Sprintf("rows=%d", g.rows)
	default:
		return "class=batch"
	}
}

// String lists the kinds.
func (c Calls) String() string {
	var names []string
	for i, name := range callNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// String lists all words that take something away; "": none does.
func (g *Grants) String() string {
	var all []string
	for of := range Grant(grants) {
		if g.restricts(of) {
			all = append(all, g.words(of))
		}
	}
	return strings.Join(all, " ")
}

func (g *Grants) restricts(of Grant) bool {
	switch of {
	case GrantCalls:
		return g.listed != 0 && g.listed != everyCall
	case GrantReadOnly:
		return g.readOnly
	case GrantTables:
		return g.tables != nil
	case GrantTimeout:
		return g.timeout > 0
	case GrantRows:
		return g.rows > 0
	default:
		return g.class
	}
}

// limits reports whether the SDK proxy cannot keep to what the app may do: it does not look into calls.
func (g *Grants) limits() bool {
	return g.readOnly || g.tables != nil || g.timeout > 0 || g.rows > 0 || g.class
}

// of is g for an app that has it from the line *.
func (g *Grants) of(app string) *Grants {
	if g == nil {
		return nil
	}
	own := *g
	own.app = app
	return &own
}

func (g *Grants) deny(by Grant, why string) error {
	return &NotGranted{App: g.app, Line: g.line, Grant: by, Words: g.words(by), Why: why}
}

// Call checks a call by its kind, and whether it writes.
func (g *Grants) Call(kind Calls, writes bool) error {
	switch {
	case g == nil:
	case g.calls&kind == 0:
		return g.deny(GrantCalls, "this call is one of "+kind.String())
	case writes && g.readOnly:
		return g.deny(GrantReadOnly, "this call writes")
	}
	return nil
}

// Statement checks a text. reads: it certainly only reads.
func (g *Grants) Statement(reads bool) error {
	if g == nil || !g.readOnly || reads {
		return nil
	}
	return g.deny(GrantReadOnly,
		"the statement does not certainly only read; quote a column that is named like a statement, such as `update`")
}

// OfTables reports whether the app may use some tables only.
func (g *Grants) OfTables() bool { return g != nil && g.tables != nil }

// Table checks the path of a table, relative to the database.
func (g *Grants) Table(path string) error {
	if g == nil || g.tables == nil {
		return nil
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return g.deny(GrantTables, fmt.Sprintf("the path %.100q of a table has an empty part, . or ..", path))
		}
	}
	if slices.ContainsFunc(g.tables, func(pattern string) bool { return matches(pattern, path) }) {
		return nil
	}
	return g.deny(GrantTables, fmt.Sprintf("table %.100q is not one of them", path))
}

// Untold is the error of a text whose tables cannot be told.
func (g *Grants) Untold(why string) error {
	return g.deny(GrantTables, "the tables of the statement cannot be told with certainty: "+why)
}

// matches reports whether a path is that of a pattern, which may end with *.
func matches(pattern, path string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return path == pattern
}

// Timeout is the longest time of a call; 0: none of its own.
func (g *Grants) Timeout() time.Duration {
	if g == nil {
		return 0
	}
	return g.timeout
}

// Rows is the most rows of an answer; 0: any number.
func (g *Grants) Rows() uint64 {
	if g == nil {
		return 0
	}
	return g.rows
}

// Many refuses a call that asks by their keys for more rows than the app may have.
func (g *Grants) Many(rows int) error {
	if g == nil || g.rows == 0 || uint64(rows) <= g.rows {
		return nil
	}
	return g.deny(GrantRows, fmt.Sprintf("the call asks for %d rows", rows))
}

// SDK checks a call of YDB's own protocol. The proxy does not look into calls: all that it can keep to is who may come at all.
func (g *Grants) SDK() error {
	if g == nil || g.calls&SDK != 0 {
		return nil
	}
	for _, by := range []Grant{GrantReadOnly, GrantTables, GrantTimeout, GrantRows, GrantClass} {
		if g.restricts(by) {
			return g.deny(by, "calls of YDB's own protocol go through unread: use the plain API")
		}
	}
	return g.deny(GrantCalls, "this call is one of sdk")
}

// set takes one word of a line, which is KEY=VALUE. known is false for other words.
func (g *Grants) set(word string) (known bool, err error) {
	key, text, _ := strings.Cut(word, "=")
	bad := func(want string) (bool, error) {
		return true, fmt.Errorf("%.100q; must be %s", word, want)
	}
	switch key {
	case "calls":
		g.listed = 0
		for name := range strings.SplitSeq(text, ",") {
			at := slices.Index(callNames, name)
			if at < 0 {
				return bad("calls= and some of " + strings.Join(callNames, ",") + ", with commas between")
			}
			g.listed |= 1 << at
		}
	case "tables":
		g.tables = nil
		for pattern := range strings.SplitSeq(text, ",") {
			if !isPattern(pattern) {
				return bad("tables= and paths relative to the database, with commas between; a * at the end stands for any rest")
			}
			g.tables = append(g.tables, pattern)
		}
	case "read_only":
		if text != "yes" && text != "no" {
			return bad("read_only=yes or read_only=no")
		}
		g.readOnly = text == "yes"
	case "timeout":
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Millisecond || d > maxTimeout {
			return bad("timeout= and 1ms to 24h")
		}
		g.timeout = d
	case "rows":
		n, ok := config.ParseSize(text)
		if !ok || n < 1 || n > 1e9 {
			return bad("rows= and 1 to 1000000000")
		}
		g.rows = uint64(n)
	default:
		return false, nil
	}
	return true, nil
}

// maxTimeout is the longest timeout=, which is that of api.max_timeout for calls of most.
const maxTimeout = 24 * time.Hour

// isPattern reports whether text can be one of "tables=".
func isPattern(text string) bool {
	name := strings.TrimSuffix(text, "*")
	if strings.Contains(name, "*") || strings.HasPrefix(name, "/") || text == "" {
		return false
	}
	for i, part := range strings.Split(name, "/") {
		last := i == strings.Count(name, "/")
		if part == "." || part == ".." || part == "" && !(last && name != text) {
			return false
		}
	}
	return true
}

// finish sees whether the words of a line go together. The result is nil if they take nothing away.
func (g *Grants) finish(app string) (*Grants, error) {
	g.app, g.line, g.calls = app, app, everyCall
	if g.listed != 0 {
		g.calls = g.listed
	}
	switch {
	case g.listed&SDK != 0 && g.limits():
		return nil, fmt.Errorf("calls= has sdk, and the SDK proxy cannot keep to the other grants (%s): leave sdk out", g)
	case g.listed == Bulk && g.readOnly:
		return nil, errors.New("calls=bulk and read_only=yes leave nothing that the app may do")
	case g.limits():
		g.calls &^= SDK
	case g.calls == everyCall:
		return nil, nil
	}
	return g, nil
}

// sayGrants has the log say what apps may do: everything, unless apps.limits takes something away. That only helps against
// callers that have to prove who they are.
func (r *Registry) sayGrants() {
	r.mu.Lock()
	lines, owned := r.quotas, r.proofs.Load().owned
	r.mu.Unlock()
	granted, unproved := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		g := lines[name].grants
		if g == nil {
			continue
		}
		granted++
		r.log.Info("an app has grants", "setting", "apps.limits", "app", name, "grants", g.String())
		if name != everybody && !owned[name] {
			unproved = append(unproved, name)
		}
	}
	switch {
	case granted == 0:
		r.log.Info("every app may do everything: no line of apps.limits has grants", "setting", "apps.limits", "see",
			"docs/how-to/grants.md")
	case lines[everybody].grants == nil:
		r.log.Warn("callers that name no app with grants may do everything: add a line for *", "setting", "apps.limits")
	}
	if len(unproved) > 0 {
		r.log.Warn("apps have grants of their own, and any caller can use their names: give each a token or a user",
			"setting", "apps.limits", "apps", strings.Join(unproved, ", "))
	}
}

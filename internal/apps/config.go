package apps

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// maxApps bounds Config.Max: a number of 8 bits stands for an app in the queue.
const maxApps = 250

// Config is the section "apps".
type Config struct {
	// Number of app names told apart at a time. Calls of further apps count for the app "other" until a
	// name has been unused for ten minutes; 1 to 250
	Max int `yaml:"max"`
	// Quotas and grants of an app; the app "*" stands for each that is not listed. One line has this form:
	// `NAME weight=2 open=100 sessions=10 calls_per_second=500 calls_burst=1000 bytes_per_second=8MiB
	// bytes_burst=16MiB pool_id=olap class=system calls=statements,kv,bulk,describe,sdk
	// tables=orders/*,users read_only=yes timeout=2s rows=1000`. The weight is the app's share of the
	// queue next to other apps (1). Bytes are those of requests and answers. A burst that is not named is
	// one second's worth. pool_id is the resource pool for statements that name none. class is the highest
	// class of its calls (interactive). class and the words behind it are grants, and without them the app
	// may do everything: docs/how-to/grants.md
	Quotas []string `yaml:"limits"`
	// Apps by proven client, as `WHO=name`. WHO is a uid, for programs of that user on this machine over a
	// Unix socket of the API. It may also be `cn:NAME`, `dns:NAME` or `uri:NAME`, a name in the client's
	// certificate (grpc.client_ca_file, http.client_ca_file)
	Users []string `yaml:"users"`
	// Bearer tokens of apps, as `name=secret`. With one, a caller of the plain API over TCP needs a token
	Token []string `yaml:"token"`
	// Apps with sessions of their own on the nodes, under the app's name (x-ydb-application-name): wire
	// (apps that use YDB's own protocol) or none. All apps of an identity together have at most pool.max
	// sessions
	Sessions string `yaml:"sessions"`
	// File with further lines of apps.token, read again when it changes
	TokenFile string `yaml:"token_file"`
}

// Default returns the defaults.
func Default() Config { return Config{Max: 64, Sessions: SessionsWire} }

// Apps that have sessions of their own, for Config.Sessions.
const (
	SessionsNone = "none" // as ""
	SessionsWire = "wire"
)

// Named reports whether any app has sessions of its own.
func (c Config) Named() bool { return c.Sessions == SessionsWire }

// Classes from the highest to the lowest, as App.Highest numbers them.
var topNames = [Classes]string{"system", "interactive", "normal", "batch"}

const (
	topInteractive = 1
	topNormal      = 2
)

// quotas are what an app may use and do; 0 is no limit.
type quotas struct {
	weight         int
	top            uint8   // highest class of its calls, in topNames
	grants         *Grants // nil: it may do everything
	open, sessions int64
	calls, bytes   rate
	poolID         string // resource pool of its statements; "": the server chooses
}

// rate is an amount a second, and how much of it may come at once.
type rate struct{ perSecond, burst int64 }

// everybody stands for the apps that have no quotas of their own.
const everybody = "*"

// Validate returns all faults, joined.
func (c Config) Validate() error {
	_, err := c.parse()
	return err
}

// parsed is a Config in a form to work with.
type parsed struct {
	quotas map[string]quotas
	users  map[uint32]string
	names  map[string]string // of apps, by names in certificates with their kinds, such as cn:orders
	tokens map[digest]string // names
}

func (c Config) parse() (parsed, error) {
	p := parsed{quotas: map[string]quotas{}, users: map[uint32]string{}, names: map[string]string{}, tokens: map[digest]string{}}
	var errs []error
	if c.Max < 1 || c.Max > maxApps {
		errs = append(errs, config.Faultf("max", " = %d; must be 1 to %d", c.Max, maxApps))
	}
	if c.Sessions != "" && c.Sessions != SessionsNone && c.Sessions != SessionsWire {
		errs = append(errs, config.Faultf("sessions", " = %.100q; must be %s or %s", c.Sessions, SessionsNone, SessionsWire))
	}
	names := map[string]bool{}
	for i, line := range c.Quotas {
		name, l, err := parseQuotas(line)
		if err == nil && names[name] {
			err = fmt.Errorf("app %s is there twice", name)
		}
		if err != nil {
			errs = append(errs, config.Faultf("limits", "[%d]: %w", i, err))
			continue
		}
		names[name], p.quotas[name] = true, l
	}
	for i, entry := range c.Users {
		name, err := p.addUser(entry)
		if err != nil {
			errs = append(errs, config.Faultf("users", "[%d] = %.100q; %w", i, entry, err))
			continue
		}
		names[name] = true
	}
	for i, entry := range c.Token {
		if err := p.addToken(entry); err != nil {
			errs = append(errs, config.Faultf("token", "[%d]: %w", i, err)) // without its text
		}
	}
	if c.TokenFile != "" {
		text, err := config.ReadFile(c.TokenFile, config.MaxTokens)
		if err == nil {
			err = p.addTokens(string(text))
		}
		if err != nil {
			errs = append(errs, config.Faultf("token_file", ": %w", err))
		}
	}
	for _, name := range p.tokens {
		names[name] = true
	}
	if delete(names, everybody); len(names) > c.Max && len(errs) == 0 {
		errs = append(errs, config.Faultf("max", " = %d; limits, users and tokens name %d apps", c.Max, len(names)))
	}
	return p, errors.Join(errs...)
}

// addUser takes "WHO=name".
func (p *parsed) addUser(entry string) (name string, err error) {
	at := max(strings.LastIndexByte(entry, '='), 0) // a name in a certificate may have one
	who := strings.TrimSpace(entry[:at])
	if name = strings.TrimSpace(strings.TrimPrefix(entry[at:], "=")); !isName(name) {
		return "", fmt.Errorf("must be %s, with a name of %s", userForm, nameForm)
	}
	if uid, err := strconv.ParseUint(who, 10, 32); err == nil {
		p.users[uint32(uid)] = name
		return name, nil
	}
	kind, rest, named := strings.Cut(who, ":")
	if !named {
		return "", fmt.Errorf("must be %s, with a name of %s", userForm, nameForm)
	}
	key, err := certificateKey(kind, rest)
	if err != nil {
		return "", fmt.Errorf("must be %s: %w", userForm, err)
	}
	if other, ok := p.names[key]; ok && other != name {
		return "", fmt.Errorf("the same certificates are the app %s already", other)
	}
	p.names[key] = name
	return name, nil
}

// userForm is the form of an item of Config.Users.
const userForm = "uid=name, cn:NAME=name, dns:NAME=name or uri:NAME=name"

// minToken is the least length of a secret, in bytes.
const minToken = 16

// addToken takes "name=secret". The error does not show the secret.
func (p *parsed) addToken(entry string) error {
	name, secret, _ := strings.Cut(strings.TrimSpace(entry), "=")
	switch {
	case !isName(name):
		return fmt.Errorf("want name=secret, with a name of %s", nameForm)
	case len(secret) < minToken:
		return fmt.Errorf("the secret of %s is shorter than %d bytes", name, minToken)
	}
	d := digestOf(secret)
	if other, ok := p.tokens[d]; ok && other != name {
		return fmt.Errorf("%s and %s have the same secret", other, name)
	}
	p.tokens[d] = name
	return nil
}

// addTokens takes the text of a file: a token in each line; lines that are empty or
// begin with # say nothing.
func (p *parsed) addTokens(text string) error {
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.addToken(line); err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return nil
}

// parseQuotas reads one of Config.Quotas. Its errors name the app.
func parseQuotas(line string) (name string, l quotas, err error) {
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != everybody && !isName(words[0]) {
		return "", l, fmt.Errorf("%.100q; must begin with * or a name of %s", line, nameForm)
	}
	if l, err = quotasOf(words[0], words[1:]); err != nil {
		return "", l, fmt.Errorf("app %s: %w", words[0], err)
	}
	return words[0], l, nil
}

// quotasOf reads the words behind the name of an app.
func quotasOf(app string, words []string) (l quotas, err error) {
	l.weight, l.top, l.grants = 1, topInteractive, new(Grants)
	for _, word := range words {
		if err := l.set(word); err != nil {
			return l, err
		}
	}
	for _, r := range []struct {
		name string
		rate *rate
	}{{"calls", &l.calls}, {"bytes", &l.bytes}} {
		if r.rate.burst > 0 && r.rate.perSecond == 0 {
			return l, fmt.Errorf("%s_burst needs %s_per_second", r.name, r.name)
		}
		if r.rate.burst == 0 {
			r.rate.burst = r.rate.perSecond
		}
	}
	l.grants.class = l.top > topNormal
	l.grants, err = l.grants.finish(app)
	return l, err
}

// amounts are the words that have a number.
var amounts = []string{"weight", "open", "sessions", "calls_per_second", "calls_burst", "bytes_per_second", "bytes_burst"}

// set reads one word of a line, which is KEY=VALUE.
func (l *quotas) set(word string) error {
	key, text, _ := strings.Cut(word, "=")
	if known, err := l.grants.set(word); known {
		return err
	}
	if key == "class" {
		at := slices.Index(topNames[:], text)
		if at < 0 {
			return fmt.Errorf("%.100q; must be class= and %s", word, strings.Join(topNames[:], ", "))
		}
		l.top = uint8(at)
		return nil
	}
	if key == "pool_id" {
		if !isName(text) {
			return fmt.Errorf("%.100q; must be pool_id= and the name of a resource pool, %s", word, nameForm)
		}
		l.poolID = text
		return nil
	}
	if !slices.Contains(amounts, key) {
		return fmt.Errorf(
			"%.100q; must be one of %s, each with =N, or class=CLASS, pool_id=NAME, calls=KINDS, tables=PATHS, read_only=yes, "+
				"timeout=TIME or rows=N",
			word, strings.Join(amounts, ", "),
		)
	}
	n, bad := parseAmount(text)
	if bad != nil {
		return fmt.Errorf("%.100q: %w", word, bad)
	}
	most := int64(1e12)
	switch key {
	case "weight":
		l.weight, most = int(n), 1000
	case "open":
		l.open, most = n, 1e6
	case "sessions":
		l.sessions, most = n, 1e6
	case "calls_per_second":
		l.calls.perSecond, most = n, 1e6
	case "calls_burst":
		l.calls.burst, most = n, 1e6
	case "bytes_per_second":
		l.bytes.perSecond = n
	case "bytes_burst":
		l.bytes.burst = n
	}
	if n < 1 || n > most {
		return fmt.Errorf("%.100q; must be 1 to %d", word, most)
	}
	return nil
}

// parseAmount reads 50, 8KiB, 8MiB or 1GiB.
func parseAmount(text string) (int64, error) {
	n, ok := config.ParseSize(text)
	if !ok || n > 1e12 {
		return 0, errors.New("want a number such as 50 or 8MiB")
	}
	return int64(n), nil
}

const (
	maxName  = 64
	nameForm = "1 to 64 letters, digits and any of . _ - / @"
)

// isName reports whether an app may be called so.
func isName[T string | []byte](name T) bool {
	if len(name) == 0 || len(name) > maxName {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if c >= utf8.RuneSelf || (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("._-/@", rune(c)) {
			return false
		}
	}
	return true
}

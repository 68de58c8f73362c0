package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Config says where the cluster is and how to talk to it (settings ydb.*).
type Config struct {
	URL    string `yaml:"url"`     // grpc[s]://host:port[,host:port]/database, or ...?database=/database
	CAFile string `yaml:"ca_file"` // PEM of extra roots for grpcs and for the providers of tokens; "" means the system's
	// PEM; with key_file: the sidecar's own certificate, which it shows to the cluster; these
	// files and ca_file are read again when they change
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"` // PEM
	// that the certificates of all nodes have, in place of the name that discovery gives or of the
	// host
	ServerName string `yaml:"server_name"`
	Auth       Auth   `yaml:"auth"`

	// tell the cluster that it may place new sessions on other nodes and close sessions to even
	// out its nodes (capability session-balancer); the pool spreads its sessions without that
	SessionBalancer bool `yaml:"session_balancer"`

	// what carries the sidecar's own calls to the nodes: h2, its data path, or grpc, grpc-go,
	// which goes with the next version
	Client string `yaml:"client"`

	KeepAlive time.Duration `yaml:"keepalive"` // time between pings of a quiet connection, at least 10s
	// a ping unanswered for so long breaks the connection; health.probe_timeout counts in its
	// place while health.silence is on, but for client=grpc
	KeepAliveTimeout time.Duration `yaml:"keepalive_timeout"`
	// for one attempt to connect, TLS included, and for asking one address for the list of nodes
	ConnectTimeout   time.Duration `yaml:"connect_timeout"`
	DiscoveryTimeout time.Duration `yaml:"discovery_timeout"` // for asking one address for the list of nodes; 0: connect_timeout
}

// Auth says which credentials go with every call (settings ydb.auth.*).
type Auth struct {
	Kind string `yaml:"kind"` // anonymous, token, token_file, static, metadata, service_account, oauth

	Token     Secret `yaml:"token"`      // token: the access token itself
	TokenFile string `yaml:"token_file"` // token_file: a file with the access token, read again when it changes

	User         string `yaml:"user"`          // static
	Password     Secret `yaml:"password"`      // static
	PasswordFile string `yaml:"password_file"` // static: a file with the password, instead of password

	MetadataURL string `yaml:"metadata_url"` // metadata: where the token is served

	KeyFile string `yaml:"key_file"` // service_account: the JSON key of the account
	IAMURL  string `yaml:"iam_url"`  // service_account: where the signed key is exchanged for a token

	OAuth OAuth `yaml:"oauth"`
}

// OAuth is an OAuth 2.0 token exchange (RFC 8693; settings ydb.auth.oauth.*).
type OAuth struct {
	URL              string `yaml:"url"`                // the token endpoint
	SubjectToken     Secret `yaml:"subject_token"`      // whose token is exchanged
	SubjectTokenFile string `yaml:"subject_token_file"` // the same from a file, read at each exchange
	SubjectTokenType string `yaml:"subject_token_type"` // a URN of RFC 8693
	RequestedType    string `yaml:"requested_type"`     // a URN of RFC 8693
	Audience         string `yaml:"audience"`           // whom the new token is for
	Resource         string `yaml:"resource"`           // what it is for, a URI
	Scope            string `yaml:"scope"`              // what it may do, words with spaces between
}

// The clients.
const (
	ClientH2   = "h2"
	ClientGRPC = "grpc"
)

// The kinds of credentials.
const (
	authAnonymous      = "anonymous"
	authToken          = "token"
	authTokenFile      = "token_file"
	authStatic         = "static"
	authMetadata       = "metadata"
	authServiceAccount = "service_account"
	authOAuth          = "oauth"
)

// Default is a local cluster without credentials.
func Default() Config {
	return Config{
		URL: "grpc://127.0.0.1:2136/local",
		Auth: Auth{
			Kind:        authAnonymous,
			MetadataURL: "http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/token",
			IAMURL:      "https://iam.api.cloud.yandex.net/iam/v1/tokens",
			OAuth: OAuth{
				SubjectTokenType: "urn:ietf:params:oauth:token-type:jwt",
				RequestedType:    "urn:ietf:params:oauth:token-type:access_token",
			},
		},
		Client:           ClientH2,
		KeepAlive:        10 * time.Second,
		KeepAliveTimeout: 5 * time.Second,
		ConnectTimeout:   5 * time.Second,
	}
}

// Validate reports every fault of c at once; each begins with the setting's
// name below ydb. Files are read, so that a missing one is found before a port is bound.
func (c Config) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	e, err := parseURL(c.URL)
	if err != nil {
		add("url %w", err)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		add("cert_file and key_file are set together or not at all")
	} else if _, err := certs.New("ydb", c.files(), nil, nil); err != nil {
		errs = append(errs, err)
	}
	if (c.CertFile != "" || c.ServerName != "") && err == nil && !e.secure {
		add("cert_file or server_name is set, but url is grpc:// and no TLS is spoken; write grpcs:// or drop it")
	}
	if c.CAFile != "" {
		if err == nil && !e.secure && !c.Auth.usesHTTP() {
			add("ca_file is set, but url is grpc:// and no TLS is spoken; write grpcs:// or drop it")
		}
	}
	if c.Client != ClientH2 && c.Client != ClientGRPC {
		add("client = %q; must be %s or %s", c.Client, ClientH2, ClientGRPC)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"keepalive", c.KeepAlive, 10 * time.Second},
		{"keepalive_timeout", c.KeepAliveTimeout, time.Millisecond},
		{"connect_timeout", c.ConnectTimeout, time.Millisecond},
		{"discovery_timeout", cmp.Or(c.DiscoveryTimeout, time.Millisecond), time.Millisecond},
	} {
		if d.value < d.least {
			add("%s = %v; must be >= %v", d.name, d.value, d.least)
		}
	}
	return errors.Join(append(errs, c.Auth.validate()...)...)
}

// files are those of TLS to the cluster.
func (c Config) files() certs.Files {
	return certs.Files{Cert: c.CertFile, Key: c.KeyFile, CA: c.CAFile, System: true}
}

func (a Auth) usesHTTP() bool {
	return a.Kind == authMetadata || a.Kind == authServiceAccount || a.Kind == authOAuth
}

func (a Auth) validate() []error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	readable := func(name, path string) {
		if _, err := config.ReadSecret(path, maxSecretFile); err != nil {
			add("auth.%s: %w", name, err)
		}
	}
	switch a.Kind {
	case authAnonymous:
	case authToken:
		if a.Token == "" {
			add("auth.token is empty; auth.kind token needs it")
		}
	case authTokenFile:
		readable("token_file", a.TokenFile)
	case authStatic:
		if a.User == "" {
			add("auth.user is empty; auth.kind static needs it")
		}
		if a.Password != "" && a.PasswordFile != "" {
			add("auth.password and auth.password_file are both set; only one can count")
		}
		if a.PasswordFile != "" {
			readable("password_file", a.PasswordFile)
		}
	case authMetadata:
		errs = append(errs, checkHTTP("auth.metadata_url", a.MetadataURL)...)
	case authServiceAccount:
		errs = append(errs, checkHTTP("auth.iam_url", a.IAMURL)...)
		if _, err := readServiceKey(a.KeyFile); err != nil {
			add("auth.key_file: %w", err)
		}
	case authOAuth:
		errs = append(errs, checkHTTP("auth.oauth.url", a.OAuth.URL)...)
		switch {
		case a.OAuth.SubjectToken != "" && a.OAuth.SubjectTokenFile != "":
			add("auth.oauth.subject_token and auth.oauth.subject_token_file are both set; only one can count")
		case a.OAuth.SubjectTokenFile != "":
			readable("oauth.subject_token_file", a.OAuth.SubjectTokenFile)
		case a.OAuth.SubjectToken == "":
			add("auth.oauth.subject_token is empty; auth.kind oauth needs it, or subject_token_file")
		}
	default:
		add("auth.kind = %q; must be one of anonymous, token, token_file, static, metadata, service_account, oauth", a.Kind)
	}
	return errs
}

func checkHTTP(name, text string) []error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return []error{fmt.Errorf("%s must be an http:// or https:// URL", name)}
	case u.User != nil:
		return []error{fmt.Errorf("%s must not hold a user or password", name)}
	}
	return nil
}

// maxSecretFile bounds files of tokens, passwords and keys.
const maxSecretFile = 1 << 20

package upstream

import (
	"cmp"
	"errors"
	"net/url"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Config says where the cluster is and how to talk to it (settings ydb.*).
type Config struct {
	// Address of the cluster: `grpc[s]://host:port[,host:port]/database`, or `...?database=/database`
	URL string `yaml:"url"`
	// PEM file with further roots for grpcs and for the providers of tokens. Empty: the system's roots
	CAFile string `yaml:"ca_file"`
	// PEM file with the certificate that the sidecar shows to the cluster; needs key_file. All three files
	// are read again when they change
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"` // PEM file with the key of cert_file
	// Server name to verify in every node's certificate. Empty: the name from discovery, or the host
	ServerName string `yaml:"server_name"`
	Auth       Auth   `yaml:"auth"`

	// Let the cluster place new sessions on other nodes and close sessions to even out its nodes
	// (capability session-balancer). The pool spreads its sessions without it
	SessionBalancer bool `yaml:"session_balancer"`

	// Transport of the sidecar's own calls to the nodes: h2 (its data path), or grpc (grpc-go), which goes
	// with the next version
	Client string `yaml:"client"`

	KeepAlive time.Duration `yaml:"keepalive"` // Time between pings of a quiet connection, at least 10s
	// Longest wait for the answer to a keepalive ping, before the connection is closed.
	// health.probe_timeout counts in its place while health.silence is on, except with ydb.client=grpc
	KeepAliveTimeout time.Duration `yaml:"keepalive_timeout"`
	// Longest time for one attempt to connect, TLS included, and for asking one address for the list of
	// nodes
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// Longest time for asking one address for the list of nodes. 0: ydb.connect_timeout
	DiscoveryTimeout time.Duration `yaml:"discovery_timeout"`
}

// Auth says which credentials go with every call (settings ydb.auth.*).
type Auth struct {
	// Kind of credentials: anonymous, token, token_file, static, metadata, service_account or oauth
	Kind string `yaml:"kind"`

	Token Secret `yaml:"token"` // Access token, for kind token
	// File with the access token, for kind token_file; read again when it changes
	TokenFile string `yaml:"token_file"`

	User         string `yaml:"user"`          // User name, for kind static
	Password     Secret `yaml:"password"`      // Password, for kind static
	PasswordFile string `yaml:"password_file"` // File with the password, for kind static, in place of password

	MetadataURL string `yaml:"metadata_url"` // URL that serves the token, for kind metadata

	// File with the JSON key of the account, for kind service_account
	KeyFile string `yaml:"key_file"`
	// URL that exchanges the signed key for a token, for kind service_account
	IAMURL string `yaml:"iam_url"`

	OAuth OAuth `yaml:"oauth"`
}

// OAuth is an OAuth 2.0 token exchange (RFC 8693; settings ydb.auth.oauth.*).
type OAuth struct {
	URL              string `yaml:"url"`                // Token endpoint
	SubjectToken     Secret `yaml:"subject_token"`      // Token that is exchanged for an access token
	SubjectTokenFile string `yaml:"subject_token_file"` // File with the subject token, read at each exchange
	SubjectTokenType string `yaml:"subject_token_type"` // Type of the subject token, a URN of RFC 8693
	RequestedType    string `yaml:"requested_type"`     // Type of the requested token, a URN of RFC 8693
	Audience         string `yaml:"audience"`           // Service that the new token is for
	Resource         string `yaml:"resource"`           // URI of the resource that the new token is for
	Scope            string `yaml:"scope"`              // Scopes of the new token, with spaces between
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
	add := func(setting, format string, args ...any) {
		errs = append(errs, config.Faultf(setting, format, args...))
	}
	e, err := parseURL(c.URL)
	if err != nil {
		add("url", " %w", err)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		add("cert_file", " and key_file are set together or not at all")
	} else if _, err := certs.New("ydb", c.files(), nil, nil); err != nil {
		errs = append(errs, err)
	}
	if (c.CertFile != "" || c.ServerName != "") && err == nil && !e.secure {
		add("cert_file", " or server_name is set, but url is grpc:// and no TLS is spoken; write grpcs:// or drop it")
	}
	if c.CAFile != "" {
		if err == nil && !e.secure && !c.Auth.usesHTTP() {
			add("ca_file", " is set, but url is grpc:// and no TLS is spoken; write grpcs:// or drop it")
		}
	}
	if c.Client != ClientH2 && c.Client != ClientGRPC {
		add("client", " = %q; must be %s or %s", c.Client, ClientH2, ClientGRPC)
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
			add(d.name, " = %v; must be >= %v", d.value, d.least)
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
	add := func(setting, format string, args ...any) {
		errs = append(errs, config.Faultf(setting, format, args...))
	}
	readable := func(name, path string) {
		if _, err := config.ReadSecret(path, maxSecretFile); err != nil {
			add("auth."+name, ": %w", err)
		}
	}
	switch a.Kind {
	case authAnonymous:
	case authToken:
		if a.Token == "" {
			add("auth.token", " is empty; auth.kind token needs it")
		}
	case authTokenFile:
		readable("token_file", a.TokenFile)
	case authStatic:
		if a.User == "" {
			add("auth.user", " is empty; auth.kind static needs it")
		}
		if a.Password != "" && a.PasswordFile != "" {
			add("auth.password", " and auth.password_file are both set; only one can count")
		}
		if a.PasswordFile != "" {
			readable("password_file", a.PasswordFile)
		}
	case authMetadata:
		errs = append(errs, checkHTTP("auth.metadata_url", a.MetadataURL)...)
	case authServiceAccount:
		errs = append(errs, checkHTTP("auth.iam_url", a.IAMURL)...)
		if _, err := readServiceKey(a.KeyFile); err != nil {
			add("auth.key_file", ": %w", err)
		}
	case authOAuth:
		errs = append(errs, checkHTTP("auth.oauth.url", a.OAuth.URL)...)
		switch {
		case a.OAuth.SubjectToken != "" && a.OAuth.SubjectTokenFile != "":
			add("auth.oauth.subject_token", " and auth.oauth.subject_token_file are both set; only one can count")
		case a.OAuth.SubjectTokenFile != "":
			readable("oauth.subject_token_file", a.OAuth.SubjectTokenFile)
		case a.OAuth.SubjectToken == "":
			add("auth.oauth.subject_token", " is empty; auth.kind oauth needs it, or subject_token_file")
		}
	default:
		add("auth.kind", " = %q; must be one of anonymous, token, token_file, static, metadata, service_account, oauth", a.Kind)
	}
	return errs
}

func checkHTTP(name, text string) []error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return []error{config.Faultf(name, " must be an http:// or https:// URL")}
	case u.User != nil:
		return []error{config.Faultf(name, " must not hold a user or password")}
	}
	return nil
}

// maxSecretFile bounds files of tokens, passwords and keys.
const maxSecretFile = 1 << 20

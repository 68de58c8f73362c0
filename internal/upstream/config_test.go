package upstream

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseURL(t *testing.T) {
	for _, c := range []struct {
		text string
		want endpoint
	}{
		{"grpc://127.0.0.1:2136/local", endpoint{[]string{"127.0.0.1:2136"}, "/local", false}},
		{"grpcs://ydb.example:2135/ru/b1g/etn", endpoint{[]string{"ydb.example:2135"}, "/ru/b1g/etn", true}},
		{"grpc://localhost:2136/?database=/local", endpoint{[]string{"localhost:2136"}, "/local", false}},
		{"grpc://localhost:2136?database=local", endpoint{[]string{"localhost:2136"}, "/local", false}},
		{"grpc://h:1/path?database=/query", endpoint{[]string{"h:1"}, "/query", false}},
		{"grpc://h/db", endpoint{[]string{"h:2136"}, "/db", false}},
		{"grpcs://h/db/", endpoint{[]string{"h:2135"}, "/db", true}},
		{"GRPC://h/db", endpoint{[]string{"h:2136"}, "/db", false}},
		{"grpc://a:1,b:2,c/db", endpoint{[]string{"a:1", "b:2", "c:2136"}, "/db", false}},
		{"grpc://[::1]:2136/db", endpoint{[]string{"[::1]:2136"}, "/db", false}},
		{"grpc://[::1]/db", endpoint{[]string{"[::1]:2136"}, "/db", false}},
		{"grpc://h/my%20db", endpoint{[]string{"h:2136"}, "/my db", false}},
	} {
		got, err := parseURL(c.text)
		if err != nil || !slices.Equal(got.addresses, c.want.addresses) || got.database != c.want.database || got.secure != c.want.secure {
			t.Errorf("%s: %+v, %v; want %+v", c.text, got, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"":                             "must begin with grpc://",
		"http://h/db":                  "must begin with grpc://",
		"127.0.0.1:2136/local":         "must begin with grpc://",
		"grpc://h:2136":                "names no database",
		"grpc://h:2136/":               "names no database",
		"grpc:///db":                   "empty or malformed host",
		"grpc://a,,b/db":               "empty or malformed host",
		"grpc://h:0/db":                "port",
		"grpc://h:99999/db":            "port",
		"grpc://h:x/db":                "port",
		"grpc://a:b:c/db":              "not host:port",
		"grpc://u:" + secret + "@h/db": "must not hold a user",
		"grpc://h/db?token=x":          "unknown option",
		"grpc://h/%zz":                 "bad % escape",
	} {
		_, err := parseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"grpc://127.0.0.1:2136/local", "grpcs://h/?database=/x", "grpc://a:1,b/db",
		"grpc://[::1]/%2f", "grpc://u@h/db"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseURL(text)
		if err == nil && (len(e.addresses) == 0 || !strings.HasPrefix(e.database, "/") || e.database == "/") {
			t.Errorf("%q became %+v", text, e)
		}
	})
}

func TestValidateReportsAllFaultsAtOnce(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"several", func(c *Config) { c.URL, c.KeepAlive, c.Auth.Kind = "x", time.Second, "magic" },
			[]string{"url must", "keepalive = 1s", `auth.kind = "magic"`}},
		{"missing_ca", func(c *Config) { c.CAFile = "/nowhere/ca.pem" }, []string{"ca_file: ", "/nowhere/ca.pem"}},
		{"ca_without_tls", func(c *Config) { c.CAFile = writeFile(t, "ca", "x") }, []string{"no PEM certificate", "no TLS is spoken"}},
		{"token", func(c *Config) { c.Auth.Kind = authToken }, []string{"auth.token is empty"}},
		{"token_file", func(c *Config) { c.Auth.Kind = authTokenFile }, []string{"auth.token_file: no file is named"}},
		{"empty_token_file", func(c *Config) { c.Auth.Kind, c.Auth.TokenFile = authTokenFile, writeFile(t, "t", " \n") },
			[]string{"is empty"}},
		{"directory", func(c *Config) { c.Auth.Kind, c.Auth.TokenFile = authTokenFile, t.TempDir() }, []string{"is a directory"}},
		{"static", func(c *Config) { c.Auth.Kind, c.Auth.Password, c.Auth.PasswordFile = authStatic, "x", "y" },
			[]string{"auth.user is empty", "both set", "auth.password_file: "}},
		{"metadata", func(c *Config) { c.Auth.Kind, c.Auth.MetadataURL = authMetadata, "ftp://x" }, []string{"auth.metadata_url must be"}},
		{"password_in_url", func(c *Config) { c.Auth.Kind, c.Auth.MetadataURL = authMetadata, "http://a:b@h" },
			[]string{"auth.metadata_url must not"}},
		{"service_account",
			func(c *Config) { c.Auth.Kind, c.Auth.KeyFile = authServiceAccount, writeFile(t, "k", `{"id":"x"}`) },
			[]string{"lacks id"}},
		{"key_is_no_json",
			func(c *Config) { c.Auth.Kind, c.Auth.KeyFile = authServiceAccount, writeFile(t, "k", secret) },
			[]string{"is not the JSON key"}},
		{"key_is_no_key", func(c *Config) {
			c.Auth.Kind = authServiceAccount
			c.Auth.KeyFile = writeFile(t, "k", `{"id":"x","service_account_id":"y","private_key":"`+secret+`"}`)
		}, []string{"no RSA key"}},
		{"oauth", func(c *Config) { c.Auth.Kind = authOAuth }, []string{"auth.oauth.url must be", "auth.oauth.subject_token is empty"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := Default()
			c.change(&config)
			err := config.Validate()
			if err == nil {
				t.Fatal("it is valid")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%v shows a secret", err)
			}
			if _, err := New(config, Deps{}); err == nil {
				t.Error("New takes it")
			}
		})
	}
}

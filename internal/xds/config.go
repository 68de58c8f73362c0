package xds

import (
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Config is the section "xds" of the configuration.
type Config struct {
	// Publish the nodes over xDS, for Envoy and gRPC clients that call them directly
	Enabled bool `yaml:"enabled"`
	// Address of the xDS server (gRPC), host:port; port 0 takes a free one
	Address string `yaml:"address"`
	// Largest number of open streams of all clients together. Further ones are rejected
	MaxStreams int `yaml:"max_streams"`
	// Bearer token that clients must send, at least 16 bytes. Empty: none
	Token string `yaml:"token"`
	// File with the bearer token, read at each use, in place of xds.token
	TokenFile string       `yaml:"token_file"`
	TLS       certs.Server `yaml:",inline"`
}

// Default returns the defaults.
func Default() Config { return Config{Address: "127.0.0.1:7403", MaxStreams: 2000} }

const (
	minToken  = 16
	maxStream = 100_000
)

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var errs []error
	_, port, err := net.SplitHostPort(c.Address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		errs = append(errs, config.Faultf("address", " = %q; must be host:port, the port at most 65535", c.Address))
	}
	if c.MaxStreams < 1 || c.MaxStreams > maxStream {
		errs = append(errs, config.Faultf("max_streams", " = %d; must be 1 to %d", c.MaxStreams, maxStream))
	}
	if c.Token != "" && c.TokenFile != "" {
		errs = append(errs, config.Faultf("token", " and token_file are both set; want one"))
	}
	if c.Token != "" && len(c.Token) < minToken {
		errs = append(errs, config.Faultf("token", " is shorter than %d bytes", minToken))
	}
	if c.Enabled && c.TokenFile != "" {
		_, err := c.bearer()
		errs = append(errs, err)
	}
	return errors.Join(append(errs, c.TLS.Validate())...)
}

// HasToken reports whether clients are asked for a token.
func (c Config) HasToken() bool { return c.Token != "" || c.TokenFile != "" }

// bearer is the token as it is now; "": none is asked for.
func (c Config) bearer() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	text, err := config.ReadSecret(c.TokenFile, config.MaxToken)
	if err != nil {
		return "", config.Faultf("token_file", ": %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minToken {
		return "", config.Faultf("token_file", ": the token in %s is shorter than %d bytes", c.TokenFile, minToken)
	}
	return token, nil
}

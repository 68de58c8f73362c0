package upstream

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

const (
	fileRefresh   = 10 * time.Second // how often a token file is read again
	tokenLife     = 10 * time.Minute // assumed of a token that does not say
	maxTokenReply = 1 << 20          // bytes of a provider's answer
)

// providers fetch the tokens of a driver.
type providers struct{ *Driver }

// provider returns how tokens are fetched; nil if none is needed.
func (p providers) provider() (provider, error) {
	a := p.config.Auth
	switch a.Kind {
	case authAnonymous:
		return nil, nil
	case authToken:
		return func(context.Context) (token, error) { return token{value: string(a.Token)}, nil }, nil
	case authTokenFile:
		return func(context.Context) (token, error) { return fileToken(a.TokenFile) }, nil
	case authStatic:
		return p.staticToken, nil
	case authMetadata:
		return p.metadataToken, nil
	case authServiceAccount:
		return p.serviceToken, nil
	case authOAuth:
		return p.exchangedToken, nil
	}
	return nil, fmt.Errorf("auth.kind = %q is not known", a.Kind)
}

// lasting is a token that lives for life from now; the next one is fetched
// after half of that.
func lasting(value string, life time.Duration) token {
	if life <= 0 {
		life = tokenLife
	}
	now := time.Now()
	return token{value: value, refresh: now.Add(life / 2), expires: now.Add(life)}
}

// fileToken reads a token that somebody else keeps fresh.
func fileToken(path string) (token, error) {
	b, err := config.ReadSecret(path, maxSecretFile)
	if err != nil {
		return token{}, err
	}
	// It never expires here: when the file cannot be read for a while, the last
	// token is the best there is.
	return token{value: strings.TrimSpace(string(b)), refresh: time.Now().Add(fileRefresh)}, nil
}

// staticToken logs in with user and password.
func (p providers) staticToken(ctx context.Context) (token, error) {
	password := string(p.config.Auth.Password)
	if path := p.config.Auth.PasswordFile; path != "" {
		b, err := config.ReadSecret(path, maxSecretFile)
		if err != nil {
			return token{}, err
		}
		password = strings.TrimRight(string(b), "\r\n")
	}
	text, err := p.login(ctx, p.config.Auth.User, password)
	if a, ok := errors.AsType[*answer](err); ok && a.status == Ydb.StatusIds_UNAUTHORIZED {
		return token{}, fmt.Errorf("log in as %q: %w: %w", p.config.Auth.User, errRefused, err)
	}
	if err != nil {
		return token{}, fmt.Errorf("log in as %q: %w", p.config.Auth.User, err)
	}
	return lasting(text, jwtLife(text)), nil
}

// jwtLife is how long a JWT still works, by its own word; 0 if it does not say.
// Nothing is verified: the node does that.
func jwtLife(text string) time.Duration {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return 0
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return 0
	}
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if json.Unmarshal(b, &claims) != nil || !(claims.Exp > 0 && claims.Exp < 1e12) {
		return 0
	}
	return time.Until(time.Unix(int64(claims.Exp), 0))
}

// metadataToken asks the metadata service of the virtual machine.
func (p providers) metadataToken(ctx context.Context) (token, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.config.Auth.MetadataURL, nil)
	if err != nil {
		return token{}, err
	}
	req.Header.Set("Metadata-Flavor", "Google")
	return p.ask(req)
}

// exchangedToken does an OAuth 2.0 token exchange.
func (p providers) exchangedToken(ctx context.Context) (token, error) {
	o := p.config.Auth.OAuth
	subject := string(o.SubjectToken)
	if o.SubjectTokenFile != "" {
		b, err := config.ReadSecret(o.SubjectTokenFile, maxSecretFile)
		if err != nil {
			return token{}, err
		}
		subject = strings.TrimSpace(string(b))
	}
	form := url.Values{
		"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"subject_token":        {subject},
		"subject_token_type":   {o.SubjectTokenType},
		"requested_token_type": {o.RequestedType},
	}
	for name, value := range map[string]string{"audience": o.Audience, "resource": o.Resource, "scope": o.Scope} {
		if value != "" {
			form.Set(name, value)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL, strings.NewReader(form.Encode()))
	if err != nil {
		return token{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return p.ask(req)
}

// reply is what the providers answer, in either naming.
type reply struct {
	AccessToken string  `json:"access_token"`
	TokenType   string  `json:"token_type"`
	ExpiresIn   float64 `json:"expires_in"` // seconds

	IAMToken  string    `json:"iamToken"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// ask sends a request to a provider. Its errors name the URL and the status,
// never a body or a header, which hold secrets.
func (p providers) ask(req *http.Request) (token, error) {
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", p.build)
	res, err := p.http.Do(req)
	if err != nil {
		return token{}, err // names method and URL; the URL holds no secret, see checkHTTP
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxTokenReply))
	if err != nil {
		return token{}, fmt.Errorf("read the answer of %s: %w", req.URL.Redacted(), err)
	}
	switch {
	case res.StatusCode == http.StatusBadRequest, res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden:
		return token{}, fmt.Errorf("%s answered %s: %w", req.URL.Redacted(), res.Status, errRefused)
	case res.StatusCode != http.StatusOK:
		return token{}, fmt.Errorf("%s answered %s", req.URL.Redacted(), res.Status)
	}
	var r reply
	if err := json.Unmarshal(body, &r); err != nil {
		return token{}, fmt.Errorf("%s answered something that is not the JSON of a token", req.URL.Redacted())
	}
	if r.IAMToken != "" {
		return lasting(r.IAMToken, time.Until(r.ExpiresAt)), nil
	}
	switch {
	case r.AccessToken == "":
		return token{}, fmt.Errorf("%s answered without a token", req.URL.Redacted())
	case r.TokenType != "" && !strings.EqualFold(r.TokenType, "bearer"):
		return token{}, fmt.Errorf("%s answered a token of type %.20q; only Bearer can be used", req.URL.Redacted(), r.TokenType)
	case !(r.ExpiresIn >= 0 && r.ExpiresIn < 1e9):
		return token{}, fmt.Errorf("%s answered a token with an impossible life", req.URL.Redacted())
	}
	return lasting(r.AccessToken, time.Duration(r.ExpiresIn*float64(time.Second))), nil
}

// httpClient is the client for the providers. It follows no redirect, which
// could carry a secret to another host.
func httpClient(files *certs.Keeper) *http.Client {
	t := &transport{files: files}
	t.renew()
	files.OnChange(t.renew)
	return &http.Client{
		Timeout:       fetchTimeout,
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// transport believes the authorities of now.
type transport struct {
	files *certs.Keeper
	now   atomic.Pointer[http.Transport]
}

// renew is for other authorities.
func (t *transport) renew() {
	old := t.now.Swap(&http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: t.files.Roots()},
		TLSHandshakeTimeout: fetchTimeout,
		MaxIdleConns:        2,
		IdleConnTimeout:     time.Minute,
		ForceAttemptHTTP2:   true,
	})
	if old != nil {
		old.CloseIdleConnections()
	}
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.now.Load().RoundTrip(r)
}

func (t *transport) CloseIdleConnections() { t.now.Load().CloseIdleConnections() }

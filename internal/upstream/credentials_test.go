package upstream

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

const secret = "s3cr3t-value-that-must-never-show"

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fetchOnce makes a driver with these credentials and asks its provider once.
func fetchOnce(t *testing.T, auth Auth) (token, error) {
	t.Helper()
	c := shipped()
	c.Auth = auth
	d, err := New(c, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d.tickets.fetch(t.Context())
}

func expectLife(t *testing.T, k token, value string, life time.Duration) {
	t.Helper()
	if k.value != value {
		t.Errorf("token %q; want %q", k.value, value)
	}
	if got := time.Until(k.expires); got > life || got < life-5*time.Second {
		t.Errorf("expires in %v; want %v", got, life)
	}
	if got := time.Until(k.refresh); got > life/2 || got < life/2-5*time.Second {
		t.Errorf("fetched again in %v; want half of %v", got, life)
	}
}

// stand serves one provider of tokens and keeps the requests.
func stand(t *testing.T, status int, answer func(r *http.Request, body string) any) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a := answer(r, string(body))
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(a)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestMetadataService(t *testing.T) {
	s := stand(t, 200, func(r *http.Request, _ string) any {
		if r.Method != http.MethodGet || r.Header.Get("Metadata-Flavor") != "Google" {
			t.Errorf("%s with flavor %q", r.Method, r.Header.Get("Metadata-Flavor"))
		}
		return map[string]any{"access_token": "meta", "expires_in": 3600, "token_type": "Bearer"}
	})
	k, err := fetchOnce(t, Auth{Kind: authMetadata, MetadataURL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	expectLife(t, k, "meta", time.Hour)
}

func serviceKeyFile(t *testing.T) (path string, public *rsa.PublicKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := "PLEASE DO NOT REMOVE THIS LINE!\n" + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	b, _ := json.Marshal(map[string]string{"id": "key-id", "service_account_id": "account-id", "private_key": text})
	return writeFile(t, "key.json", string(b)), &key.PublicKey
}

func TestServiceAccountKey(t *testing.T) {
	path, public := serviceKeyFile(t)
	var at string
	s := stand(t, 200, func(r *http.Request, body string) any {
		var in struct {
			JWT string `json:"jwt"`
		}
		if err := json.Unmarshal([]byte(body), &in); err != nil {
			t.Error(err)
		}
		var claims jwt.RegisteredClaims
		parsed, err := jwt.ParseWithClaims(in.JWT, &claims, func(*jwt.Token) (any, error) { return public, nil },
			jwt.WithValidMethods([]string{"PS256"}), jwt.WithAudience(at), jwt.WithIssuer("account-id"),
			jwt.WithExpirationRequired(), jwt.WithIssuedAt())
		if err != nil {
			t.Errorf("the signed request is not valid: %v", err)
		} else if parsed.Header["kid"] != "key-id" {
			t.Errorf("kid %v", parsed.Header["kid"])
		}
		return map[string]any{"iamToken": "iam", "expiresAt": time.Now().Add(12 * time.Hour).Format(time.RFC3339Nano)}
	})
	at = s.URL
	k, err := fetchOnce(t, Auth{Kind: authServiceAccount, KeyFile: path, IAMURL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	expectLife(t, k, "iam", 12*time.Hour)
}

func TestOAuthTokenExchange(t *testing.T) {
	var form url.Values
	s := stand(t, 200, func(r *http.Request, body string) any {
		if r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.Method != http.MethodPost {
			t.Errorf("%s of %s", r.Method, r.Header.Get("Content-Type"))
		}
		form, _ = url.ParseQuery(body)
		return map[string]any{"access_token": "exchanged",
			"issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer",
			"expires_in": 600}
	})
	o := Default().Auth.OAuth
	o.URL, o.SubjectTokenFile, o.Audience, o.Scope, o.Resource = s.URL, writeFile(
		t, "subject", "subject-token\n",
	), "ydb", "read write", "https://ydb/"
	k, err := fetchOnce(t, Auth{Kind: authOAuth, OAuth: o})
	if err != nil {
		t.Fatal(err)
	}
	expectLife(t, k, "exchanged", 10*time.Minute)
	for name, want := range map[string]string{
		"grant_type":           "urn:ietf:params:oauth:grant-type:token-exchange",
		"subject_token":        "subject-token",
		"subject_token_type":   "urn:ietf:params:oauth:token-type:jwt",
		"requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
		"audience":             "ydb", "scope": "read write", "resource": "https://ydb/",
	} {
		if got := form.Get(name); got != want {
			t.Errorf("%s = %q; want %q", name, got, want)
		}
	}
}

func TestProvidersThatFailSayWhyAndShowNoSecret(t *testing.T) {
	for _, c := range []struct {
		name    string
		status  int
		answer  any
		want    string
		refused bool
	}{
		{"unauthorized", 401, map[string]string{"error": secret}, "401", true},
		{"forbidden", 403, secret, "403", true},
		{"bad_request", 400, map[string]string{"error_description": secret}, "400", true},
		{"server_error", 500, secret, "500", false},
		{"redirect", 302, secret, "302", false},
		{"not_an_object", 200, secret, "not the JSON", false},
		{"no_token", 200, map[string]string{"other": secret}, "without a token", false},
		{"not_bearer", 200, map[string]string{"access_token": secret, "token_type": "mac"}, "only Bearer", false},
		{"absurd_life", 200, map[string]any{"access_token": secret, "expires_in": -5}, "impossible life", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := stand(t, c.status, func(*http.Request, string) any { return c.answer })
			o := Default().Auth.OAuth
			o.URL, o.SubjectToken = s.URL, secret
			_, err := fetchOnce(t, Auth{Kind: authOAuth, OAuth: o})
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, errRefused) != c.refused {
				t.Fatalf("got %v; want %q, refused %t", err, c.want, c.refused)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

func TestNoRedirectCarriesASecretElsewhere(t *testing.T) {
	elsewhere := stand(t, 200, func(*http.Request, string) any {
		t.Error("the secret went elsewhere")
		return map[string]string{"access_token": "x"}
	})
	s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(s.Close)
	o := Default().Auth.OAuth
	o.URL, o.SubjectToken = s.URL, secret
	if _, err := fetchOnce(t, Auth{Kind: authOAuth, OAuth: o}); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("got %v", err)
	}
}

func TestAnAccessTokenGoesWithEveryCallAndAnonymousSendsNone(t *testing.T) {
	for _, tt := range []struct {
		auth Auth
		want []string
	}{
		{Auth{Kind: authToken, Token: secret}, []string{secret}},
		{Auth{Kind: authAnonymous}, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 1, func(c *Config, _ *Deps) { c.Auth = tt.auth })
			s, _ := b.mustOpen(1)
			if _, err := run(t.Context(), s, plain()); err != nil {
				t.Fatal(err)
			}
			for _, rpc := range []string{"CreateSession", "AttachSession", "ExecuteQuery"} {
				for _, call := range b.node(1).seen(rpc) {
					if got := call.md.Get("x-ydb-auth-ticket"); !slices.Equal(got, tt.want) {
						t.Errorf("%s: %s carries the ticket %q; want %q", tt.auth.Kind, rpc, got, tt.want)
					}
				}
			}
			if len(b.node(1).seen("ExecuteQuery")) != 1 {
				t.Error("the statement did not come")
			}
		})
	}
}

func TestATokenFileIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := writeFile(t, "token", "first\n")
		b := newBench(t, 1, func(c *Config, _ *Deps) { c.Auth = Auth{Kind: authTokenFile, TokenFile: path} })
		sees := func(want string) {
			t.Helper()
			if _, err := b.driver.ListEndpoints(t.Context()); err != nil {
				t.Fatal(err)
			}
			calls := b.node(1).seen("ListEndpoints")
			if got := calls[len(calls)-1].md.Get("x-ydb-auth-ticket"); !slices.Equal(got, []string{want}) {
				t.Errorf("ticket %q; want %q", got, want)
			}
		}
		sees("first")
		os.WriteFile(path, []byte("second"), 0o600)
		time.Sleep(fileRefresh + time.Second)
		sees("second")
		os.Remove(path) // the last token is the best there is
		time.Sleep(10 * fileRefresh)
		sees("second")
		os.WriteFile(path, []byte("third"), 0o600)
		time.Sleep(time.Minute)
		sees("third")
	})
}

// loginToken is a JWT of the kind that a node hands out.
func loginToken(n int, life time.Duration) string {
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"n": n, "iat": time.Now().Unix(), "exp": time.Now().Add(life).Unix()})
	text, err := t.SignedString([]byte("any"))
	if err != nil {
		panic(err)
	}
	return text
}

func TestStaticCredentialsAreRefreshedBeforeTheyExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		var mu sync.Mutex
		var given []string
		c.node(1).onLogin = func(r *Ydb_Auth.LoginRequest) (string, Ydb.StatusIds_StatusCode) {
			if r.GetUser() != "root" || r.GetPassword() != secret {
				return "", Ydb.StatusIds_UNAUTHORIZED
			}
			mu.Lock()
			defer mu.Unlock()
			given = append(given, loginToken(len(given), time.Hour))
			return given[len(given)-1], Ydb.StatusIds_SUCCESS
		}
		b := benchOn(t, c, func(c *Config, _ *Deps) {
			c.Auth = Auth{Kind: authStatic, User: "root", PasswordFile: writeFile(t, "password", secret+"\n")}
		})
		s, _ := b.mustOpen(1)
		for range 10 {
			if _, err := run(t.Context(), s, plain()); err != nil {
				t.Fatal(err)
			}
			calls := b.node(1).seen("ExecuteQuery")
			ticket := calls[len(calls)-1].md.Get("x-ydb-auth-ticket")
			if len(ticket) != 1 || jwtLife(ticket[0]) < 25*time.Minute {
				t.Errorf("the ticket of a call lives for %v more; want it fresh", jwtLife(strings.Join(ticket, "")))
			}
			time.Sleep(20 * time.Minute)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(given) < 6 || len(given) > 8 {
			t.Errorf("%d logins in 200 minutes of tokens of an hour; want about 7", len(given))
		}
		for _, l := range b.node(1).seen("Login") {
			if l.md.Get("x-ydb-auth-ticket") != nil {
				t.Error("Login carries a ticket")
			}
		}
	})
}

func TestAWrongPasswordIsFinalAndNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		s := newStack(t, 1, func(c *stackConfig) {
			c.upstream.Auth = Auth{Kind: authStatic, User: "root", Password: secret}
			c.deps.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		start := time.Now()
		_, err := s.client.Any(within(t, time.Minute), Call{Name: "BulkUpsert", Method: bulkUpsert}, bulk)
		e := asError(t, err)
		if e.Code != codes.Unauthenticated || !e.NoTicket || e.Verdict.Retry != ydbstatus.RetryNever || time.Since(start) > time.Second {
			t.Errorf("%v, %+v after %v; want a refusal at once", err, e.Verdict, time.Since(start))
		}
		if text := log.String() + err.Error(); strings.Contains(text, secret) || !strings.Contains(text, "UNAUTHORIZED") {
			t.Errorf("log and error: %s", text)
		}
		if got := s.judge.take(); got != nil {
			t.Errorf("reported %q; a wrong password is no node's fault", got)
		}
	})
}

func TestAnAbsentProviderIsWaitedForInsideTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		var calls int
		tickets := newTickets(func(context.Context) (token, error) {
			if calls++; calls < 3 {
				return token{}, errors.New("no route")
			}
			return lasting("late", time.Hour), nil
		}, b.driver.headers, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); tickets.run(ctx) }()
		synctest.Wait()
		_, err := tickets.get(t.Context())
		te, ok := errors.AsType[*ticketError](err)
		if !ok || te.refused {
			t.Fatalf("got %v; want the failure at once", err)
		}
		time.Sleep(fetchPauseMin * 4)
		k, err := tickets.get(t.Context())
		if err != nil || k.value != "late" {
			t.Errorf("got %v, %v", k, err)
		}
		cancel()
		<-done
	})
}

func TestCallsWaitForTheFirstTicketAndGiveUpWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		tickets := newTickets(func(context.Context) (token, error) { return lasting("x", time.Hour), nil },
			b.driver.headers, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := tickets.get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v; nobody fetches, so want the deadline", err)
		}
	})
}

// A ticket may come at the moment when a call has seen that there is none: the call goes on with it.
func TestATicketThatComesMeanwhileIsSeen(t *testing.T) {
	none := func(string) (call, open metadata.MD) { return nil, nil }
	tickets := newTickets(func(context.Context) (token, error) { return lasting("x", time.Hour), nil }, none, slog.New(slog.DiscardHandler))
	tickets.mu.Lock()
	got := make(chan error, 1)
	go func() {
		_, err := tickets.get(within(t, 10*time.Second))
		got <- err
	}()
	time.Sleep(50 * time.Millisecond) // time for it to come to the lock; later it sees the ticket at once
	tickets.store(lasting("x", time.Hour))
	close(tickets.changed) // as renew does
	tickets.changed = make(chan struct{})
	tickets.mu.Unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestARefusedTicketIsFetchedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		logins := 0
		c.node(1).onLogin = func(*Ydb_Auth.LoginRequest) (string, Ydb.StatusIds_StatusCode) {
			logins++
			return loginToken(logins, time.Hour), Ydb.StatusIds_SUCCESS
		}
		b := benchOn(t, c, func(c *Config, _ *Deps) { c.Auth = Auth{Kind: authStatic, User: "root"} })
		s, _ := b.mustOpen(1)
		time.Sleep(time.Minute)
		var accepted string
		c.node(1).onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			md, _ := metadata.FromIncomingContext(stream.Context())
			if md.Get("x-ydb-auth-ticket")[0] != accepted {
				return status.Error(codes.Unauthenticated, "expired")
			}
			return c.node(1).answer(r, stream)
		}
		for range 100 {
			run(t.Context(), s, plain())
		}
		synctest.Wait()
		if logins != 2 {
			t.Errorf("%d logins after 100 refusals; want one more", logins)
		}
		time.Sleep(time.Minute)
		run(t.Context(), s, plain())
		synctest.Wait()
		if logins != 3 {
			t.Errorf("%d logins after a refusal much later; want another", logins)
		}
	})
}

// A missing right is for the caller to hear of: another ticket of the same user lacks it as well.
func TestAMissingRightFetchesNoTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		logins := 0
		c.node(1).onLogin = func(*Ydb_Auth.LoginRequest) (string, Ydb.StatusIds_StatusCode) {
			logins++
			return loginToken(logins, 100*time.Hour), Ydb.StatusIds_SUCCESS
		}
		b := benchOn(t, c, func(c *Config, _ *Deps) { c.Auth = Auth{Kind: authStatic, User: "root"} })
		s, _ := b.mustOpen(1)
		c.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			return stream.Send(part(Ydb.StatusIds_UNAUTHORIZED))
		}
		calls := short.Of(1000, 300)
		for range calls {
			time.Sleep(10 * time.Second) // longer than a refused ticket must be old
			_, err := run(t.Context(), s, plain())
			if e := asError(t, err); !e.Denied() || e.Unauthorized() || e.Verdict.Retry != ydbstatus.RetryNever {
				t.Fatalf("%v, %+v", e, e.Verdict)
			}
		}
		synctest.Wait()
		if denials, _ := b.driver.Credentials(); logins != 1 || denials != 0 {
			t.Errorf("%d logins and %d denials after %d calls without the right; want the first login alone", logins, denials, calls)
		}
	})
}

func TestJWTLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got := jwtLife(loginToken(1, time.Hour)); got != time.Hour {
			t.Errorf("got %v; want 1h", got)
		}
		for _, text := range []string{"", "opaque", "a.b.c", "a.e30.c", "..", "a.eyJleHAiOiJ4In0.c", "a.eyJleHAiOjFlMzAwfQ.c"} {
			if got := jwtLife(text); got != 0 {
				t.Errorf("%q lives for %v; want 0, unknown", text, got)
			}
		}
	})
}

func FuzzJWTLife(f *testing.F) {
	f.Add("a.eyJleHAiOjE3MDAwMDAwMDB9.c")
	f.Add("a.e30.c")
	f.Add("..")
	f.Fuzz(func(t *testing.T, text string) {
		life := jwtLife(text)
		if life == 0 {
			return
		}
		// It has three parts, and says so itself.
		_, rest, _ := strings.Cut(text, ".")
		claims, _, whole := strings.Cut(rest, ".")
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(claims, "="))
		var said map[string]any
		if !whole || err != nil || json.Unmarshal(b, &said) != nil {
			t.Fatalf("%q lives for %v", text, life)
		}
		if len(said) == 0 {
			t.Fatalf("%q lives for %v, and does not say so", text, life)
		}
	})
}

func TestSecretsAreNeverShown(t *testing.T) {
	c := shipped()
	c.Auth.Token, c.Auth.Password, c.Auth.OAuth.SubjectToken = secret, secret, secret
	var log lockedBuffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "c", c, "s", c.Auth.Token)
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v %#v %s %q", c, c, c.Auth.Token, c.Auth.Token), string(b), log.String()} {
		if strings.Contains(text, secret) {
			t.Errorf("shown: %s", text)
		}
	}
	if fmt.Sprint(Secret("")) != "" {
		t.Error("an empty secret should look empty")
	}
}

// lockedBuffer is a log that goroutines may write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

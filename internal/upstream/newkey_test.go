package upstream

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A key of a service account that is replaced in its file signs the next request for a token, without a restart.
func TestServiceAccountKeyIsReplaced(t *testing.T) {
	path, _ := serviceKeyFile(t)
	var ids []any
	s := stand(t, 200, func(_ *http.Request, body string) any {
		var in struct {
			JWT string `json:"jwt"`
		}
		if err := json.Unmarshal([]byte(body), &in); err != nil {
			t.Error(err)
		}
		signed, _, err := jwt.NewParser().ParseUnverified(in.JWT, jwt.MapClaims{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, signed.Header["kid"])
		return map[string]any{"iamToken": "iam", "expiresAt": time.Now().Add(time.Hour).Format(time.RFC3339Nano)}
	})
	c := shipped()
	c.Auth = Auth{Kind: authServiceAccount, KeyFile: path, IAMURL: s.URL}
	d, err := New(c, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"key-id", "key-2"} {
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "key-id", id)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.tickets.fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := ids[len(ids)-1]; got != id {
			t.Errorf("signed with %v; want %s", got, id)
		}
	}
}

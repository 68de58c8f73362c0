package upstream

import (
	"bytes"
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// serviceKeyLife is how long a signed request for a token is good.
const serviceKeyLife = time.Hour

// serviceKey is an authorized key of a service account.
type serviceKey struct {
	id      string
	account string
	private *rsa.PrivateKey
}

// readServiceKey reads the JSON file that the cloud's console hands out. Its
// errors hold nothing of the key.
func readServiceKey(path string) (*serviceKey, error) {
	b, err := config.ReadSecret(path, maxSecretFile)
	if err != nil {
		return nil, err
	}
	var file struct {
		ID      string `json:"id"`
		Account string `json:"service_account_id"`
		Private string `json:"private_key"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("%s is not the JSON key of a service account", path)
	}
	if file.ID == "" || file.Account == "" || file.Private == "" {
		return nil, fmt.Errorf("%s lacks id, service_account_id or private_key", path)
	}
	// The file begins with a line of warning before the PEM block.
	pem := file.Private
	if i := strings.Index(pem, "-----BEGIN"); i > 0 {
		pem = pem[i:]
	}
	private, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(pem))
	if err != nil {
		return nil, fmt.Errorf("private_key of %s is no RSA key in PEM", path)
	}
	return &serviceKey{id: file.ID, account: file.Account, private: private}, nil
}

// sign makes the request for a token: a JWT for the audience, signed with PS256.
func (k *serviceKey) sign(audience string, now time.Time) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodPS256, jwt.RegisteredClaims{
		Issuer:    k.account,
		Audience:  jwt.ClaimStrings{audience},
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(serviceKeyLife)),
	})
	t.Header["kid"] = k.id
	text, err := t.SignedString(k.private)
	if err != nil {
		return "", errors.New("cannot sign with the key of the service account")
	}
	return text, nil
}

// serviceToken exchanges a signed request for a token. It reads the key each time, because keys are replaced.
func (p providers) serviceToken(ctx context.Context) (token, error) {
	key, err := readServiceKey(p.config.Auth.KeyFile)
	if err != nil {
		return token{}, err
	}
	signed, err := key.sign(p.config.Auth.IAMURL, time.Now())
	if err != nil {
		return token{}, err
	}
	body, err := json.Marshal(map[string]string{"jwt": signed})
	if err != nil {
		return token{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.config.Auth.IAMURL, bytes.NewReader(body))
	if err != nil {
		return token{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	return p.ask(req)
}

package app

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestSecretsAreNotForCommandLines(t *testing.T) {
	for _, name := range []string{"admin.token", "apps.token", "ydb.auth.token", "ydb.auth.password", "ydb.auth.oauth.subject_token"} {
		_, _, err := Load("", nil, []Assignment{{name + " =planted-secret-value", "-set"}})
		want := "SIDECAR_" + strings.ToUpper(strings.ReplaceAll(name, ".", "_"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: %v; want a refusal that names %s", name, err, want)
		}
	}
	if _, _, err := Load(
		"", []string{"SIDECAR_ADMIN_TOKEN=planted-secret-value"}, []Assignment{{"admin.token_file=", "-set"}},
	); err != nil {
		t.Errorf("in a variable: %v", err)
	}
}

func TestListenersThatOthersReachAreNamed(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	selfSigned(t, cert, key)
	s := start(t, nowhere, "http.listen=0.0.0.0:0", "http.cert_file="+cert, "http.key_file="+key, "grpc.listen=[::]:0",
		"admin.probes=0.0.0.0:0")
	said := map[string]string{}
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "other machines can reach") {
			for _, setting := range []string{"grpc.listen", "http.listen", "admin.listen", "admin.probes"} {
				if strings.Contains(line, `"`+setting+`"`) {
					said[setting] = line
				}
			}
		}
	}
	if len(said) != 3 || !strings.Contains(said["grpc.listen"], "plaintext") ||
		!strings.Contains(said["grpc.listen"], "need not prove anything") ||
		!strings.Contains(said["http.listen"], `"TLS; clients need not prove`) || !strings.Contains(said["admin.probes"], "nothing else") {
		t.Errorf("said: %v", said)
	}
}

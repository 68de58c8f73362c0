package apps

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// certificate is one that TLS has verified.
func certificate(common string, dns []string, uris ...string) *Certificate {
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: common}, DNSNames: dns}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil {
			panic(err)
		}
		leaf.URIs = append(leaf.URIs, uri)
	}
	return CertificateOf([][]*x509.Certificate{{leaf}})
}

func TestCertificatesProveApps(t *testing.T) {
	r, err := New(Config{
		Max: 9, Token: []string{"web=" + secretA},
		Users: []string{"cn:web = web", "dns:Orders.Example.org=orders", "uri:spiffe://example.org/a=b=orders", "7=local"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	web, orders := certificate("web", nil), certificate("", []string{"other", "orders.EXAMPLE.org"})
	for name, tc := range map[string]struct {
		caller Caller
		want   string
		err    error
	}{
		"common name": {Caller{Certificate: web}, "web", nil},
		"name of DNS": {Caller{Certificate: orders}, "orders", nil},
		"URI":         {Caller{Certificate: certificate("x", nil, "spiffe://example.org/a=b")}, "orders", nil},
		"two names of one app": {Caller{Certificate: certificate("", []string{"orders.example.org"}, "spiffe://example.org/a=b")},
			"orders", nil},
		"its own name is claimed":        {Caller{Certificate: web, Name: "web", Strict: true}, "web", nil},
		"another name is claimed":        {Caller{Certificate: web, Name: "orders"}, "", ErrNotYours},
		"a free name is claimed":         {Caller{Certificate: web, Name: "free"}, "", ErrNotYours},
		"nobody's, claims a name":        {Caller{Certificate: certificate("nobody", nil), Name: "web"}, "", ErrNotYours},
		"nobody's":                       {Caller{Certificate: certificate("nobody", nil)}, Unnamed, nil},
		"nobody's, where proof is asked": {Caller{Certificate: certificate("nobody", nil), Prove: true}, "", ErrNoToken},
		"where proof is asked":           {Caller{Certificate: orders, Prove: true}, "orders", nil},
		"a name of another kind": {Caller{Certificate: certificate("orders.example.org", []string{"web"}), Prove: true},
			"", ErrNoToken},
		"names of two apps":     {Caller{Certificate: certificate("web", []string{"orders.example.org"})}, "", ErrProofs},
		"token of the same app": {Caller{Certificate: web, Token: secretA}, "web", nil},
		"token of another app":  {Caller{Certificate: orders, Token: secretA}, "", ErrProofs},
		"token of nobody":       {Caller{Certificate: orders, Token: "x"}, "", ErrToken},
		"token beside nobody's": {Caller{Certificate: certificate("nobody", nil), Token: secretA}, "web", nil},
		"no certificate":        {Caller{Name: "orders"}, "", ErrNotYours},
	} {
		a, err := r.Of(tc.caller)
		if !errors.Is(err, tc.err) || err == nil && a.Name() != tc.want {
			t.Errorf("%s: %v, %v; want %q, %v", name, a, err, tc.want, tc.err)
		}
	}
	if err := r.Reconfigure(Config{Max: 9, Users: []string{"cn:web=orders"}}); err != nil {
		t.Fatal(err)
	}
	if a, err := r.Of(Caller{Certificate: web}); err != nil || a.Name() != "orders" {
		t.Errorf("after a reload: %v, %v", a, err)
	}
	c := Caller{Certificate: web}
	if n := testing.AllocsPerRun(100, func() { _, _ = r.Of(c) }); n != 0 {
		t.Errorf("finding the app of a certificate allocates %v times", n)
	}
}

// An empty chain is that of a client whose certificate nobody has verified.
func TestOnlyVerifiedCertificatesCount(t *testing.T) {
	for _, chains := range [][][]*x509.Certificate{nil, {}, {{}}} {
		if c := CertificateOf(chains); c != nil {
			t.Errorf("%v: %v", chains, c)
		}
	}
}

func TestNamesOfCertificatesAreBounded(t *testing.T) {
	long := strings.Repeat("a", maxCertificateName)
	var many []string
	for i := range 2 * maxCertificateNames {
		many = append(many, fmt.Sprintf("%d.%s", i, long[:200]))
	}
	c := certificate("web", many, "spiffe://a/b")
	if len(c.names) != maxCertificateNames || c.names[0] != "uri:spiffe://a/b" || c.names[1] != "cn:web" {
		t.Errorf("%d names, the first %.100q", len(c.names), c.names[:2])
	}
	if c := certificate(long, []string{long + "a", "a\x00b", "a\nb", "\xff", "*.example.org", ""}, "mailto:"+long,
		"/relative"); !slices.Equal(c.names, []string{"cn:" + long}) {
		t.Errorf("names that no setting can have are kept: %.300q", c.names)
	}
	for want, c := range map[string]*Certificate{
		"certificate cn:web": certificate("web", []string{"a"}), "certificate uri:a://b": certificate("web", nil, "a://b"),
		"certificate dns:a": certificate("", []string{"a"}), "a certificate without a name": certificate("", nil),
	} {
		by := Caller{Certificate: c}
		if got := by.Proof(); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

func TestCertificatesComeThroughOrigins(t *testing.T) {
	for _, c := range []*Certificate{
		certificate("web", []string{"a.b", "c"}, "spiffe://a/b?c=d;e"), certificate("", nil), certificate("a;b c.d, Ü", nil),
	} {
		text := Origin{Connection: 7, Certificate: c}.Append(nil)
		o := ParseOrigin(string(text))
		if o.Connection != 7 || o.Local || o.Certificate == nil || !slices.Equal(o.Certificate.names, c.names) ||
			o.Certificate.text != c.text {
			t.Errorf("%q comes through %q as %+v", c.names, text, o)
		}
	}
	for _, text := range []string{"7", "7;!", "7;Y2.=", "7 5"} {
		if o := ParseOrigin(text); o.Certificate != nil || o.Connection != 7 {
			t.Errorf("%q has a certificate: %+v", text, o)
		}
	}
}

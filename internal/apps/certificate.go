package apps

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxCertificateName  = 256 // bytes of a name, without its kind
	maxCertificateNames = 32  // of one certificate
)

// The kinds of names in certificates, as Config.Users writes them.
const (
	kindURI    = "uri"
	kindCommon = "cn"
	kindDNS    = "dns"
)

// Certificate is what a client's certificate says of the client. It is immutable.
type Certificate struct {
	names []string // with their kinds, such as cn:orders: URIs, then the common name, then DNS names
	text  string   // of all names, for Origin
}

// CertificateOf reads the chains of a connection that TLS has verified; nil: there are none.
func CertificateOf(verified [][]*x509.Certificate) *Certificate {
	if len(verified) == 0 || len(verified[0]) == 0 {
		return nil
	}
	leaf, c := verified[0][0], new(Certificate)
	for _, uri := range leaf.URIs {
		c.add(kindURI, uri.String())
	}
	c.add(kindCommon, leaf.Subject.CommonName)
	for _, name := range leaf.DNSNames {
		c.add(kindDNS, name)
	}
	encoded := make([]string, len(c.names))
	for i, name := range c.names {
		encoded[i] = base64.RawURLEncoding.EncodeToString([]byte(name))
	}
	c.text = strings.Join(encoded, ".")
	return c
}

// add keeps a name that Config.Users may have, as far as there is room.
func (c *Certificate) add(kind, name string) {
	if key, err := certificateKey(kind, name); err == nil && len(c.names) < maxCertificateNames {
		c.names = append(c.names, key)
	}
}

// parseCertificate is the inverse of Certificate.text; nil: that is malformed.
func parseCertificate(text string) *Certificate {
	c := &Certificate{text: text}
	if text == "" {
		return c
	}
	for encoded := range strings.SplitSeq(text, ".") {
		name, err := base64.RawURLEncoding.DecodeString(encoded)
		if err != nil {
			return nil
		}
		c.names = append(c.names, string(name))
	}
	return c
}

// String names the certificate in the audit line: by its first URI, else its common name, else its first DNS name.
func (c *Certificate) String() string {
	if len(c.names) == 0 {
		return "a certificate without a name"
	}
	return "certificate " + c.names[0]
}

// certificateKey is a name in a certificate with its kind, in the one form that is compared.
func certificateKey(kind, name string) (string, error) {
	switch {
	case name == "":
		return "", fmt.Errorf("%s: names nothing", kind)
	case len(name) > maxCertificateName:
		return "", fmt.Errorf("the name behind %s: has %d bytes; must have at most %d", kind, len(name), maxCertificateName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return "", fmt.Errorf("the name behind %s: must be UTF-8 without control characters", kind)
	}
	switch kind {
	case kindCommon:
	case kindDNS:
		name = strings.ToLower(name)
		if strings.ContainsAny(name, "* ") {
			return "", fmt.Errorf("%.100q is no name of DNS; names are whole, without *", name)
		}
	case kindURI:
		uri, err := url.Parse(name)
		if err != nil || uri.Scheme == "" {
			return "", fmt.Errorf("%.100q is no URI with a scheme, such as spiffe://example.org/orders", name)
		}
		name = uri.String()
	default:
		return "", fmt.Errorf("%.100q; must be %s, %s or %s", kind, kindCommon, kindDNS, kindURI)
	}
	return kind + ":" + name, nil
}

// certified is the name of the app that a certificate proves; "": none.
func (p *proofs) certified(c *Certificate) (app string, err error) {
	if c == nil || len(p.names) == 0 {
		return "", nil
	}
	for _, name := range c.names {
		switch one := p.names[name]; {
		case one == "" || one == app:
		case app != "":
			return "", ErrProofs
		default:
			app = one
		}
	}
	return app, nil
}

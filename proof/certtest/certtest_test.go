package certtest

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
)

func TestCertificate(t *testing.T) {
	c, other := Of(t), Of(t)
	if c.Leaf.SerialNumber.Cmp(other.Leaf.SerialNumber) == 0 || c.Leaf.SerialNumber.Sign() <= 0 || !c.Leaf.SerialNumber.IsInt64() {
		t.Errorf("serial numbers %v and %v", c.Leaf.SerialNumber, other.Leaf.SerialNumber)
	}
	for _, name := range []string{Name, "127.0.0.1"} {
		if _, err := c.Pair().Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: c.Pool()}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: other.Pool()}); err == nil {
			t.Errorf("%s: another one's authority vouches for it", name)
		}
	}
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	for _, c := range []Certificate{c, other} {
		if err := c.Write(cert, key); err != nil {
			t.Fatal(err)
		}
		if pair, err := tls.LoadX509KeyPair(cert, key); err != nil || !pair.Leaf.Equal(c.Leaf) {
			t.Errorf("read %v, %v", pair.Leaf, err)
		}
	}
}

package upstream

import (
	"crypto/x509"
	"fmt"
)

// readCA returns the system's roots and those of a PEM file.
func readCA(path string) (*x509.CertPool, error) {
	pem, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // a container without roots is no fault when some are given
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return roots, nil
}

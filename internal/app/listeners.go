package app

import (
	"errors"
	"fmt"
	"net"
)

// listeners are the bound ports.
type listeners struct {
	grpc, http, admin, probes *patient // probes: nil if off
}

// open binds all ports, or none: the error joins all that failed.
func (l *listeners) open(c Config) error {
	var errs []error
	bind := func(setting, address string) *patient {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
			return nil
		}
		return newPatient(listener.(*net.TCPListener))
	}
	l.grpc = bind("grpc.listen", c.GRPC.Listen)
	l.http = bind("http.listen", c.HTTP.Listen)
	l.admin = bind("admin.listen", c.Admin.Listen)
	if c.Admin.Probes != "" {
		l.probes = bind("admin.probes", c.Admin.Probes)
	}
	return errors.Join(errs...)
}

// close closes what is still open; servers close theirs themselves.
func (l *listeners) close() {
	for _, listener := range []*patient{l.grpc, l.http, l.admin, l.probes} {
		if listener != nil {
			_ = listener.Close() // it may be closed already
		}
	}
}

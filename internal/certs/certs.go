// Package certs keeps the certificates, keys and authorities of TLS as their files
// are now, for listeners and for clients.
//
// What always holds: nothing below TLS 1.2 is spoken; a handshake uses the files as
// they were read last, all of one reading; files that cannot be read, or do not fit
// together, change nothing: what was read before stays; a client believes no server
// whose name was not checked.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Server is the TLS of a listener. Empty: plaintext.
type Server struct {
	// PEM file with the listener's certificate; needs key_file. Clients must then use TLS 1.2 or later.
	// All three files are read again when they change
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"` // PEM file with the key of cert_file
	// PEM file with the authorities for clients: clients must show a certificate that one of them has
	// signed
	ClientCAFile string `yaml:"client_ca_file"`
}

// Validate returns all faults, joined. Files are read, so that a bad one is found
// before a port is bound.
func (s Server) Validate() error {
	switch {
	case (s.CertFile == "") != (s.KeyFile == ""):
		return config.Faultf("cert_file", " and key_file are set together or not at all")
	case s.ClientCAFile != "" && s.CertFile == "":
		return config.Faultf("client_ca_file", " needs cert_file and key_file")
	case s.CertFile == "":
		return nil
	}
	_, err := s.files().read()
	return err
}

func (s Server) files() Files { return Files{Cert: s.CertFile, Key: s.KeyFile, CA: s.ClientCAFile} }

// Files are the PEM files of one side of TLS; each may be "".
type Files struct {
	Cert, Key string // its own certificate, with what links it to an authority
	CA        string // the authorities that sign the other side's
	System    bool   // besides those of the system
}

// material is one reading of the files. Immutable.
type material struct {
	own    *tls.Certificate // nil: none
	roots  *x509.CertPool   // nil: none
	server *tls.Config      // for handshakes of a listener
}

// maxFile bounds a file, in bytes.
const maxFile = 4 << 20

func readFile(setting, path string) ([]byte, error) {
	text, err := config.ReadFile(path, maxFile)
	if err != nil {
		return nil, config.Faultf(setting, ": %w", err)
	}
	return text, nil
}

func (f Files) read() (*material, error) {
	m := new(material)
	var errs []error
	if f.Cert != "" {
		cert, err := readFile("cert_file", f.Cert)
		key, err2 := readFile("key_file", f.Key)
		if err = errors.Join(err, err2); err == nil {
			var pair tls.Certificate
			if pair, err = tls.X509KeyPair(cert, key); err != nil {
				err = config.Faultf("cert_file", ", key_file: %w", err) // it quotes neither
			}
			m.own = &pair
		}
		errs = append(errs, err)
	}
	if f.CA != "" {
		name := "client_ca_file"
		m.roots = x509.NewCertPool()
		if f.System {
			name = "ca_file"
			if system, err := x509.SystemCertPool(); err == nil { // a container without any is no fault
				m.roots = system
			}
		}
		text, err := readFile(name, f.CA)
		if err == nil && !m.roots.AppendCertsFromPEM(text) {
			err = config.Faultf(name, ": %s holds no PEM certificate", f.CA)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return m, nil
}

// marks tells whether files have changed.
type marks [3]config.FileMark

func (f Files) marks() marks {
	return marks{config.MarkOf(f.Cert), config.MarkOf(f.Key), config.MarkOf(f.CA)}
}

// Keeper holds one reading of files and replaces it when they change. A nil Keeper is
// plaintext.
type Keeper struct {
	name     string // of the settings, for the log
	files    Files
	protocol []string // by ALPN
	log      *slog.Logger
	onChange func()

	now      atomic.Pointer[material]
	good     atomic.Int64 // readings since New
	bad      atomic.Int64
	read     marks // of the last reading, good or not; of Run alone
	lastSeen marks // of the last look; of Run alone
}

// New reads files. name is that of their section of settings ("grpc"), for the log;
// protocols are what a listener offers by ALPN.
func New(name string, files Files, protocols []string, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{name: name, files: files, protocol: protocols, log: log}
	k.read = files.marks()
	m, err := files.read()
	if err != nil {
		return nil, err
	}
	k.store(m)
	return k, nil
}

// ForListener is New for a listener; nil if that speaks plaintext.
func ForListener(name string, s Server, protocols []string, log *slog.Logger) (*Keeper, error) {
	if s.CertFile == "" {
		return nil, nil
	}
	k, err := New(name, s.files(), protocols, log)
	if err != nil {
		return nil, fmt.Errorf("%s.%w", name, err)
	}
	return k, nil
}

// Expires is when the certificate in use expires; zero: there is none.
func (k *Keeper) Expires() time.Time {
	if own := k.now.Load().own; own != nil && own.Leaf != nil {
		return own.Leaf.NotAfter
	}
	return time.Time{}
}

func (k *Keeper) store(m *material) {
	// A session that is resumed brings the certificates of before. Connections live long
	// here: nobody misses tickets.
	m.server = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: k.protocol, SessionTicketsDisabled: true}
	if m.own != nil {
		m.server.Certificates = []tls.Certificate{*m.own}
	}
	if k.files.CA != "" {
		m.server.ClientAuth, m.server.ClientCAs = tls.RequireAndVerifyClientCert, m.roots
	}
	k.now.Store(m)
}

// Server is what a listener speaks; nil: plaintext. Each handshake goes by the files
// as they were read last, and none resumes a session.
func (k *Keeper) Server() *tls.Config {
	if k == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: k.protocol, SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.now.Load().server, nil },
	}
}

var errNoName = errors.New("certs: there is no name to check the server's certificate by")

// Client is what a connection to the server of that name, or IP address, is secured
// with. Each handshake goes by the files as they were read last.
func (k *Keeper) Client(name string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: name,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if own := k.now.Load().own; own != nil {
				return own, nil
			}
			return new(tls.Certificate), nil // none
		},
		// A client's configuration has no place for roots that change. What this turns
		// off, the next line does, by the roots of now.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return k.verify(name, s) },
	}
}

// verify is what crypto/tls does with RootCAs, also for sessions that are resumed.
func (k *Keeper) verify(name string, s tls.ConnectionState) error {
	if name == "" {
		return errNoName
	}
	if len(s.PeerCertificates) == 0 {
		return errors.New("certs: the server shows no certificate")
	}
	options := x509.VerifyOptions{Roots: k.now.Load().roots, DNSName: name, Intermediates: x509.NewCertPool()}
	for _, c := range s.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := s.PeerCertificates[0].Verify(options); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
	}
	return nil
}

// Roots are the authorities as they were read last; nil: those of the system.
func (k *Keeper) Roots() *x509.CertPool { return k.now.Load().roots }

// OnChange has f called by Run after each good reading. Call it before Run.
func (k *Keeper) OnChange(f func()) { k.onChange = f }

// Readings is how many times files were read again, and how many of these failed.
func (k *Keeper) Readings() (good, bad int64) {
	if k == nil {
		return 0, 0
	}
	return k.good.Load(), k.bad.Load()
}

// every is the time between looks at the files.
const every = time.Second

// Run reads the files again when they have changed and then stayed the same for a
// second, because a program that has written a certificate may still have to write
// its key. It returns when ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	if k == nil || k.files == (Files{System: k.files.System}) {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.look()
		}
	}
}

func (k *Keeper) look() {
	seen := k.files.marks()
	settled := seen == k.lastSeen
	k.lastSeen = seen
	if !settled || seen == k.read {
		return
	}
	k.read = seen
	m, err := k.files.read()
	if err != nil {
		k.bad.Add(1)
		k.log.Error("files of TLS have changed and cannot be used; those read before still count", "settings", k.name, "err", err)
		return
	}
	k.store(m)
	k.good.Add(1)
	attrs := []any{"settings", k.name}
	if m.own != nil && m.own.Leaf != nil {
		attrs = append(attrs, "expires", m.own.Leaf.NotAfter)
	}
	k.log.Info("files of TLS read again; new handshakes go by them", attrs...)
	if k.onChange != nil {
		k.onChange()
	}
}

// Pinned is what a client on the same machine secures a connection to the listener
// with: it believes the certificate in CertFile, and no other. nil: plaintext.
func (s Server) Pinned() (*tls.Config, error) {
	if s.CertFile == "" {
		return nil, nil
	}
	m, err := Files{Cert: s.CertFile, Key: s.KeyFile}.read()
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(m.own.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("cert_file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(leaf)
	switch { // whatever it is called here
	case len(leaf.DNSNames) > 0:
		config.ServerName = leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		config.ServerName = leaf.IPAddresses[0].String()
	default:
		return nil, errors.New("cert_file: the certificate names neither a host nor an address")
	}
	if s.ClientCAFile != "" {
		config.Certificates = []tls.Certificate{*m.own} // enough if the same authority has signed it for clients too
	}
	return config, nil
}

// Package dnstest is a DNS server for tests, over UDP and TCP on loopback.
//
// It answers what it was told, and for everything else that there is no such name. An
// answer that does not fit into 512 bytes comes over UDP without records and with the
// bit that has clients ask again over TCP.
package dnstest

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Server is safe for concurrent use.
type Server struct {
	Addr string // host:port

	mu      sync.Mutex // guards all below
	records map[string][]dnsmessage.ResourceBody
	broken  map[string]bool
	conns   map[net.Conn]bool // nil: stopped
	asked   [2]int            // over UDP and TCP
}

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{records: map[string][]dnsmessage.ResourceBody{}, broken: map[string]bool{}, conns: map[net.Conn]bool{}}
	stream, packets := listen(t)
	s.Addr = stream.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply := s.reply(buffer[:n], 0); reply != nil {
				_, _ = packets.WriteTo(reply, from)
			}
		}
	})
	serving.Go(func() {
		for {
			c, err := stream.Accept()
			if err != nil {
				return
			}
			if s.hold(c) {
				serving.Go(func() { s.serve(c) })
			}
		}
	})
	t.Cleanup(func() {
		_, _ = stream.Close(), packets.Close()
		s.mu.Lock()
		for c := range s.conns {
			_ = c.Close()
		}
		s.conns = nil
		s.mu.Unlock()
		serving.Wait()
	})
	return s
}

// listen takes a port that is free for both.
func listen(t testing.TB) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 20 {
		stream, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if packets, err := net.ListenPacket("udp", stream.Addr().String()); err == nil {
			return stream, packets
		}
		_ = stream.Close()
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

func (s *Server) hold(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		_ = c.Close()
		return false
	}
	s.conns[c] = true
	return true
}

func (s *Server) serve(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		reply := s.reply(question, 1)
		if _, err := c.Write(binary.BigEndian.AppendUint16(nil, uint16(len(reply)))); err != nil {
			return
		}
		if _, err := c.Write(reply); err != nil {
			return
		}
	}
}

// Addresses has a name, with its dot at the end, stand for addresses.
func (s *Server) Addresses(name string, addresses ...string) {
	var bodies []dnsmessage.ResourceBody
	for _, text := range addresses {
		if a := netip.MustParseAddr(text); a.Is4() {
			bodies = append(bodies, &dnsmessage.AResource{A: a.As4()})
		} else {
			bodies = append(bodies, &dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
	s.set(name, bodies)
}

// Target is what an SRV record names.
type Target struct {
	Host string // with its dot at the end
	Port uint16
}

// Services gives a name SRV records.
func (s *Server) Services(name string, targets ...Target) {
	var bodies []dnsmessage.ResourceBody
	for _, t := range targets {
		bodies = append(bodies, &dnsmessage.SRVResource{Priority: 1, Weight: 1, Port: t.Port, Target: dnsmessage.MustNewName(t.Host)})
	}
	s.set(name, bodies)
}

func (s *Server) set(name string, bodies []dnsmessage.ResourceBody) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = bodies
}

// Break has questions for a name fail, or no longer.
func (s *Server) Break(name string, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken[name] = broken
}

// Asked is how many questions came over UDP and TCP.
func (s *Server) Asked() (udp, tcp int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[0], s.asked[1]
}

// reply answers one question; nil: it is none.
func (s *Server) reply(message []byte, way int) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	s.mu.Lock()
	s.asked[way]++
	bodies, known := s.records[q.Name.String()]
	broken := s.broken[q.Name.String()]
	s.mu.Unlock()
	out := dnsmessage.Message{Questions: []dnsmessage.Question{q}}
	out.Header = dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true,
		RecursionDesired: header.RecursionDesired, RecursionAvailable: true}
	switch {
	case broken:
		out.RCode = dnsmessage.RCodeServerFailure
	case !known || len(bodies) == 0:
		out.RCode = dnsmessage.RCodeNameError
	}
	for _, b := range bodies {
		if !broken && typeOf(b) == q.Type {
			out.Answers = append(out.Answers,
				dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: b})
		}
	}
	packed, err := out.Pack()
	if err == nil && way == 0 && len(packed) > 512 {
		out.Answers, out.Truncated = nil, true
		packed, err = out.Pack()
	}
	if err != nil {
		return nil
	}
	return packed
}

func typeOf(b dnsmessage.ResourceBody) dnsmessage.Type {
	switch b.(type) {
	case *dnsmessage.AResource:
		return dnsmessage.TypeA
	case *dnsmessage.AAAAResource:
		return dnsmessage.TypeAAAA
	default:
		return dnsmessage.TypeSRV
	}
}

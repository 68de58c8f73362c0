package upstream

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// maxReason bounds what unanswered returns, in bytes.
const maxReason = 200

const (
	inTime  = "no answer in time"
	hungUp  = "the node closed the connection, or the network did"
	lostTLS = "TLS handshake failed: "
)

// unanswered says in a few words why a call got no answer, for people: without the layers in which gRPC wraps an error of the
// network, and without the code where the words say it. What it does not recognize keeps its words, behind the code.
func unanswered(code codes.Code, err error) string {
	text := err.Error()
	var of interface{ GRPCStatus() *status.Status }
	if errors.As(err, &of) {
		text = of.GRPCStatus().Message()
	} else if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		code = codes.OK // it comes from this process, which wrote it for people
	}
	for { // an error of gRPC within one of gRPC
		_, inner, more := strings.Cut(text, "desc = ")
		if !more {
			break
		}
		if quoted, err := strconv.QuotedPrefix(inner); err == nil {
			inner, _ = strconv.Unquote(quoted) // QuotedPrefix found it good
		}
		text = inner
	}
	text, _, _ = strings.Cut(text, "\n") // an address of several that a host's name stands for
	text = strings.Join(strings.Fields(text), " ")
	words, known := networkFault(text)
	if !known && code != codes.OK {
		words = strings.TrimSuffix(ydbstatus.CodeName(code)+": "+words, ": ")
	}
	return strings.ToValidUTF8(words[:min(len(words), maxReason)], "")
}

// layers begin the texts of gRPC, and of this process's own client, about connections.
var layers = []string{"the sidecar cannot connect to the node: ", "latest balancer error: ", "connection error: ",
	"transport: ", "Error while dialing: ",
	"error reading from server: ", "error reading server preface: ", "http2: ", "h2: "}

// overSocket and lookedUp are errors of package net.
var (
	overSocket = regexp.MustCompile(`^(?:raw-)?(dial|read|write) (?:tcp|unix) (?:\S+->)?(\S+): (?:\w+: )?(.+)$`)
	lookedUp   = regexp.MustCompile(`^(?:dial tcp: )?lookup (\S+?)(?: on \S+)?: (.+)$`)
)

// networkFault returns what happened to a connection. known is false if the text is none of the usual ones.
func networkFault(text string) (words string, known bool) {
	connecting := strings.HasPrefix(text, layers[0])
	for i := 0; i < len(layers); i++ {
		if rest, is := strings.CutPrefix(text, layers[i]); is {
			text, i = rest, -1
		}
	}
	secured := ""
	if rest, is := strings.CutPrefix(text, "authentication handshake failed: "); is {
		text, secured = rest, lostTLS
	}
	if m := overSocket.FindStringSubmatch(text); m != nil {
		return secured + socketFault(m[1] == "dial", m[2], m[3]), true
	}
	if m := lookedUp.FindStringSubmatch(text); m != nil {
		if m[2] == "no such host" {
			return "host name " + m[1] + " not found", true
		}
		return "host name " + m[1] + " cannot be looked up: " + m[2], true
	}
	rejected, by := strings.CutPrefix(text, "remote error: tls: ")
	switch {
	case by:
		return "the node rejected the TLS handshake: " + rejected, true
	case secured != "" || strings.HasPrefix(text, "tls: ") || strings.HasPrefix(text, "x509: "):
		return lostTLS + strings.TrimPrefix(text, "tls: "), true
	case text == "EOF", text == "unexpected EOF", text == "the peer closed the connection, or the network did":
		return hungUp, true
	case text == "connection reset by peer":
		return "the node reset the connection", true
	case slices.Contains([]string{context.DeadlineExceeded.Error(), "i/o timeout", "the call's time is up",
		"the peer did not answer a ping", "the connection could not be made"}, text):
		return inTime, true
	case strings.HasPrefix(text, "the connection to the node was lost"), strings.HasPrefix(text, "the node, or the connection to it"):
		return text, true
	case strings.HasSuffix(text, "looked like an HTTP/1.1 header"):
		return "the node does not speak HTTP/2", true
	case connecting:
		return "cannot connect to the node: " + text, true
	}
	return text, false
}

// socketFault returns what happened when this process dialled an address, or used a connection to it.
func socketFault(dialled bool, address, text string) string {
	switch text {
	case "connection refused":
		return "connection refused by " + address
	case "i/o timeout", "connection timed out", "operation was canceled", "use of closed network connection":
		if dialled {
			return "no answer from " + address + " to the attempt to connect"
		}
		return "no answer in time from " + address
	case "no route to host", "network is unreachable", "host is unreachable":
		return "no route to " + address
	case "connection reset by peer", "broken pipe", "EOF":
		return "connection reset by " + address
	}
	if dialled {
		return "cannot connect to " + address + ": " + text
	}
	return "connection to " + address + " lost: " + text
}

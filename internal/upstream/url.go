package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Default ports of YDB, used when an address names none.
const (
	portPlain = "2136"
	portTLS   = "2135"
)

// endpoint is a parsed ydb.url.
type endpoint struct {
	addresses []string // host:port each, at least one
	database  string   // with its leading slash
	secure    bool
}

// parseURL reads grpc[s]://host[:port][,host[:port]...]/database and the older
// form with ?database=/database; when both name a database, the query counts,
// as in the official SDKs. Its errors never repeat the text, which may hold a
// password somebody put there by mistake.
func parseURL(text string) (endpoint, error) {
	var e endpoint
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return e, errors.New("must begin with grpc:// or grpcs://")
	}
	switch strings.ToLower(scheme) {
	case "grpc":
	case "grpcs":
		e.secure = true
	default:
		return e, errors.New("must begin with grpc:// or grpcs://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, path, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") {
		return e, errors.New("must not hold a user or password; use ydb.auth.user and ydb.auth.password")
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return e, errors.New("has a database path with a bad % escape")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return e, errors.New("has a query that cannot be read")
	}
	for key := range values {
		if key != "database" {
			return e, fmt.Errorf("has the unknown option %q; the only one is database", key)
		}
	}
	if v := values.Get("database"); v != "" {
		path = v
	}
	e.database = "/" + strings.Trim(path, "/")
	if e.database == "/" {
		return e, errors.New("names no database; write grpc://host:2136/database")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		address, err := hostPort(host, e.secure)
		if err != nil {
			return e, err
		}
		e.addresses = append(e.addresses, address)
	}
	return e, nil
}

// hostPort completes an address with the default port.
func hostPort(text string, secure bool) (string, error) {
	port := portPlain
	if secure {
		port = portTLS
	}
	host := text
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, port = h, p
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		if strings.Contains(text, ":") && net.ParseIP(host) == nil {
			return "", errors.New("has an address that is not host:port")
		}
	}
	if host == "" || strings.ContainsAny(host, " \t\r\n[]") {
		return "", errors.New("has an empty or malformed host")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", errors.New("has a port outside 1 to 65535")
	}
	return net.JoinHostPort(host, port), nil
}

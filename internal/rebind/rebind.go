// Package rebind protects HTTP servers on a loopback address from DNS rebinding: a foreign web
// page whose host name resolves to 127.0.0.1 after it was loaded. To the browser the server is
// then part of the foreign site, so the page may read and write without any of the browser's
// cross-origin checks. The Host header still has the foreign name.
package rebind

import (
	"net"
	"net/http"
	"strings"
)

// IsLocal reports whether a Host header names this machine: localhost, a name below it, a
// loopback address, or one of the names that the server was told to listen at.
func IsLocal(host string, names ...string) bool {
	host = strings.ToLower(bare(host))
	ip := net.ParseIP(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback() {
		return true
	}
	for _, n := range names {
		// No server can be rebound to an address, and not to a name that its owner gave it.
		if n = bare(n); n != "" && strings.EqualFold(n, host) {
			return true
		}
	}
	return false
}

// bare returns a host without its port and brackets.
func bare(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

// IsLoopback reports whether a listener is reachable from this machine only.
func IsLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// Local answers requests to other hosts with 403 Forbidden. names are the addresses that the
// server was told to listen at.
func Local(next http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLocal(r.Host, names...) {
			http.Error(w, Refused, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Refused is the answer to a request for another host.
const Refused = "this server listens on a loopback address and answers only requests whose Host header names this machine"

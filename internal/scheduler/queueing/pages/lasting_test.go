package pages

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// Catches an error that is logged again in every round because its text has the port of the connection.
func TestLastingError(t *testing.T) {
	of := func(port int) string {
		address := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
		return lasting(&net.OpError{Op: "read", Net: "tcp", Source: address(port), Addr: address(8443), Err: syscall.ECONNRESET}).Error()
	}
	if a, b := of(40001), of(40002); a != b {
		t.Errorf("%q and %q", a, b)
	}
	if got := lasting(errors.New("other")).Error(); got != "other" {
		t.Errorf("another error is now %q", got)
	}
}

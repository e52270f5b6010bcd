package rebind

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Catches a foreign host name that passes for this machine, and a local name that does not.
func TestLocal(t *testing.T) {
	t.Parallel()
	h := Local(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "node-1:9400", "")
	for host, want := range map[string]int{
		"localhost": 200, "localhost:9400": 200, "LOCALHOST:9400": 200, "localhost.:9400": 200, "a.localhost:1": 200, "127.0.0.1:9400": 200, "127.8.9.1": 200,
		"[::1]:9400": 200, "[::1]": 200, "[::ffff:127.0.0.1]:1": 200, "node-1": 200, "Node-1:80": 200,
		"": 403, ":9400": 403, "evil.example": 403, "evil.example:9400": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "notlocalhost": 403,
		"10.0.0.1:9400": 403, "0.0.0.0:9400": 403, "[::]:9400": 403, "2130706433": 403,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("Host %q: %d, want %d", host, w.Code, want)
		}
	}
}

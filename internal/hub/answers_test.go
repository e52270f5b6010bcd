package hub

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
	"github.com/gpumeter/gpumeter/internal/query"
)

// wideStore returns a store whose series wide has an answer of 8 MB, more than socket buffers
// hold.
func wideStore(t *testing.T) *Store {
	t.Helper()
	s := openTest(t, t.TempDir(), Options{})
	a := s.Appender(t.Context())
	for i := range 2000 {
		a.Gauge(name("wide", "i", fmt.Sprint(i), "long", strings.Repeat("x", 4000)), ago(time.Second), 1)
	}
	commit(t, a)
	return s
}

// notReading asks for a path and reads one byte of the answer.
func notReading(t *testing.T, server *httptest.Server, path string) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(conn, make([]byte, 1)) // the answer has started, or was already cut off
}

var (
	widePath  = "/api/v1/query?query=wide&time=" + url.QueryEscape(now.Format(time.RFC3339Nano))
	widePaths = map[string]string{"query": widePath, "series": "/api/v1/series?match[]=wide"}
)

// Catches clients that stop all queries by not reading their answers.
func TestStalledReaders(t *testing.T) {
	t.Parallel()
	s := wideStore(t)
	for what, n := range map[string]int{"query": 8 * DefaultQueries, "series": DefaultQueries} {
		server := httptest.NewServer(NewHandler(s, s, HandlerOptions{}))
		for range n {
			notReading(t, server, widePaths[what])
		}
		r, err := http.Get(server.URL + "/api/v1/query?query=1") // without a turn the status is 503
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d beside %d clients that do not read", what, r.StatusCode, n)
		}
		server.CloseClientConnections()
		server.Close()
	}
}

// Catches an answer that stays in memory as long as a client likes.
func TestSlowReaderIsCut(t *testing.T) {
	t.Parallel()
	s := wideStore(t)
	for what, path := range widePaths {
		refused := NewRefusals()
		server := httptest.NewServer(NewHandler(s, s, HandlerOptions{Refusals: refused, pace: peer.Pace{Grace: 20 * time.Millisecond, Rate: 1}}))
		notReading(t, server, path)
		await.True(t, what+": the slow reader is counted", func() bool { return refused.Count(SlowReader) == 1 })
		server.Close() // waits for the request
	}
}

// Catches a slow reader that HTTP/2 hides: there the connection goes on.
func TestSlowReaderOfHTTP2IsCut(t *testing.T) {
	t.Parallel()
	s := wideStore(t)
	refused := NewRefusals()
	server := httptest.NewUnstartedServer(NewHandler(s, s, HandlerOptions{Refusals: refused, pace: peer.Pace{Grace: 20 * time.Millisecond, Rate: 1}}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	before, err := server.Client().Get(server.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	before.Body.Close()
	if before.ProtoMajor != 2 {
		t.Fatal(before.Proto)
	}
	r, err := server.Client().Get(server.URL + widePath)
	if err == nil {
		defer r.Body.Close()
		await.True(t, "the slow reader is counted", func() bool { return refused.Count(SlowReader) == 1 })
		_, err = io.Copy(io.Discard, r.Body)
	} // else the answer was cut before its header was read
	if err == nil || !strings.Contains(err.Error(), "INTERNAL_ERROR") || refused.Count(SlowReader) != 1 {
		t.Errorf("the answer ended with %v, %d slow readers are counted", err, refused.Count(SlowReader))
	}
	again, err := server.Client().Get(server.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	again.Body.Close()
}

// Catches answers for slow readers that fill the memory, and an answer that cannot be held and
// is not counted.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	s := wideStore(t)
	refused := NewRefusals()
	h := &handler{store: s, log: s, opt: HandlerOptions{Refusals: refused}, answering: newAnswering(s, peer.Pace{})}
	h.room = peer.NewRoom(1<<20, 1<<20)
	mux := http.NewServeMux()
	h.routes(mux)
	for what, path := range widePaths {
		code, body, _ := ask(t, h.guard(mux), "", http.MethodGet, path, nil)
		if want := `{"error":"` + peer.ErrShare.Error() + `","errorType":"unavailable","status":"error"}`; code != http.StatusServiceUnavailable || body != want {
			t.Errorf("%s: %d %.200s, want %s", what, code, body, want)
		}
	}
	if n := refused.Count(PeerLimit); n != 2 || h.room.Used() != 0 {
		t.Errorf("%d are counted, %d bytes are held", n, h.room.Used())
	}
	if code, body, _ := ask(t, h.guard(mux), "", http.MethodGet, "/api/v1/query?query=1", nil); code != http.StatusOK {
		t.Errorf("a small answer: %d %s", code, body)
	}
}

// Catches one token whose queries take all turns, from however many addresses.
func TestOnePeerLeavesTurns(t *testing.T) {
	t.Parallel()
	tokens, err := access.ParseTokens([]byte(testTokens))
	if err != nil {
		t.Fatal(err)
	}
	asked, end := make(chan string), make(chan struct{})
	h := NewHandler(slowRed{slowStore{asked: asked, end: end}}, nil, HandlerOptions{Tokens: tokens})
	codes := make(chan int)
	for i := range 2 * DefaultQueries {
		go func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/query?query=up", nil)
			r.RemoteAddr = fmt.Sprintf("10.0.0.%d:1", i)
			r.Header.Set("Authorization", "Bearer team-0123456789abcdef")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			codes <- w.Code
		}()
	}
	for range DefaultQueries - DefaultQueries/4 {
		<-asked
	}
	if code, body, _ := ask(t, h, "blue-0123456789abcdef", http.MethodGet, "/api/v1/query", at(url.Values{"query": {"up"}})); code != http.StatusOK {
		t.Errorf("another team: %d %s", code, body)
	}
	close(end)
	for range 2*DefaultQueries - (DefaultQueries - DefaultQueries/4) {
		<-asked
	}
	for range 2 * DefaultQueries {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("the first team: %d", code)
		}
	}
}

// slowRed answers team red on request and others at once.
type slowRed struct{ slowStore }

func (s slowRed) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if !strings.Contains(expr, "red team") {
		return []query.Sample{{Time: at, Value: 1}}, nil
	}
	s.asked <- expr
	<-s.end
	return []query.Sample{{Time: at, Value: 1}}, ctx.Err()
}

// Catches one client whose pages take all queries of the store, of the hub's rules too.
func TestQueriesAreShared(t *testing.T) {
	t.Parallel()
	turns := newTurns(DefaultQueries)
	one, other := peer.With(t.Context(), "one"), peer.With(t.Context(), "other")
	var held []int
	for range DefaultQueries - DefaultQueries/4 {
		i, err := turns.Insert(one, "")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, i)
	}
	late, cancel := context.WithCancel(one)
	waiting := make(chan error)
	go func() {
		_, err := turns.Insert(late, "")
		waiting <- err
	}()
	for _, ctx := range []context.Context{other, t.Context()} {
		i, err := turns.Insert(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, i)
	}
	cancel()
	if err := <-waiting; err == nil {
		t.Error("one client has more than its share")
	}
	for _, i := range held {
		turns.Delete(i)
	}
	if len(turns.ends) != 0 {
		t.Errorf("%d turns are left", len(turns.ends))
	}
}

package peer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches one machine that is many peers, and many machines that are one.
func TestOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:1234":           "10.0.0.1",
		"10.0.0.1:1235":           "10.0.0.1",
		"10.0.0.2:1234":           "10.0.0.2",
		"[::ffff:10.0.0.1]:1234":  "10.0.0.1",
		"[2001:db8::1]:1234":      "2001:db8::/64",
		"[2001:db8::ffff:1]:1":    "2001:db8::/64",
		"[2001:db8:0:1::1]:1234":  "2001:db8:0:1::/64",
		"[fe80::1%eth0]:1":        "fe80::/64",
		"[::1]:1234":              "::1",
		"@":                       "@",
		"":                        "",
		"node-a.example.com:1234": "node-a.example.com",
		"127.0.0.1":               "127.0.0.1",
	} {
		if got := Of(remote); got != want {
			t.Errorf("%q is %q, want %q", remote, got, want)
		}
	}
}

// Catches a peer that gets more than its share of turns, a free turn that nobody gets, and a
// turn that is lost or doubled.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(4, 3)
		var mu sync.Mutex
		var got []string
		ends := map[string][]func(){}
		ask := func(who string) {
			go func() {
				done, err := turns.Take(t.Context(), who)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, who)
				ends[who] = append(ends[who], done)
			}()
			synctest.Wait()
		}
		finish := func(who string) {
			mu.Lock()
			done := ends[who][0]
			ends[who] = ends[who][1:]
			mu.Unlock()
			done()
			done() // has no effect
			synctest.Wait()
		}
		for range 6 {
			ask("a")
		}
		ask("b") // the fourth turn was kept for others
		ask("b")
		ask("c")
		finish("a") // c has none
		finish("a") // a and b have one each: a waits longer
		finish("b")
		want := []string{"a", "a", "a", "b", "c", "a", "b"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := turns.Take(gone, "d"); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled request gets a turn: %v", err)
		}
		for len(got) < 9 || len(ends["a"])+len(ends["b"])+len(ends["c"]) > 0 {
			for who := range ends {
				if len(ends[who]) > 0 {
					finish(who)
				}
			}
		}
		if turns.free != 4 || len(turns.held) != 0 || len(turns.waiting) != 0 {
			t.Errorf("left are %d turns, %v, %d waiting", turns.free, turns.held, len(turns.waiting))
		}
	})
}

// Catches a peer that takes all room.
func TestRoom(t *testing.T) {
	r := NewRoom(100, 75)
	for _, c := range []struct {
		peer string
		n    int64
		want error
	}{{"a", 70, nil}, {"a", 6, ErrShare}, {"b", 31, ErrFull}, {"b", 30, nil}, {"a", 1, ErrFull}} {
		if err := r.Take(c.peer, c.n); !errors.Is(err, c.want) {
			t.Errorf("%d for %s: %v, want %v", c.n, c.peer, err, c.want)
		}
	}
	r.Give("a", 70)
	r.Give("b", 30)
	if r.Used() != 0 || len(r.by) != 0 {
		t.Errorf("left are %d, %v", r.Used(), r.by)
	}
}

// Catches a sender that keeps a request open by sending a byte now and then, and a slow one
// that is cut off although it makes progress.
func TestPace(t *testing.T) {
	room := NewRoom(1<<20, 1<<20)
	pace := Pace{Grace: 50 * time.Millisecond, Rate: 1 << 20}
	ended := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, free, err := ReadBody(w, r, 1<<30, room, pace)
		free()
		ended <- err
	}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond) // always within the grace of the last byte
	defer tick.Stop()
	for dripping := true; dripping; {
		select {
		case err = <-ended:
			dripping = false
		case <-tick.C:
			_, _ = conn.Write([]byte("x"))
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || room.Used() != 0 {
		t.Errorf("a dripping sender: %v, %d bytes are held", err, room.Used())
	}
	pace.Grace = time.Hour
	r, err := http.Post(server.URL, "text/plain", strings.NewReader(strings.Repeat("x", 300_000)))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if err := <-ended; err != nil {
		t.Errorf("a sender that makes progress: %v", err)
	}
	start := time.Unix(0, 0)
	if got := DefaultPace.Due(start, 40<<10); !got.Equal(start.Add(25 * time.Second)) {
		t.Errorf("40 KiB are due after %s", got.Sub(start))
	}
}

// Catches one address that takes all connections, a listener that exceeds its limit, or stops
// accepting once it was full.
func TestListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 10)
	l := Listen(inner, 2, 1, func() { refused <- struct{}{} })
	accepted := make(chan net.Conn)
	ended := make(chan error)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	dial := func(from string) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	dial("127.0.0.1")
	first := <-accepted
	dial("127.0.0.1")
	<-refused
	dial("127.0.0.2")
	second := <-accepted
	dial("127.0.0.3") // waits: the listener is full
	for range 2 {     // gRPC closes some twice
		first.Close()
	}
	third := <-accepted
	second.Close()
	third.Close()
	dial("127.0.0.1")
	(<-accepted).Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("Accept does not return")
	}
}

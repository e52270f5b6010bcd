package inferencereceiver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches a page in a pod that is taken for a listed one because both are on a localhost, and one that counts twice
// because it is listed by an address and found by another.
func TestListedElsewhere(t *testing.T) {
	t.Parallel()
	at := func(list ...string) (out []netip.AddrPort) {
		for _, a := range list {
			out = append(out, netip.MustParseAddrPort(a))
		}
		return out
	}
	names := map[string][]netip.Addr{
		"models.example.com": {netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("::ffff:10.0.0.8")}, "node1": {netip.MustParseAddr("127.0.1.1")},
	}
	r := &inferenceReceiver{}
	for _, listed := range []string{"http://localhost:8000/metrics", "http://10.0.0.5:8000/metrics", "http://[fd00::1]/metrics", "http://models.example.com:8000/metrics", "http://node1:8000/v1/metrics", "http://unknown:8000/metrics"} {
		u, err := url.Parse(listed)
		if err != nil {
			t.Fatal(err)
		}
		l := &target{Target: inference.Target{URL: u}}
		if known := names[u.Hostname()]; known != nil {
			l.addresses.Store(&known)
		}
		r.listed = append(r.listed, l)
	}
	u := &url.URL{Scheme: "http", Host: "127.0.0.1:8000", Path: "/metrics"} // as every process sees itself
	for _, tt := range []struct {
		name  string
		found []netip.AddrPort
		path  string
		want  string
	}{
		{"of this machine", at("127.0.0.1:8000"), "/metrics", "http://localhost:8000/metrics"},
		{"of this machine, at all addresses", at("[::1]:8000", "127.0.0.1:8000", "10.0.0.1:8000"), "/metrics", "http://localhost:8000/metrics"},
		{"another port", at("127.0.0.1:8001"), "/metrics", ""},
		{"another path", at("127.0.0.1:8000"), "/prometheus/metrics", ""},
		{"of a pod that is listed", at("10.0.0.5:8000"), "/metrics", "http://10.0.0.5:8000/metrics"},
		{"of another pod", at("10.0.0.6:8000"), "/metrics", ""},
		{"of a pod that nobody can reach", nil, "/metrics", ""},
		{"of a name", at("10.0.0.7:8000"), "/metrics", "http://models.example.com:8000/metrics"},
		{"of a name with another port", at("10.0.0.7:8001"), "/metrics", ""},
		{"of a name with several addresses", at("10.0.0.8:8000"), "/metrics", "http://models.example.com:8000/metrics"},
		{"of the name of this machine", at("127.0.0.1:8000"), "/v1/metrics", "http://node1:8000/v1/metrics"},
		{"at another of its ports", at("10.0.0.5:3000", "10.0.0.5:8000"), "/metrics", "http://10.0.0.5:8000/metrics"},
		{"at the default port", at("[fd00::1]:80"), "/metrics", "http://[fd00::1]/metrics"},
	} {
		at := *u
		at.Path = tt.path
		got := ""
		if l := r.listing(&discover.Engine{Target: inference.Target{URL: &at}, Addresses: tt.found}); l != nil {
			got = l.URL.String()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Catches names of listed targets that are not looked up, or at each tick, and those that are forgotten when they cannot
// be looked up for a while.
func TestNamesOfListed(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	at, fails := "10.0.0.7", error(nil)
	r := &inferenceReceiver{
		cfg: createDefaultConfig().(*Config), find: Simulated(func(*node.Tick) []discover.Engine { return nil }), replay: true, targets: map[string]*target{},
		lookup: func(_ context.Context, network, name string) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, network+" "+name)
			return []netip.Addr{netip.MustParseAddr(at)}, fails
		},
	}
	for _, listed := range []string{"http://models.example.com:8000/metrics", "http://localhost:8000/metrics", "http://[::1]:8000/metrics"} {
		u, err := url.Parse(listed)
		if err != nil {
			t.Fatal(err)
		}
		r.listed = append(r.listed, &target{Target: inference.Target{URL: u}, last: noon, interval: 1000 * time.Hour}) // not due
	}
	ticks := make(chan node.Tick)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.follow(t.Context(), ticks)
	}()
	var got []string
	for _, second := range []int{0, 10, 290, 300, 310, 600, 900, 900} {
		mu.Lock()
		switch second {
		case 300:
			at = "10.0.0.9"
		case 600:
			at, fails = "10.0.0.10", errors.New("no answer")
		case 900:
			fails = nil
		}
		mu.Unlock()
		ticks <- node.Tick{Time: noon.Add(time.Duration(second) * time.Second)}
		ticks <- node.Tick{Time: noon.Add(time.Duration(second) * time.Second)} // the one before has been taken in
		mu.Lock()
		known := r.listed[0].addresses.Load()
		got = append(got, fmt.Sprint(second, " ", *known, " ", len(asked)))
		mu.Unlock()
	}
	close(ticks)
	<-done
	want := []string{
		"0 [10.0.0.7] 1", "10 [10.0.0.7] 1", "290 [10.0.0.7] 1", "300 [10.0.0.9] 2", "310 [10.0.0.9] 2", "600 [10.0.0.9] 3", "900 [10.0.0.10] 4", "900 [10.0.0.10] 4",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.listed[1].addresses.Load() != nil || r.listed[2].addresses.Load() != nil || asked[0] != "ip models.example.com" {
		t.Errorf("asked for %q", asked)
	}
}

// Catches an engine that is listed and found, and counted twice.
func TestListedAndFound(t *testing.T) {
	t.Parallel()
	p := serve(t, fmt.Sprintf(tokens, 10, 0))
	cfg := createDefaultConfig().(*Config)
	cfg.Targets = []TargetConfig{{URL: strings.ReplaceAll(p.URL, "127.0.0.1", "localhost") + "/metrics"}}
	chat := workload.Workload{ID: "pod/1/vllm", Kind: "deployment", Name: "chat"}
	m, sink := start(t, cfg, func(*node.Tick) []discover.Engine { return []discover.Engine{p.engine(t, "found", &chat)} })
	m.tick(0)
	m.tick(10)
	if got := next(t, sink, 2); len(got) != 2 || !strings.Contains(got[0], "name=chat") || strings.Contains(got[0], "found") {
		t.Errorf("%q", got)
	}
	if n := len(sink.AllMetrics()); n != 2 {
		t.Errorf("%d batches of two ticks", n)
	}
}

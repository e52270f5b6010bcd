package hub

import (
	"context"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches a query that takes minutes of CPU, or the stack, before any timeout applies,
// through any endpoint and however disguised.
func TestLongQueries(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir(), Options{})
	h := NewHandler(s, s, HandlerOptions{Refusals: s.Refusals()})
	brackets := strings.Repeat("(", 10_000) + "1" + strings.Repeat(")", 10_000)
	names := strings.Repeat("x", 60_000)
	long := map[string]string{
		"brackets":             brackets,
		"signs":                strings.Repeat("-", 60_000) + "1",
		"behind a comment":     "# it's \" `\n" + brackets,
		"behind a quote":       `"\"" + "'" + ` + "`\\`" + brackets,
		"behind a broken line": "\"\n" + brackets,
		"words":                "1" + strings.Repeat(" or 1", 5000),
		"words in capitals":    "1" + strings.Repeat(" OR 1", 5000),
		"commas":               "max(" + strings.Repeat("1,", 5000) + "1)",
		"text":                 strings.Repeat("x", maxExpr+1),
	}
	refused := uint64(0)
	for name, expr := range long {
		for path, form := range map[string]url.Values{
			"/api/v1/query":                   {"query": {expr}},
			"/api/v1/query_range":             {"query": {expr}, "start": {"1"}, "end": {"5"}, "step": {"1"}},
			"/api/v1/series":                  {"match[]": {expr}},
			"/api/v1/labels":                  {"match[]": {expr}},
			"/api/v1/label/__name__/values":   {"match[]": {"up", expr}},
			"/api/v1/label/__name__/values?x": {"match[]": {expr}},
		} {
			refused++
			code, body, _ := ask(t, h, "", http.MethodPost, path, form)
			if code != http.StatusUnprocessableEntity || s.Refusals().Count(QueryLimit) != refused {
				t.Fatalf("%s at %s: %d %.200s, %d are counted, want %d", name, path, code, body, s.Refusals().Count(QueryLimit), refused)
			}
		}
	}
	if code, _, _ := ask(t, h, "", http.MethodPost, "/api/v1/series", url.Values{"match[]": strings.Split(strings.Repeat("a,", 5000), ",")}); code != http.StatusUnprocessableEntity {
		t.Errorf("5000 selectors: %d", code)
	}
	for _, good := range []string{
		`count({a=~"` + strings.Repeat("(x|y)+", 8000) + `"})`,
		"count(" + names + ")",
		strings.Repeat("(", 400) + "1" + strings.Repeat(")", 400),
		strings.Repeat("# ((((((((((\n", 2000) + "1",
	} {
		if code, body, _ := ask(t, h, "", http.MethodPost, "/api/v1/query", url.Values{"query": {good}}); code != http.StatusOK {
			t.Errorf("%.50s: %d %.200s", good, code, body)
		}
	}
}

// Catches a short query of a team that takes gigabytes: the engine counts samples, not the
// bytes of labels. Measured before the limit: 3.1 GiB for the first.
//
//nolint:paralleltest // it measures the allocations of the process
func TestWideQueries(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{QueryBytes: 16 << 20})
	a := s.Appender(t.Context())
	for i := range 150 {
		a.Gauge(name("wide", TeamLabel, "blue", "i", strconv.Itoa(i), "long", strings.Repeat("x", 10)), ago(time.Second), float64(i))
	}
	commit(t, a)
	tokens, err := access.ParseTokens([]byte(testTokens))
	if err != nil {
		t.Fatal(err)
	}
	h := NewHandler(s, s, HandlerOptions{Refusals: s.Refusals(), Tokens: tokens})
	nested := func(expr, to string, times int) string {
		for range times {
			expr = `label_replace(` + expr + `,"long","` + to + `","long","(.*)")`
		}
		return expr
	}
	refused := uint64(0)
	for what, expr := range map[string]string{
		"nested label_replace":   nested("wide", "$1$1$1$1$1$1$1$1", 6),
		"doubled":                nested("wide", "$1$1", 20),
		"without series":         nested("vector(1)", "x$1$1$1$1$1$1$1$1", 8),
		"a long text":            `label_replace(wide, "a", "` + strings.Repeat("x", 60_000) + `", "", "") or label_replace(wide, "b", "` + strings.Repeat("x", 3000) + `$1$1", "", "") or label_replace(label_replace(wide, "b", "` + strings.Repeat("$1", 200) + `", "long", "(.*)"), "c", "` + strings.Repeat("$1", 200) + `", "b", "(.*)")`,
		"label_join":             `label_join(` + nested("wide", "$1$1$1$1", 4) + `, "a", "", ` + strings.Repeat(`"long",`, 100) + `"long")`,
		"joined to every series": `wide * on (` + TeamLabel + `) group_left (long) ` + nested(`max by (`+TeamLabel+`, long) (wide{i="1"})`, "$1$1$1$1$1$1$1$1", 5),
		"regexp":                 `wide{long=~"` + strings.Repeat(".{1000}", 3000) + `"}`,
		"regexp in a function":   `label_replace(wide, "a", "$1", "long", "` + strings.Repeat(".{1000}", 3000) + `")`,
		"regexp in disguise":     `wide{long=~"` + strings.Repeat(`.\\x7b1000\\x7d.\x7b1000\x7d`, 500) + `"}`,
	} {
		refused++
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		code, body, _ := ask(t, h, "blue-0123456789abcdef", http.MethodPost, "/api/v1/query", at(url.Values{"query": {expr}}))
		runtime.ReadMemStats(&after)
		if n := s.Refusals().Count(QueryLimit); code != http.StatusUnprocessableEntity || n != refused {
			t.Errorf("%s: %d %.200s, %d are counted, want %d", what, code, body, n, refused)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
			t.Errorf("%s takes %d MiB", what, got>>20)
		}
	}
	steps := url.Values{"query": {`count_values by (i, long) ("v", wide)`}, "start": {"1"}, "end": {"11001"}, "step": {"1"}}
	if code, body, _ := ask(t, h, "blue-0123456789abcdef", http.MethodPost, "/api/v1/query_range", steps); code != http.StatusOK {
		t.Errorf("count_values without samples: %d %.200s", code, body) // nothing is selected
	}
	steps.Set("start", strconv.FormatInt(now.Unix()-10_000, 10))
	steps.Set("end", strconv.FormatInt(now.Unix(), 10))
	if code, body, _ := ask(t, h, "blue-0123456789abcdef", http.MethodPost, "/api/v1/query_range", steps); code != http.StatusUnprocessableEntity {
		t.Errorf("count_values: %d %.200s", code, body)
	}
	for _, good := range []string{
		`label_replace(wide, "node", "$1-$2", "long", "(.)(.*)")`,
		`label_join(wide, "a", "-", "i", "long")`,
		`count_values("v", wide)`,
		nested("wide", "a-$1", 10),
	} {
		if code, body, _ := ask(t, h, "blue-0123456789abcdef", http.MethodPost, "/api/v1/query", at(url.Values{"query": {good}})); code != http.StatusOK {
			t.Errorf("%s: %d %.200s", good, code, body)
		}
	}
}

// FuzzCountSigns looks for an expression with more operators than were counted.
func FuzzCountSigns(f *testing.F) {
	for _, e := range []string{"1", "-(-(1))", `sum by (a) (rate(x{b="(c"}[5m])) # (`, "`(` + '(' or \"\\\"(\"", "\"\n((1))", "a and b unless c atan2 d", "x offset 5m @ end()"} {
		f.Add(e)
	}
	p := parser.NewParser(parser.Options{})
	f.Fuzz(func(t *testing.T, text string) {
		if checkLength(text) != nil {
			return
		}
		e, err := p.ParseExpr(text)
		if err != nil {
			return
		}
		nodes := 0
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			switch n.(type) {
			case *parser.ParenExpr, *parser.UnaryExpr, *parser.BinaryExpr, *parser.Call, *parser.AggregateExpr, *parser.SubqueryExpr:
				nodes++
			}
			return nil
		})
		if got := countSigns(text); got < nodes {
			t.Errorf("%q has %d, counted are %d", text, nodes, got)
		}
	})
}

// slowStore answers on request.
type slowStore struct {
	query.Store

	asked chan string
	end   chan struct{}
}

func (s slowStore) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	select {
	case s.asked <- expr:
	default:
	}
	select {
	case <-s.end:
		return []query.Sample{{Time: at, Value: 2}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Catches a scalar query that a hub with --backend cannot answer, which is how Grafana tests
// a data source.
func TestForeignScalar(t *testing.T) {
	t.Parallel()
	s := slowStore{asked: make(chan string, 1), end: make(chan struct{})}
	close(s.end)
	h := NewHandler(s, nil, HandlerOptions{})
	code, body, _ := ask(t, h, "", http.MethodGet, "/api/v1/query", at(url.Values{"query": {"1+1 # two"}}))
	if want := `{"status":"success","data":{"result":[1772889255.161,"2"],"resultType":"scalar"}}`; code != http.StatusOK || body != want {
		t.Errorf("%d %s, want %s", code, body, want)
	}
	if expr := <-s.asked; expr != "vector(1+1 # two\n)" {
		t.Errorf("it asks %s", expr)
	}
}

// Catches an unbounded number of requests, and requests that wait without bound.
func TestTurns(t *testing.T) {
	t.Parallel()
	refused := NewRefusals()
	s := slowStore{asked: make(chan string, DefaultQueries), end: make(chan struct{})}
	h := &handler{store: s, opt: HandlerOptions{Refusals: refused}, answering: answering{turns: peer.NewTurns(DefaultQueries, DefaultQueries), timeout: 10 * time.Second}}
	mux := http.NewServeMux()
	h.routes(mux)
	done := make(chan int)
	for range DefaultQueries {
		go func() {
			code, _, _ := ask(t, mux, "", http.MethodGet, "/api/v1/query", url.Values{"query": {"up"}})
			done <- code
		}()
	}
	for range DefaultQueries {
		<-s.asked
	}
	short := &handler{store: s, opt: h.opt, answering: answering{turns: h.turns, timeout: 10 * time.Millisecond}}
	other := http.NewServeMux()
	short.routes(other)
	for _, path := range []string{"/api/v1/query?query=1", "/api/v1/labels", "/api/v1/series?match[]=a", "/api/events"} {
		if code, body, _ := ask(t, other, "", http.MethodGet, path, nil); code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if n := refused.Count(QueryTimeout); n != 4 {
		t.Errorf("%d are counted", n)
	}
	close(s.end)
	for range DefaultQueries {
		if code := <-done; code != http.StatusOK {
			t.Errorf("%d", code)
		}
	}
	if code, _, _ := ask(t, other, "", http.MethodGet, "/api/events", nil); code != http.StatusOK {
		t.Errorf("a turn was not released: %d", code)
	}
}

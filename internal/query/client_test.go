package query

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var noon = time.Date(2026, 10, 14, 12, 0, 0, 0, time.UTC)

// asked is one request that the server received.
type asked struct {
	path   string
	form   url.Values
	header http.Header
}

// serve returns a client of a server that answers each request with answer.
func serve(t *testing.T, c Config, answer func(a asked) (int, string)) (*Client, *[]asked) {
	t.Helper()
	var all []asked
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		a := asked{r.URL.Path, r.PostForm, r.Header.Clone()}
		all = append(all, a)
		code, text := answer(a)
		w.WriteHeader(code)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	if c.URL == "" {
		c.URL = s.URL
	}
	cl, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return cl, &all
}

// Requests must follow the API, and values must be parsed to the last digit.
func TestInstant(t *testing.T) {
	t.Parallel()
	c, all := serve(t, Config{}, func(asked) (int, string) {
		return 200, `{"status":"success","isPartial":false,"data":{"resultType":"vector","result":[
			{"metric":{"__name__":"up","a":"\"x\\"},"value":[1792065600.123,"0.1"]},
			{"metric":{},"value":[1792065600.123,"NaN"]},
			{"metric":{"h":"1"},"histogram":[1,{"count":"1"}]}]},"stats":{"x":[1,{}]}}`
	})
	got, err := c.Instant(t.Context(), "up", noon.Add(7*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1792065600123).UTC()
	want := []Sample{{Labels{"__name__": "up", "a": `"x\`}, at, 0.1}, {Labels{}, at, math.NaN()}}
	if diff := cmp.Diff(want, got, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	a := (*all)[0]
	form := url.Values{
		"query": {"up"}, "time": {"1791979200.007"}, "timeout": {"60s"}, "nocache": {"1"},
		"partial_response": {"false"}, "deny_partial_response": {"1"}, // a partial answer would yield a partial bill
	}
	if diff := cmp.Diff(form, a.form); a.path != "/api/v1/query" || diff != "" {
		t.Errorf("%s (-want +got):\n%s", a.path, diff)
	}
}

// A range with more points than a store returns is split, with each point once.
func TestRangeInParts(t *testing.T) {
	t.Parallel()
	c, all := serve(t, Config{}, func(a asked) (int, string) {
		return 200, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[` + a.form.Get("start") + `,"1"],[` + a.form.Get("end") + `,"2"]]}]}}`
	})
	got, err := c.Range(t.Context(), "x", noon, noon.Add(15_000*time.Second), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := []Series{{Labels{"a": "b"}, []Point{{noon, 1}, {noon.Add(9999 * time.Second), 2}, {noon.Add(10_000 * time.Second), 1}, {noon.Add(15_000 * time.Second), 2}}}}
	if diff := cmp.Diff(want, got); diff != "" || len(*all) != 2 {
		t.Errorf("%d questions (-want +got):\n%s", len(*all), diff)
	}
	if _, err := c.Range(t.Context(), "x", noon, noon, 0); err == nil {
		t.Error("a zero step was accepted")
	}
}

// Prometheus 2 includes the sample at the left edge, which would count in two periods.
func TestRawIsOpenToTheLeft(t *testing.T) {
	t.Parallel()
	c, all := serve(t, Config{}, func(asked) (int, string) {
		return 200, fmt.Sprintf(`{"data":{"result":[{"metric":{"a":"b"},"values":[[%d,"3"],[%d.5,"2"],[%d,"NaN"],[%d,"1"]]},{"metric":{"a":"c"},"values":[[%d,"1"]]}],"resultType":"matrix"},"status":"success"}`,
			noon.Unix()+60, noon.Unix(), noon.Unix()+1, noon.Unix(), noon.Unix()+61)
	})
	got, err := c.Raw(t.Context(), `x{a="b"}`, noon, noon.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	want := []Series{{Labels{"a": "b"}, []Point{{noon.Add(500 * time.Millisecond), 2}, {noon.Add(time.Minute), 3}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if q := (*all)[0].form.Get("query"); q != `x{a="b"}[60000ms]` {
		t.Errorf("query %s", q)
	}
	if got, err := c.Raw(t.Context(), "x", noon, noon); got != nil || err != nil {
		t.Errorf("an empty range has %v, %v", got, err)
	}
}

// Credentials must be sent, and read again for every request because tokens are renewed.
func TestCredentials(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	ok := func(asked) (int, string) {
		return 200, `{"status":"success","data":{"resultType":"vector","result":[]}}`
	}
	c, all := serve(t, Config{TokenFile: file, Headers: map[string]string{"X-Scope-OrgID": "fleet"}}, ok)
	for range 2 {
		if _, err := c.Instant(t.Context(), "x", noon); err != nil {
			t.Fatal(err)
		}
		write("second")
	}
	got := []string{(*all)[0].header.Get("Authorization"), (*all)[1].header.Get("Authorization"), (*all)[1].header.Get("X-Scope-OrgID")}
	if diff := cmp.Diff([]string{"Bearer first", "Bearer second", "fleet"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "two\nlines", "\x00"} {
		write(bad)
		if _, err := c.Instant(t.Context(), "x", noon); err == nil {
			t.Errorf("invalid token %q was sent", bad)
		}
	}
	c, all = serve(t, Config{User: "u", PasswordFile: file}, ok)
	write("pw")
	if _, err := c.Instant(t.Context(), "x", noon); err != nil || (*all)[0].header.Get("Authorization") != "Basic dTpwdw==" {
		t.Errorf("%v, %v", (*all)[0].header, err)
	}
}

// A server's error message must be repeated, but bounded and without our secrets, and not
// the page of a proxy in between.
func TestErrors(t *testing.T) {
	t.Parallel()
	const token = "s3cret-t0ken"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		code int
		body string
		want string
	}{
		"a bad question":  {400, `{"status":"error","errorType":"bad_data","error":"parse error:\nunexpected"}`, "bad_data: parse error: unexpected"},
		"it echoes":       {422, `{"status":"error","errorType":"execution","error":"no ` + token + `"}`, "execution: no ***"},
		"very long":       {400, `{"status":"error","error":"` + strings.Repeat("x", 5000) + `"}`, strings.Repeat("x", 300) + "..."},
		"a proxy":         {502, "<html>" + token, "502 Bad Gateway"},
		"not let in":      {401, `{"status":"error","error":"` + token + `"}`, "a token or password may be missing or wrong"},
		"not JSON":        {200, "<html>", "cannot parse answer"},
		"not the API":     {200, `{"hello":1}`, "is this the address of a Prometheus API?"},
		"a scalar":        {200, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`, `unexpected result type "scalar"`},
		"torn":            {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a`, "unexpected EOF"},
		"a bad point":     {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":["1",2]}]}}`, "does not match the API"},
		"half an answer":  {200, `{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[]}}`, "partial answer"},
		"a list":          {200, `[]`, "does not match the API"},
		"endless":         {200, `{"status":"success","data":{"resultType":"vector","result":[` + strings.Repeat(`{"metric":{},"value":[1,"1"]},`, 100_000), "answer exceeds 1 MiB"},
		"labels no text":  {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":1}}]}}`, "cannot unmarshal"},
		"deeply nested":   {200, strings.Repeat("[", 20_000), "does not match the API"},
		"nested in extra": {200, `{"x":` + strings.Repeat("[", 20_000), "exceeded max depth"},
	} {
		c, _ := serve(t, Config{TokenFile: file, MaxBytes: 1 << 20}, func(asked) (int, string) { return tt.code, tt.body })
		_, err := c.Instant(t.Context(), "x", noon)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), token) || len(err.Error()) > 600 {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// Another host must not get our headers, and a hanging server must not block us.
func TestRedirectAndTimeout(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer other.Close()
	here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer here.Close()
	c, err := Open(Config{URL: here.URL, Headers: map[string]string{"X-Key": "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Instant(t.Context(), "x", noon); err == nil || !strings.Contains(err.Error(), "redirect") {
		t.Errorf("%v", err)
	}
	select {
	case h := <-got:
		t.Errorf("another host got %v", h)
	default:
	}
	end := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	defer slow.Close()
	defer close(end)
	if c, err = Open(Config{URL: slow.URL, Timeout: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Instant(t.Context(), "x", noon); err == nil || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Instant(ctx, "x", noon); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// An invalid address must be rejected at once, without repeating its password.
func TestOpen(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "prometheus:9090", "ftp://x", "http://", "http://u:s3cret@h:x/"} {
		if _, err := Open(Config{URL: bad}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := Open(Config{URL: "http://h", Headers: map[string]string{"X-Key": "a\nb"}}); err == nil || strings.Contains(err.Error(), "a\nb") {
		t.Errorf("a header with a line break: %v", err)
	}
	for in, want := range map[string]string{"http://h:1/": "http://h:1", "https://u:p@h/prometheus/": "https://h/prometheus", "http://h/api/v1/": "http://h"} {
		c, err := Open(Config{URL: in})
		if err != nil || c.base != want {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// A store with a private CA must be reachable with it, and not without.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"vector","result":null}}`)
	}))
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{ca, ""} {
		c, err := Open(Config{URL: s.URL, CAFile: file})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Instant(t.Context(), "x", noon); (err == nil) != (file != "") {
			t.Errorf("with %q: %v", file, err)
		}
	}
	if err := os.WriteFile(ca, []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{URL: s.URL, CAFile: ca}); err == nil {
		t.Error("a file without a certificate was accepted")
	}
}

// The answer of a hostile server must yield an error or plain values, never a crash.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1.5,"2"]}]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":null,"values":[[2,"+Inf"],[1,"NaN"]]}]}}`,
		`{"status":"error","errorType":"x","error":"y"}`, `null`, `{"data":null}`, `{"data":{"result":{}}}`, `{"status":"success","data":{"result":[null,{"value":null}]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		err := decode(strings.NewReader(string(text)), func(e *element) {
			for i := 1; i < len(e.Values); i++ {
				if e.Values[i].Time.Before(e.Values[i-1].Time) {
					t.Errorf("points are out of order: %v", e.Values)
				}
			}
		})
		if err != nil && errors.As(err, new(storeError)) && len(err.Error()) > 400 {
			t.Errorf("error has %d bytes", len(err.Error()))
		}
	})
}

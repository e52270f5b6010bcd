package slurm

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const jwt = "eyJhbGciOi.secret.x"

// restd is a slurmrestd with the API of 24.11 that accepts one token.
func restd(jobs func(w http.ResponseWriter, r *http.Request)) (h http.Handler, asked *[]string) {
	asked = new([]string)
	mux := http.NewServeMux()
	mux.HandleFunc("/openapi/v3", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"paths":{"\/slurm\/v0.0.40\/jobs\/":{},"/slurm/v0.0.41/jobs/":{},"/slurmdb/v0.0.42/jobs/":{},"/slurm/v0.0.9/jobs/":{}}}`))
	})
	mux.HandleFunc("/slurm/v0.0.41/jobs", jobs)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("X-SLURM-USER-NAME"))
		if r.Header.Get("X-SLURM-USER-TOKEN") != jwt {
			http.Error(w, "Authentication failure", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}), asked
}

func good(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte(`{"jobs":[{"job_id":7,"nodes":"gn1","job_state":["RUNNING"]}],"errors":[]}`))
}

func token(t *testing.T, s string) string {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ids requests the job numbers.
func ids(ctx context.Context, r *REST) (out []string, err error) {
	err = r.Get(ctx, "slurm", "jobs", func(body io.Reader) error {
		return DecodeList(body, "jobs", func(j struct {
			ID Number `json:"job_id"`
		},
		) error {
			out = append(out, j.ID.String())
			return nil
		})
	})
	return out, err
}

// The version is looked up once; after that each call is one request.
func TestRest(t *testing.T) {
	h, asked := restd(good)
	srv := httptest.NewServer(h)
	defer srv.Close()
	r, err := NewREST(srv.URL+"/", token(t, "SLURM_JWT="+jwt+"\n"), "gpumeter")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if jobs, err := ids(t.Context(), r); err != nil || len(jobs) != 1 || jobs[0] != "7" {
			t.Errorf("%v, %v", jobs, err)
		}
	}
	want := []string{"GET /openapi/v3 gpumeter", "GET /slurm/v0.0.41/jobs gpumeter", "GET /slurm/v0.0.41/jobs gpumeter"}
	if diff := cmp.Diff(want, *asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRestVersionAndSocket(t *testing.T) {
	h, asked := restd(good)
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	srv.Start()
	defer srv.Close()
	r, err := NewREST("unix:"+path, token(t, jwt), "")
	if err != nil {
		t.Fatal(err)
	}
	r.version = "v0.0.41"
	if jobs, err := ids(t.Context(), r); err != nil || len(jobs) != 1 {
		t.Errorf("%v, %v", jobs, err)
	}
	if diff := cmp.Diff([]string{"GET /slurm/v0.0.41/jobs "}, *asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r, err := NewREST("http://h:6820/slurm/v0.0.41/", "", ""); err != nil || r.base != "http://h:6820" || r.version != "v0.0.41" {
		t.Errorf("%+v, %v", r, err)
	}
}

// An error must not reveal the token, and a redirect must not carry it to another host.
func TestRestFails(t *testing.T) {
	stolen := ""
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen += r.Header.Get("X-SLURM-USER-TOKEN") }))
	defer other.Close()
	f := func(name, token string, jobs http.HandlerFunc, want string) {
		t.Helper()
		h, _ := restd(jobs)
		srv := httptest.NewServer(h)
		defer srv.Close()
		r, err := NewREST(srv.URL, token, "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = ids(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	f("wrong token", token(t, "a.secret.b"), good, "401")
	f("no token in the file", token(t, "\n"), good, "no token in")
	f("a token with a line break", token(t, "a.secret\nX-Other: 1"), good, "no token in")
	f("no file", "/nonexistent", good, "no such file")
	f("garbage", token(t, jwt), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "not JSON")
	f("an error", token(t, jwt), func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"errors":[{"error":"Unable to contact slurm controller"}]}`))
	}, "Unable to contact")
	f("500", token(t, jwt), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "500")
	f("redirect", token(t, jwt), func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) }, "302")
	if stolen != "" {
		t.Errorf("the token went to %q", stolen)
	}
	for _, address := range []string{"", "x", "ftp://h", "http://", "http://u:p@h", "h:6820"} {
		if r, err := NewREST(address, "", ""); err == nil {
			t.Errorf("%q accepted as %+v", address, r)
		}
	}
}

func TestRestDenied(t *testing.T) {
	h, _ := restd(good)
	srv := httptest.NewServer(h)
	defer srv.Close()
	r, err := NewREST(srv.URL, token(t, "x"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ids(t.Context(), r); !errors.Is(err, ErrDenied) {
		t.Errorf("%v", err)
	}
}

// The newest API version is found in every captured description.
func TestCapturedOpenAPI(t *testing.T) {
	for name, want := range map[string]string{"slurm-real/22.05/rest-openapi.json": "38", "slurm-real/24.11/rest-openapi.json": "42"} {
		b, err := os.ReadFile(filepath.Join("../../../shared/fixtures", name))
		if err != nil {
			t.Skipf("no captures of other clusters: %v", err)
		}
		newest := ""
		for _, m := range paths.FindAllSubmatch(b, -1) {
			newest = max(newest, string(m[1]))
		}
		if newest != want {
			t.Errorf("%s: %q, want %q", name, newest, want)
		}
	}
}

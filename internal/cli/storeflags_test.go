//go:build linux

package cli_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/programtest"
)

// Catches a command that cannot query a store with a private CA, a token, headers and tenants, or
// that needs other flags for it than the rest.
func TestStoreFlags(t *testing.T) {
	t.Parallel()
	type asked struct{ Path, Authorization, Tenant, Team string }
	var mu sync.Mutex
	var last asked
	store := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		last = asked{r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("X-Scope-OrgID"), r.Header.Get("X-Team")}
		w.WriteHeader(http.StatusUnauthorized) // ends the command: only the request matters
	}))
	defer store.Close()
	ca := write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: store.Certificate().Raw})))
	tools := t.TempDir()
	head := "JobIDRaw|JobID|Cluster|User|Account|Partition|QOS|State|ExitCode|Submit|Eligible|Start|End|ElapsedRaw|Suspended|NNodes|AllocCPUS|AllocTRES|ReqTRES|NodeList|JobName|"
	now := time.Now().Unix()
	row := fmt.Sprintf("1|1|c|u|a|p|q|COMPLETED|0:0|%d|%d|%d|%d|8|00:00:00|1|8|gres/gpu=1|gres/gpu=1|n1|j|", now-9, now-9, now-9, now-1)
	sacct := "#!/bin/sh\nfor a in \"$@\"; do case $a in --delimiter=*) d=${a#--delimiter=};; esac; done\n" +
		"printf '%s\\n' '" + head + "' '" + row + "' | /bin/sed \"s,|,$d,g\"\n"
	programtest.Write(t, filepath.Join(tools, "sacct"), sacct)
	flags := []string{"--token-file", write(t, "token", "t0ken\n"), "--ca-file", ca, "--header", "X-Team=ml", "--tenant", "fleet"}
	for _, args := range [][]string{
		{"top", "--once", "--url", store.URL},
		{"report", "--url", store.URL},
		{"hub", "--listen", "localhost:0", "--backend", store.URL},
		{"slurm", "jobs", "--user", "all", "--slurm-tools", tools, "--prometheus", store.URL},
	} {
		r := run(t, append(args, flags...)...)
		mu.Lock()
		want := asked{last.Path, "Bearer t0ken", "fleet", "ml"}
		if diff := cmp.Diff(want, last); diff != "" || !strings.HasPrefix(last.Path, "/api/v1/query") {
			t.Errorf("%s asked (-want +got):\n%s\n%v", args[0], diff, r)
		}
		last = asked{}
		mu.Unlock()
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--tenant has no effect without --url", []string{"top", "--tenant", "a"}},
		{"--ca-file has no effect without --backend", []string{"hub", "--ca-file", ca}},
		{"--header has no effect without --prometheus", []string{"slurm", "jobs", "--header", "a=b"}},
		{"--tenant and --header both set X-Scope-OrgID", []string{"report", "--tenant", "a", "--header", "x-scope-orgid=b"}},
		{"--header must be like X-Scope-OrgID=fleet", []string{"top", "--url", store.URL, "--header", "sekrit"}},
	} {
		want := result{code: 1, stderr: "gpumeter: " + c.want + "\n"}
		if diff := cmp.Diff(want, run(t, c.args...), cmp.AllowUnexported(result{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
	}
}

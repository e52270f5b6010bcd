package slurmctl

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/optional"
)

const pages = "schedulers/slurm-openmetrics/slurm_26.05.5_real_"

// nativeOf serves captured pages like the controller.
func nativeOf(t *testing.T, prefix string) Snapshot {
	t.Helper()
	captured(t, prefix+"nodes.txt")
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(captured(t, prefix+strings.TrimPrefix(r.URL.Path, "/metrics/")+".txt"))
	}))
	defer srv.Close()
	c, err := New(Config{Cluster: "c", OpenMetrics: srv.URL + "/metrics", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Snapshot(t.Context())
	if !s.Up || s.Err != nil {
		t.Fatal(s.Err)
	}
	if diff := cmp.Diff([]string{"/metrics/nodes", "/metrics/partitions", "/metrics/scheduler"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	return s
}

// Defects: reading MiB as bytes, adding up the GPUs of overlapping partitions, and counting
// flags as states.
func TestNative(t *testing.T) {
	s := nativeOf(t, pages)
	if diff := cmp.Diff(map[GPUKey]int64{{"allocated", ""}: 11, {Unallocated, ""}: 5}, s.Native.All.GPUs); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int64{"allocated": 6, Unallocated: 26}, s.Native.All.CPUs); diff != "" {
		t.Errorf("CPUs (-want +got):\n%s", diff)
	}
	if n := s.Native.All.Nodes; n["mixed"] != 2 || n["idle"] != 0 || len(n) != 6 {
		t.Errorf("nodes %v", n)
	}
	jobs, gpus := map[string]int64{}, int64(0)
	for _, c := range s.Native.Jobs {
		jobs[c.State] += c.Jobs
		gpus += c.GPUs
	}
	if jobs["running"] != 2 || jobs["pending"] != 1 || jobs["completed"] != 1 || jobs["failed"] != 0 || gpus != 11 {
		t.Errorf("%v with %d GPUs", jobs, gpus)
	}
	if s.Diag.Since.Unix() != 1794707949 || s.Diag.CycleTime("schedule_cycle_sum", "", "") != optional.Of(0.001913) || s.Diag.Value("jobs_submitted") != optional.Of(4) {
		t.Errorf("%+v", s.Diag)
	}
}

// Without gres/gpu in the accounting, totals are 0 while jobs hold 11 GPUs. The result must
// not be minus eleven free GPUs, nor a cluster without GPU jobs.
func TestNativeWithoutTRES(t *testing.T) {
	s := nativeOf(t, pages+"no_slurmdbd_")
	if diff := cmp.Diff(map[GPUKey]int64{{"allocated", ""}: 11}, s.Native.All.GPUs); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	for _, c := range s.Native.Jobs {
		if c.Held {
			t.Errorf("%+v: the GPU count of jobs must be unknown", c)
		}
	}
}

// 16-bit counters that wrapped around.
func TestNativeWraps(t *testing.T) {
	parts, err := parsePage([]byte("slurm_partition_nodes{partition=\"big\"} 900\nslurm_partition_cpus{partition=\"big\"} 115200\nslurm_partition_nodes_cpus_efctv{partition=\"big\"} 49664\n"))
	if err != nil {
		t.Fatal(err)
	}
	n := newNative(page{}, parts)
	if len(n.Parts["big"].CPUs) != 0 || len(n.Loads) != 0 {
		t.Errorf("CPUs %v, loads %v, want 115200 CPUs", n.Parts["big"].CPUs, n.Loads)
	}
}

// The token must not follow the redirect of a backup controller or appear in an error.
func TestNativeFails(t *testing.T) {
	stolen := ""
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen += r.Header.Get("X-SLURM-USER-TOKEN") }))
	defer other.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("SLURM_JWT=a.secret.b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want string, h http.HandlerFunc) {
		t.Helper()
		srv := httptest.NewServer(h)
		defer srv.Close()
		c, err := New(Config{Cluster: "c", OpenMetrics: srv.URL, REST: REST{TokenFile: token, User: "u"}, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		s := c.Snapshot(t.Context())
		if s.Up || s.Native != nil || s.Err == nil || !strings.Contains(s.Err.Error(), want) || strings.Contains(s.Err.Error(), "secret") {
			t.Errorf("%v, want %s", s.Err, want)
		}
		if diff := cmp.Diff(map[string]int64{"openmetrics.nodes": 1}, s.Errors); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
	}
	f("303", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusSeeOther) })
	f("401", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	f("not a metrics page", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	f("line 1 has no metric name", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{} 1\n")) }) // would panic
	f("no metrics", func(http.ResponseWriter, *http.Request) {})
	if stolen != "" {
		t.Errorf("the token went to %q", stolen)
	}
	for _, address := range []string{"x", "ftp://h", "http://u:p@h"} {
		if _, err := New(Config{OpenMetrics: address}); err == nil {
			t.Errorf("address %s was accepted", address)
		}
	}
}

//go:build linux

package cli

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// Catches a doctor that does not say that the state folder cannot be used, that another program
// has the port, or whether tracing would work.
func TestDoctorOfAgent(t *testing.T) {
	serve := func(text string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	traced := func(err error, features ...probe.Feature) func(string) (string, []probe.Feature, error) {
		return func(string) (string, []probe.Feature, error) { return "session", features, err }
	}
	works := traced(nil)
	agentAt, otherAt := serve("<title>gpumeter</title>"), serve("<title>DCGM</title>")
	state := func(s device.CheckState, detail, fix string) device.Check {
		return device.Check{Subject: "state folder", State: s, Detail: detail, Fix: fix}
	}
	page := func(s device.CheckState, detail, fix string) device.Check {
		return device.Check{Subject: "prometheus page", State: s, Detail: detail, Fix: fix}
	}
	tracing := func(s device.CheckState, detail string) device.Check {
		return device.Check{Subject: "tracing (--trace)", State: s, Detail: detail}
	}
	free := page(device.CheckOK, "localhost:0 is free", "")
	const noFolder = "run the agent as a user who may write there, or set another --state-dir; without one counts start at 0 with each start"
	possible := tracing(device.CheckOK, "possible, with probes of type session")
	f := func(d agentDoctor, want ...device.Check) {
		t.Helper()
		got := d.diagnose(t.Context())
		for i := range got {
			if got[i].Subject == "tracing (--trace)" {
				got[i].Fix = "" // depends on the user
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	f(agentDoctor{state: dir, listen: "localhost:0", trace: works}, state(device.CheckOK, dir+" is writable", ""), free, possible)
	f(agentDoctor{state: dir + "/a/b", listen: agentAt, trace: works}, state(device.CheckOK, dir+"/a/b will be created", ""),
		page(device.CheckOK, "an agent serves http://"+agentAt+"/metrics", ""), possible)
	f(agentDoctor{listen: otherAt, trace: traced(errors.New("cannot trace: needs CAP_BPF"))},
		state(device.CheckLimited, "none: counts start at 0 with each start, and unsent telemetry is queued in memory", "set --state-dir"),
		page(device.CheckLimited, "another program uses "+otherAt+", as dcgm-exporter does by default: an agent cannot start there", "set another address with --listen"),
		tracing(device.CheckAbsent, "cannot trace: needs CAP_BPF"))
	f(agentDoctor{state: file, listen: "localhost:0", trace: traced(nil, probe.Feature{Name: "exit", Reason: "no tracepoint"}, probe.Feature{Name: "sched", OK: true})},
		state(device.CheckLimited, file+" is not a folder", noFolder), free,
		tracing(device.CheckLimited, "possible, with probes of type session; missing: exit: no tracepoint"))
}

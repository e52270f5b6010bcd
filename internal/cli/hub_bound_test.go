//go:build linux

package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/await"
)

// Catches an agent some of whose telemetry its own bound token may not send, another agent that
// writes with the token, tokens in a log or a file of the hub, and core files with secrets.
func TestBoundAgentAndSecretsOfHub(t *testing.T) {
	t.Parallel()
	const read, write1, admin = "pl4nted-read-0123456789", "pl4nted-write-0123456789", "pl4nted-admin-0123456789"
	dir, audit := t.TempDir(), filepath.Join(t.TempDir(), "audit.jsonl")
	tokens := write(t, "tokens", "read "+read+" name=grafana\nwrite "+write1+" node=n1 name=n1\nadmin "+admin+"\n")
	h := startHub(t, dir, "--tokens", tokens, "--audit-log", audit, "--log-level", "debug")
	start := func(host string) *agent {
		return startWith(t, []string{"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer " + write1, "K8S_NODE_NAME=" + host},
			"--listen", "localhost:0", "--simulate", "h100", "--interval", "100ms", "--no-cloud", "--host-name", host, "--otlp-endpoint", h.url)
	}
	foreign := func() string {
		_, text := h.get("/metrics", read)
		return regexp.MustCompile(`gpumeter_hub_refused_total\{reason="foreign"\} (\d+)`).FindStringSubmatch(text)[1]
	}
	own := start("n1")
	await.NoError(t, func() error {
		for _, series := range []string{"gpu_up", "gpumeter_build_info", "system_cpu_utilization_ratio", "otelcol_exporter_sent_metric_points_total", "target_info"} {
			if _, text := h.get("/api/v1/query?query=count("+series+`{host_name="n1",k8s_node_name="n1"})`, read); !strings.Contains(text, `"value"`) {
				return fmt.Errorf("no %s: %s", series, text)
			}
		}
		return nil
	})
	if n := foreign(); n != "0" {
		t.Errorf("the hub refused %s samples or events of the agent that the token is for", n)
	}
	other := start("n2")
	await.NoError(t, func() error {
		if foreign() == "0" || !strings.Contains(other.log.String(), "which is for node=n1") {
			return fmt.Errorf("a stranger's telemetry is not refused, or the stranger is not told")
		}
		return nil
	})
	if _, text := h.get(`/api/v1/query?query=count({host_name="n2"})`, read); strings.Contains(text, `"value"`) {
		t.Errorf("the token of n1 wrote for n2: %s", text)
	}
	if code, text := h.post("/api/findings/0123456789abcdef/acknowledge", nil, admin); code != http.StatusNotFound {
		t.Errorf("no such finding: %d %s", code, text)
	}

	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", own.cmd.Process.Pid))
	if err != nil || !regexp.MustCompile(`(?m)^Max core file size +0 `).Match(limits) {
		t.Errorf("the agent writes core files: %v\n%s", err, limits)
	}
	h.get("/api/v1/query?query="+read, "pl4nted-wrong-0123456789")
	all := hoard{"log": h.log.String()}
	all.folder(t, "data", dir)
	all.folder(t, "audit", filepath.Dir(audit))
	for where, text := range all {
		for _, secret := range []string{read, write1, admin, "pl4nted-wrong-0123456789"} {
			// A client put another token into its query: only its own secret is known to be one.
			if strings.Contains(strings.ReplaceAll(text, "query="+read, ""), secret) {
				t.Errorf("%s of the hub has the secret %s", where, secret)
			}
		}
	}
	if !strings.Contains(all["audit"], `"token":"grafana","role":"read"`) {
		t.Errorf("audit log: %s", all["audit"])
	}

	// A store that repeats what it was asked with.
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		http.Error(w, "no entry for "+r.Header.Get("Authorization")+" "+password, http.StatusForbidden)
	}))
	defer echo.Close()
	out := hoard{}
	out.run(t, nil, "hub", "--listen", "localhost:0", "--backend", strings.Replace(echo.URL, "://", "://me:"+secrets["password"]+"@", 1))
	out.check(t)
}

// Catches a hub or an agent that writes through a link that another user planted in its folder.
func TestPlantedLinks(t *testing.T) {
	t.Parallel()
	plant := func(path string) (target string) {
		t.Helper()
		target = filepath.Join(t.TempDir(), "target")
		if err := os.WriteFile(target, []byte("untouched"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(path, 12345, -1); err != nil {
			t.Skip("only root can make a link of another user:", err)
		}
		return target
	}
	same := func(target string) {
		t.Helper()
		text, err := os.ReadFile(target)
		st, other := os.Stat(target)
		if err != nil || other != nil || string(text) != "untouched" || st.Mode().Perm() != 0o644 {
			t.Errorf("the target of the link has changed: %q %v %v %v", text, st.Mode(), err, other)
		}
	}
	for _, name := range []string{"lock", "triage.json", "tsdb/wal/00000000", "events/00000001.jsonl"} {
		dir := t.TempDir()
		target := plant(filepath.Join(dir, name))
		r := run(t, "hub", "--data-dir", dir, "--listen", "localhost:0", "--listen-grpc", "")
		if r.code != 1 || !strings.Contains(r.stderr, "symbolic link of another user (UID 12345)") {
			t.Errorf("%s: %d %s", name, r.code, r.stderr)
		}
		same(target)
	}
	state := t.TempDir()
	targets := []string{plant(filepath.Join(state, "state.lock")), plant(filepath.Join(state, "queue", "exporter_otlp_http_metrics"))}
	a := startWith(t, nil, "--listen", "localhost:0", "--simulate", "h100", "--interval", "100ms", "--no-cloud", "--state-dir", state, "--otlp-endpoint", "http://localhost:1")
	a.waitLog(serving) // the agent measures, with its queue in memory
	if !strings.Contains(a.log.String(), "symbolic link of another user") {
		t.Error("the agent does not say why it has no queue on disk")
	}
	a.stop()
	for _, target := range targets {
		same(target)
	}
}

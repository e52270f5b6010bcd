//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var prometheusAddress = regexp.MustCompile(`Listening on.*address="?(127[^\s"]+)`)

// Catches a page that a real Prometheus rejects, and metrics that do not mean what their names promise.
func TestPrometheus(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		skip(t, "prometheus", err)
	}
	agent := start(t, gpumeter(t), "agent", "--simulate", "h200", "--interval", "1s", "--slow-interval", "1s",
		"--listen", "127.0.0.1:0", "--socket", "", "--host-name", "node-a")
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(`global: {scrape_interval: 1s}
scrape_configs:
  - job_name: gpumeter
    static_configs: [{targets: ["`+agent.find(t, pageAddress)+`"]}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	server := server{t, "http://" + start(t, prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:0").find(t, prometheusAddress)}

	server.wait(`up{job="gpumeter"} == 1`)
	// A counter needs two scrapes to have a rate. Idle GPUs draw 78 W, busy ones 700 W.
	server.wait(`sum(rate(gpu_energy_joules_total[10s])) > 8 * 70 < 8 * 720`)
	server.wait(`count(gpu_up) == 8`)
	server.wait(`count(gpu_partition_up) == 4`)
	server.wait(`count(gpu_partition_up * on (gpu_uuid) group_left () gpu_up) == 4`) // a partition has its GPU's UUID

	got, err := server.query(`gpu_power_draw_watts{gpu_index="0"}`)
	if err != nil || len(got) != 1 {
		t.Fatalf("power of GPU 0: %d series, err %v", len(got), err)
	}
	labels := got[0].Metric
	for _, unique := range []string{"gpu_uuid", "instance", "k8s_pod_uid"} {
		if labels[unique] == "" {
			t.Errorf("no label %s", unique)
		}
		delete(labels, unique)
	}
	want := map[string]string{
		"__name__": "gpu_power_draw_watts", "job": "gpumeter", "host_name": "node-a", "gpumeter_simulated": "true",
		"gpu_index": "0", "gpu_model": "NVIDIA H200", "gpu_vendor": "nvidia",
		"gpu_workload_kind": "job", "gpu_workload_name": "llama-finetune", "gpu_workload_team": "research", "k8s_job_name": "llama-finetune",
		"k8s_namespace_name": "research", "k8s_pod_name": "llama-finetune-0-x7k2p", "k8s_container_name": "trainer",
	}
	if diff := cmp.Diff(want, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if w, _ := strconv.ParseFloat(fmt.Sprint(got[0].Value[1]), 64); w < 70 || w > 720 {
		t.Errorf("GPU 0 draws %v W", got[0].Value[1])
	}
	server.checkTarget()

	// Without the agent the GPUs disappear instead of keeping their last values.
	if code := agent.stop(t); code != 0 {
		t.Errorf("the agent exited with %d", code)
	}
	server.wait(`absent(gpu_up) and on () up{job="gpumeter"} == 0`)
}

// server is the HTTP API of a Prometheus.
type server struct {
	t   *testing.T
	url string
}

type series struct {
	Metric map[string]string
	Value  [2]any // time, value as text
}

func (s server) query(expr string) ([]series, error) {
	body, err := get(s.t, s.url+"/api/v1/query?"+url.Values{"query": {expr}}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct{ Data struct{ Result []series } }
	err = json.Unmarshal([]byte(body), &answer)
	return answer.Data.Result, err
}

// wait waits until expr has a result.
func (s server) wait(expr string) {
	s.t.Helper()
	eventually(s.t, expr, func() error {
		got, err := s.query(expr)
		if err == nil && len(got) == 0 {
			now, _ := s.query(strings.TrimRight(strings.Split(expr, " == ")[0], " "))
			err = fmt.Errorf("not yet: %v", now)
		}
		return err
	})
}

// checkTarget fails the test if Prometheus reports a problem with the page.
func (s server) checkTarget() {
	s.t.Helper()
	body, err := get(s.t, s.url+"/api/v1/targets")
	if err != nil {
		s.t.Fatal(err)
	}
	var answer struct {
		Data struct {
			ActiveTargets []struct{ Health, LastError string }
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		s.t.Fatal(err)
	}
	targets := answer.Data.ActiveTargets
	if len(targets) != 1 || targets[0].Health != "up" || targets[0].LastError != "" {
		s.t.Errorf("targets are %+v", targets)
	}
}

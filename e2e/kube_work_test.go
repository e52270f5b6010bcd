//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// Catches first work that is missing from the histograms, that counts twice when the agent is killed or restarted, or whose time is
// another than from the creation and the start of the pod in the API to the work of its GPU. The kubelet and its device plugin are
// real, the GPUs are scripted.
func TestKubeFirstWork(t *testing.T) {
	t.Parallel()
	const gpus = 4
	plugin := &devicePlugin{resource: wholeGPU}
	script := fmt.Sprintf("gpus %d\ngpu * power 0 0\ngpu * util 0 0\ngpu * energy 1000000\n", gpus)
	for i := range gpus {
		plugin.ids = append(plugin.ids, gpuUUID(i))
		script += fmt.Sprintf("gpu %d uuid %s\n", i, gpuUUID(i))
	}
	host := nvmltest.New(t, script)
	c := newCluster(t, plugin)
	c.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+red+"}}")
	c.api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", clusterRole(t))
	c.bind(asAgent)
	binary, state := gpumeter(t), filepath.Join(t.TempDir(), "state")
	agent := func() queueAgent {
		p := start(t, binary, "agent", "--nvidia-library", host.Library, "--root", c.root, "--kubeconfig", c.api.kubeconfig(t.TempDir(), asAgent),
			"--interval", "1s", "--slow-interval", "1s", "--listen", "127.0.0.1:0", "--socket", "", "--state-dir", state, "--node-name", nodeName, "--host-name", "host-a")
		p.name = "gpumeter"
		return queueAgent{p, p.find(t, pageAddress)}
	}
	const total, warmup = "scheduler_job_first_work_duration_seconds_", "scheduler_job_phase_duration_seconds_"
	page := func(a queueAgent) map[string]float64 {
		text, err := get(t, "http://"+a.address+"/metrics")
		if err != nil {
			return nil // it has not begun to serve
		}
		return samples(t, text, "scheduler_job_", map[string]string{"scheduler_queue": "queue", "scheduler_job_phase": "phase", "scheduler_job_size": "size"})
	}
	counts := func(when string, a queueAgent, want float64) {
		t.Helper()
		eventually(t, when, func() error {
			return matches(page(a), map[string]float64{total + `count{queue="team-red"}`: want, warmup + `count{phase="warmup",size="1"}`: want})
		})
	}

	a := agent()
	eventually(t, "the agent knows the GPUs", func() error {
		text, err := get(t, "http://"+a.address+"/metrics")
		if err == nil && strings.Count(text, "\ngpu_up{") != gpus {
			err = fmt.Errorf("%d GPUs", strings.Count(text, "\ngpu_up{"))
		}
		return err
	})
	names := []string{"now", "away", "later", "never"}
	on := map[string]int{} // index of the GPU
	for _, name := range names {
		c.runPod(red, name, wholeGPU, 1)
		found := c.running(red, name)
		for i := range gpus {
			if found.devices[0] == gpuUUID(i) {
				on[name] = i
			}
		}
	}
	busy, began := script, map[string]time.Time{}
	work := func(name string) {
		busy += fmt.Sprintf("gpu %d util 80 0\n", on[name])
		began[name] = time.Now()
		host.Script(t, busy)
	}
	work("now")
	counts("one works", a, 1)
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-a.done
	work("away")
	a = agent()
	counts("one began while the agent was away", a, 2)
	if code := a.stop(t); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
	a = agent()
	work("later")
	counts("one began after a restart", a, 3)

	// Each was seen after it began, and before now.
	now := time.Now()
	var least, most, fromCreation float64
	for name, at := range began {
		var p struct {
			Metadata struct{ CreationTimestamp time.Time }
			Status   struct {
				ContainerStatuses []struct {
					State struct {
						Running struct{ StartedAt time.Time }
					}
				}
			}
		}
		if err := c.api.get("/api/v1/namespaces/"+red+"/pods/"+name, &p); err != nil {
			t.Fatal(err)
		}
		started := p.Status.ContainerStatuses[0].State.Running.StartedAt
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running.StartedAt.Before(started) {
				started = s.State.Running.StartedAt
			}
		}
		least += at.Sub(started).Seconds()
		most += now.Sub(started).Seconds()
		fromCreation += started.Sub(p.Metadata.CreationTimestamp).Seconds()
	}
	got := page(a)
	if sum := got[warmup+`sum{phase="warmup",size="1"}`]; sum < least || sum > most {
		t.Errorf("from start to first work %v s, want %v to %v", sum, least, most)
	}
	if sum := got[total+`sum{queue="team-red"}`] - got[warmup+`sum{phase="warmup",size="1"}`]; sum < fromCreation-1e-3 || sum > fromCreation+1e-3 {
		t.Errorf("from creation to start %v s, want %v", sum, fromCreation)
	}
}

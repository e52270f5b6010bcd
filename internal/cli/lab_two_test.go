//go:build linux

package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
)

const (
	standsBy  = "Standing by: this agent sends nothing, and takes over when the other one ends. --no-standby reads devices beside another agent"
	takesOver = "No other agent reads the devices of this machine any more: this one takes over"
)

// Two agents on one machine, as a systemd unit and a DaemonSet or in a surge rollout, sent two values of
// each counter in turn: a minute was billed as 4 hours. The second agent now waits, says so, is ready for the
// rollout to go on, and continues when the first one ends.
func TestLabSecondAgent(t *testing.T) {
	t.Parallel()
	f := func(name string, prepare func(l *lab), reason func(l *lab) string, want map[string]float64) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 1)
			l.pod("a", 0)
			l.run(101, "a", 0, 90)
			prepare(l)
			l.start()
			first := l.agent
			l.use(0, 400)
			l.settle()

			why := reason(l)
			second := l.launch()
			if got := second.waitLog(standsBy)["reason"]; got != why {
				t.Errorf("the agent stands by because %v, want %s", got, why)
			}
			page := "http://" + second.waitLog("serving standby")["address"].(string)
			got := map[string]string{"readyz": fetch(t, page+"/readyz"), "metrics": fetch(t, page+"/metrics")}
			if diff := cmp.Diff(map[string]string{
				"readyz":  "200 standby: another agent reads the devices of this machine\n",
				"metrics": "200 # HELP gpumeter_standby 1 while another agent reads the devices of this machine and this one waits.\n# TYPE gpumeter_standby gauge\ngpumeter_standby 1\n",
			}, got); diff != "" {
				t.Errorf("the page (-want +got):\n%s", diff)
			}
			l.use(0, 100)
			l.settle()
			if strings.Contains(second.log.String(), takesOver) {
				t.Fatal("the second agent did not wait")
			}
			first.stop()
			until := len(l.ticks())
			second.waitLog(takesOver)
			l.ready()
			l.use(0, 50)
			l.settle()
			if diff := cmp.Diff(want, l.by("gpu.workload.energy", 0), near); diff != "" {
				t.Errorf("joules (-want +got):\n%s", diff)
			}
			second.stop()
			// Nobody looked while the agents changed, and how long that takes is up to the machine.
			ticks := l.ticks()
			gap := ticks[until].time.Sub(ticks[until-1].time).Seconds()
			if held, billed := l.held("a"), l.billed("workload")["ns/a"]; billed > held+1 || billed < held-gap-1 {
				t.Errorf("%g s billed, %g s held, %g s of them between the agents", billed, held, gap)
			}
		})
	}
	f("own folders", func(l *lab) { l.machine() }, func(l *lab) string {
		l.state = t.TempDir()
		return "another agent reads the devices of this machine: " + filepath.Join(l.root, "sys/class/dmi/id/product_uuid") + " is locked"
	}, map[string]float64{"a": 50})
	f("one folder", func(*lab) {}, func(l *lab) string {
		return "another agent reads the devices of this machine: it uses " + l.state
	}, map[string]float64{"a": 550})
}

// An agent that is killed holds nothing back, and a simulated agent and one-shot commands neither wait nor
// make an agent wait.
func TestLabSecondAgentLimits(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.machine()
	l.start()
	for _, args := range [][]string{{"agent", "--once"}, {"devices"}} {
		text := output(t, append(args, "--nvidia-library", l.driver.Library, "--root", l.root, "--host-name", "host")...)
		if uuid := fmt.Sprintf(fakeUUID, 0); !strings.Contains(text, uuid) {
			t.Errorf("gpumeter %s does not read %s beside an agent:\n%s", strings.Join(args, " "), uuid, text)
		}
	}
	second := l.launch()
	second.waitLog(standsBy)
	second.stop() // while it waits
	second = l.launch()
	second.waitLog(standsBy)
	if err := l.agent.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second.waitLog(takesOver)
	beside := startConfig(t, l.config())
	beside.waitLog("serving metrics")
	if strings.Contains(beside.log.String(), standsBy) {
		t.Error("--no-standby stands by")
	}
	// The hub can tell: the time at which the agent of this host began steps back and forth.
	await.NoError(t, func() error {
		if n := l.ask("resets(gpumeter_agent_start_time_seconds[10m])", "host_name")["host"]; n < 3 {
			return fmt.Errorf("the start of the agent stepped back %g times", n)
		}
		return nil
	})
}

// machine gives the machine of the lab firmware that names it.
func (l *lab) machine() {
	l.t.Helper()
	dir := filepath.Join(l.root, "sys/class/dmi/id")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "product_uuid"), []byte("4c4c4544-0036-4610-8052-b5c04f4e3132\n"), 0o400); err != nil {
		l.t.Fatal(err)
	}
}

// fetch returns the status and the body at a URL.
func fetch(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

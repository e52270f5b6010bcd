//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches a name, label, unit or value that differs between the page and OTLP: moving agents from one to the
// other, or mixing both, would silently break dashboards and alerts.
func TestBothPaths(t *testing.T) {
	t.Parallel()
	f := func(name string, open func(*testing.T) *backend) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testBothPaths(t, open(t))
		})
	}
	f("Prometheus", prometheus3)
	f("VictoriaMetrics", victoriametrics)
}

const pulled, pushed = `job="gpus"`, `job!="gpus"`

func testBothPaths(t *testing.T, b *backend) {
	agent := b.agent(gpumeter(t), "--state-dir", t.TempDir())
	b.up(agent.find(t, pageAddress))
	var when time.Time
	eventually(t, "a scrape and a push of one tick", func() (err error) {
		when, err = b.same()
		return err
	})

	// Every series, with every label, bit by bit.
	pull := b.at(`{__name__!="", `+pulled+`}`, when)
	push := b.at(`{__name__!="", `+pushed+`}`, when)
	// Created by the database, or about the page itself.
	own := regexp.MustCompile(`__name__:(up|scrape_\w+|target_info|gpumeter_page_dropped_total)\b`)
	maps.DeleteFunc(pull, func(key, _ string) bool { return own.MatchString(key) })
	maps.DeleteFunc(push, func(key, _ string) bool { return own.MatchString(key) })
	if diff := cmp.Diff(pull, push); diff != "" {
		t.Errorf("at %s (-pulled +pushed):\n%s", seconds(when), diff)
	}
	if len(pull) < 8*50 {
		t.Errorf("only %d series were compared", len(pull))
	}

	// Typical queries: one answer per GPU, from one series.
	const gpus = 8
	for _, name := range []string{
		"gpu_up", "gpu_energy_joules_total", "gpu_memory_used_bytes", "gpu_temperature_celsius", "gpu_power_draw_watts", "gpu_utilization_ratio", "gpu_clock_frequency_hertz",
	} {
		query := "sum by (k8s_cluster_name, k8s_node_name, gpu_uuid, gpu_model) (" + name + "{%s})"
		if n := len(b.at(fmt.Sprintf(name+"{%s}", pulled), when)); n != gpus {
			t.Errorf("%s has %d series, want one for each of %d GPUs", name, n, gpus)
		}
		pull, push := b.at(fmt.Sprintf(query, pulled), when), b.at(fmt.Sprintf(query, pushed), when)
		if diff := cmp.Diff(pull, push); diff != "" {
			t.Errorf("%s (-pulled +pushed):\n%s", query, diff)
		}
		if len(pull) != gpus {
			t.Errorf("%s has %d groups, want one for each of %d GPUs", query, len(pull), gpus)
		}
		for key := range pull {
			if !strings.Contains(key, "k8s_cluster_name:cluster-a k8s_node_name:node-a") || !strings.Contains(key, "gpu_model:NVIDIA H200 gpu_uuid:GPU-") {
				t.Errorf("%s has a group %s", query, key)
			}
		}
	}
}

// same returns the time of a scrape that saw the tick pushed last before it. A scrape soon after a tick may
// see the previous one: the page follows some milliseconds later.
func (b *backend) same() (time.Time, error) {
	scrapes, err := b.samples(strings.Replace(energy, "}", ", "+pulled+"}", 1))
	if err != nil {
		return time.Time{}, err
	}
	ticks, err := b.samples(strings.Replace(energy, "}", ", "+pushed+"}", 1))
	if err != nil {
		return time.Time{}, err
	}
	// The first ticks may lack values that need two readings. VictoriaMetrics may not show all of the
	// last ones yet.
	for i := 3; i < len(ticks)-3; i++ {
		for _, s := range slices.Backward(scrapes) { // the latest, when the whole tick has arrived
			if s.at.After(ticks[i].at) && s.at.Before(ticks[i+1].at) && s.value == ticks[i].value && b.sameReading(s.at) {
				return s.at, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("none yet: %d ticks, the last %v; %d scrapes, the last %v",
		len(ticks), ticks[len(ticks)-1], len(scrapes), scrapes[len(scrapes)-1])
}

// sameReading reports whether the page had the reading of the engine that was pushed for a tick: its page is read
// after the tick, and how long that took identifies it.
func (b *backend) sameReading(when time.Time) bool {
	const took = "inference_scrape_duration_seconds{%s}"
	pull, push := b.at(fmt.Sprintf(took, pulled), when), b.at(fmt.Sprintf(took, pushed), when)
	return len(pull) > 0 && maps.Equal(pull, push)
}

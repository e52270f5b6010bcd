//go:build linux

package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// simulatedTick is a tick of a simulated machine whose devices have one holder each.
func simulatedTick(t *testing.T, model string) node.Tick {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cfg := sim.Config{Model: model, Seed: 1, Start: start, Now: func() time.Time { return start.Add(4*time.Hour + 4*time.Minute) }}
	r, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tenants, err := sim.Tenants(cfg)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := r.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tick := node.Tick{Simulated: true}
	at := map[string]int{}
	for _, d := range devices {
		s, err := d.Read(t.Context(), device.Static)
		if err != nil {
			t.Fatal(err)
		}
		at[s.ID.UUID] = len(tick.Readings)
		tick.Readings = append(tick.Readings, node.Reading{Sample: s, Up: true})
	}
	for _, tenant := range tenants {
		h := node.Holder{Workload: workload.Workload{
			ID: tenant.Pod.UID, Kind: tenant.Pod.Kind, Name: tenant.Pod.Owner, Attributes: map[string]string{"k8s.namespace.name": tenant.Pod.Namespace},
		}}
		id := tick.Readings[at[tenant.Device]].ID
		if id.Parent != "" {
			h.Partition = id.UUID
		}
		parent := &tick.Readings[at[id.Physical()]]
		parent.Holders = append(parent.Holders, h)
	}
	return tick
}

// Whatever is simulated, a newcomer's terminal of 100 columns shows it without a wrapped
// line.
func TestDemoWidth(t *testing.T) {
	for _, model := range sim.Models() {
		var b strings.Builder
		if err := printShortTable(&b, simulatedTick(t, model)); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 {
				t.Errorf("%s: a line of %d columns: %s", model, n, line)
			}
		}
	}
}

// A newcomer sees a value, or that there is none; never a 0 that nobody measured.
func TestDemoTable(t *testing.T) {
	tick := simulatedTick(t, sim.Mixed)
	tick.Readings[5] = node.Reading{Sample: device.Sample{ID: tick.Readings[5].ID}, Problem: "lost"}
	var b strings.Builder
	if err := printShortTable(&b, tick); err != nil {
		t.Fatal(err)
	}
	const want = `SIMULATED devices: none of these numbers are real.
GPU  MODEL                 UTIL  GIB USED  WATTS    TEMP  WORKLOAD                   STATE
0    NVIDIA H100           96%   70/80     689/700  63 C  research/llama-finetune    power cap
1    NVIDIA H100           96%   70/80     686/700  62 C  research/llama-finetune    power cap
0    AMD Instinct MI300X   12%   146/192   187/750  43 C  inference/chat-api         ok
1    AMD Instinct MI300X   0%    79/192    140/750  41 C  notebooks/alice            ok
0    Intel Gaudi3 HL-325L  96%   113/128   844/850  67 C  research/mistral-finetune  power cap
1    Intel Gaudi3 HL-325L  -     -         -        -     -                          DOWN
0    Tenstorrent p150a     -     -         30/150   37 C  inference/chat-api         ok
1    Tenstorrent p150a     -     -         28/150   35 C  notebooks/alice            ok
0    TPU v6e               96%   28/31     -        -     research/gemma-finetune    ok
1    TPU v6e               97%   28/31     -        -     research/gemma-finetune    ok
0    Intel Max 1550        95%   67/128    567/600  79 C  chemistry/md-run           ok
0    Trainium2             37%   73/96     39%      -     inference/chat-api         ok
       neuroncore          50%   9         -        -     -                          ok
       neuroncore          48%   9         -        -     -                          ok
       neuroncore          25%   9         -        -     -                          ok
       neuroncore          53%   9         -        -     -                          ok
       neuroncore          2%    9         -        -     -                          ok
       neuroncore          40%   9         -        -     -                          ok
       neuroncore          35%   9         -        -     -                          ok
       neuroncore          36%   9         -        -     -                          ok
- is what the driver of a device does not tell, or tells of its parts.
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

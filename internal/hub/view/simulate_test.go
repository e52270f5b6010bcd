package view

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// simulated is a fleet whose history ends at a given moment.
type simulated struct {
	nodes, perNode int
	history, step  time.Duration
}

// pools are the kinds of nodes, assigned round-robin.
var pools = []struct {
	cluster, node, model, vendor string
	memory, watts                float64
}{
	{"prod-eu", "h100", "NVIDIA H100 80GB HBM3", "nvidia", 80 << 30, 700},
	{"prod-eu", "h200", "NVIDIA H200", "nvidia", 141 << 30, 700},
	{"research", "mi300x", "AMD Instinct MI300X", "amd", 192 << 30, 750},
	{"lab", "gaudi3", "Intel Gaudi3 HL-325L", "gaudi", 128 << 30, 900},
}

// tenants are the holders of a node's devices, assigned round-robin; an empty kind is nobody.
var tenants = []struct {
	kind, name, team, namespace, job, user string
	busy                                   float64
	sick                                   float64
}{
	{"job", "llama-pretrain", "foundation", "training", "", "", 0.94, 1},
	{"deployment", "chat-api", "product", "inference", "", "", 0.55, 1},
	{"slurm_job", "md-run", "chemistry", "", "48213", "ines", 0.81, 1},
	{"statefulset", "notebook-alice", "research", "notebooks", "", "", 0, 1}, // holds a GPU without using it
	{"job", "clip-finetune", "vision", "training", "", "", 0.72, 0.5},
	{"", "", "", "", "", "", 0, 1},
	{"deployment", "embeddings", "product", "inference", "", "", 0.23, 1},
	{"raycluster", "rl-sweep", "research", "ray", "", "", 0.38, 1},
	{"job", "eval-nightly", "vision", "training", "", "", 0.66, 0}, // on a sick GPU
}

// fill writes the history of the fleet up to now.
func (f simulated) fill(tb testing.TB, s *hub.Store, now time.Time) {
	tb.Helper()
	ticks := int(f.history / f.step)
	active := map[int]float64{}
	held := map[int]float64{}
	joules := map[int]float64{}
	for tick := range ticks + 1 {
		at := now.Add(-f.history + time.Duration(tick)*f.step)
		app := s.Appender(tb.Context())
		for n := range f.nodes {
			for g := range f.perNode {
				i := n*f.perNode + g
				f.device(app, n, g, i, at, tick, active, held, joules)
			}
		}
		if r, err := app.Commit(); err != nil || r.Refused > 0 {
			tb.Fatalf("cannot write the fleet: %+v, %v", r, err)
		}
	}
}

func (f simulated) device(app *hub.Appender, n, g, i int, at time.Time, tick int, active, held, joules map[int]float64) {
	pool := pools[n%len(pools)]
	t := tenants[(i*7/f.perNode+n)%len(tenants)]
	if t.sick < 1 && g != 3 {
		t.sick = 1
	}
	base := []string{
		"gpu_index", fmt.Sprint(g), "gpu_model", pool.model, "gpu_uuid", fmt.Sprintf("GPU-%08x-%04x", 0x5eed0000+i*2654435, i), "gpu_vendor", pool.vendor,
		"gpumeter_simulated", "true", "host_name", fmt.Sprintf("%s-%d", pool.node, n), "k8s_cluster_name", pool.cluster, "rack", fmt.Sprintf("r%d", n/4+1),
	}
	owner := base
	if t.kind != "" {
		owner = slices.Concat(base, []string{
			"gpu_workload_kind", t.kind, "gpu_workload_name", t.name, "gpu_workload_team", t.team,
			"k8s_namespace_name", t.namespace, "slurm_job_id", t.job, "slurm_user", t.user,
		})
	}
	noise := 0.06 * math.Sin(float64(tick)/7+float64(i))
	day := 0.12 * math.Sin(float64(tick)*f.step.Hours()/24*2*math.Pi)
	util := 0.0
	if t.busy > 0 {
		util = min(1, max(0.06, t.busy+noise+day*t.busy))
	}
	watts := 90 + (pool.watts-90)*util*0.9
	set := func(name string, l []string, v float64, extra ...string) {
		app.Gauge(labels.FromStrings(slices.Concat([]string{"__name__", name}, l, extra)...).WithoutEmpty(), at.UnixMilli(), v)
	}
	set("gpu_up", owner, 1)
	set("gpu_info", base, 1, "gpu_architecture", "hopper", "gpu_driver_version", "580.95.05", "gpu_pci_address", fmt.Sprintf("0000:%02x:00.0", 0x19+g*8))
	set("gpu_utilization_ratio", owner, util)
	set("gpu_sm_active_ratio", owner, util*0.9)
	set("gpu_memory_used_bytes", owner, pool.memory*(0.02+0.85*min(1, t.busy*1.2)))
	set("gpu_memory_total_bytes", owner, pool.memory)
	set("gpu_power_draw_watts", owner, watts)
	set("gpu_power_limit_watts", owner, pool.watts)
	set("gpu_temperature_celsius", owner, 34+42*util)
	set("gpu_sensor_temperature_celsius", owner, 40+46*util, "gpu_temperature_sensor", "memory")
	set("gpu_health_ratio", owner, t.sick)
	who := owner
	if t.kind == "" {
		who = slices.Concat(base, []string{"gpu_workload_kind", "unallocated"})
	} else {
		set("gpu_allocation_ratio", owner, 1)
		set("gpu_workload_utilization_ratio", owner, util)
		set("gpu_workload_memory_used_bytes", owner, pool.memory*(0.02+0.85*min(1, t.busy*1.2)))
		set("gpu_workload_power_draw_watts", owner, watts)
	}
	step := f.step.Seconds()
	held[i] += step
	if util > 0 {
		active[i] += step
	}
	joules[i] += watts * step
	start := at.Add(-time.Duration(tick+1) * f.step).UnixMilli()
	sum := func(name string, v float64) {
		app.Counter(labels.FromStrings(slices.Concat([]string{"__name__", name}, who)...).WithoutEmpty(), start, at.UnixMilli(), v)
	}
	if t.kind == "" {
		sum("gpu_unallocated_time_seconds_total", held[i])
		sum("gpu_workload_energy_joules_total", joules[i])
		return
	}
	sum("gpu_workload_allocated_time_seconds_total", held[i])
	sum("gpu_workload_active_time_seconds_total", active[i])
	sum("gpu_workload_idle_time_seconds_total", held[i]-active[i])
	sum("gpu_workload_energy_joules_total", joules[i])
}

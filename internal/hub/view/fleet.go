package view

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/query"
)

// gpu is one device at one moment. What nobody said is NaN.
type gpu struct {
	uuid, model, vendor, node, cluster, rack string
	shortModel                               string

	index     float64
	up        bool
	simulated bool

	util, memory, memoryTotal, power, temp, health float64

	held   float64 // part of it that is given to workloads
	owners []int   // of the fleet's owners
	idle   float64 // minutes since a holder used it, 0 if it is used
	rate   float64 // price of an hour
}

// fleet is every device at one moment.
type fleet struct {
	at     time.Time
	gpus   []gpu
	index  map[string]int // by UUID
	owners []Owner
}

// identityLabels are what is known of a device on each of its series.
const identityLabels = "gpu_uuid, gpu_index, gpu_model, gpu_vendor, host_name, k8s_node_name, k8s_cluster_name, gpumeter_simulated, " +
	"cloud_provider, cloud_region, host_type"

// The values of tiles, one a device. Partitions have series of their own, which say less.
const (
	exprUtil        = `max by (gpu_uuid) (gpu_utilization_ratio{gpu_task="compute",gpu_partition_id=""})`
	exprMemory      = `max by (gpu_uuid) (gpu_memory_used_bytes{gpu_partition_id=""})`
	exprMemoryTotal = `max by (gpu_uuid) (gpu_memory_total_bytes{gpu_partition_id=""})`                         // asked for rarely
	exprPower       = `avg by (gpu_uuid) (gpu_power_draw_watts{gpu_power_scope!="memory",gpu_partition_id=""})` // of instant and average, where there are both
	exprTemp        = `max by (gpu_uuid) (gpu_temperature_celsius{gpu_temperature_sensor!~"memory|board|v.*",gpu_partition_id=""})`
	exprHealth      = `min by (gpu_uuid) (gpu_health_ratio{gpu_partition_id=""})`
)

// What is added up.
var (
	exprShares = `sum by (gpu_uuid) ` + once("gpu_workload_utilization_ratio")
	exprOwners = `sum by (gpu_uuid, ` + ownerLabels + `) ` + once("gpu_allocation_ratio")
)

// once is a selector without series that are there twice: a store may scrape an agent that
// also sends to it. What is added up must not count both.
func once(selector string) string { return "(max without (" + transport + ") (" + selector + "))" }

var transport = strings.Join(cost.Transport(), ", ")

func (v *viewer) exprIdentity() string {
	return `max by (` + identityLabels + `, ` + v.opts.Rack + `) (gpu_up{gpu_partition_id=""})`
}

// fleetAt returns the fleet at a moment. Moments of the same few seconds are one.
func (v *viewer) fleetAt(ctx context.Context, at time.Time) (*fleet, error) {
	at = at.Truncate(freshness)
	return v.fleets.get(ctx, at.Unix(), v.opts.Now(), freshness, func(ctx context.Context) (*fleet, error) { return v.readFleet(ctx, at) })
}

func (v *viewer) readFleet(ctx context.Context, at time.Time) (*fleet, error) {
	var totals []query.Sample
	var failed error
	var meanwhile sync.WaitGroup
	meanwhile.Go(func() {
		totals, failed = v.totals.get(ctx, at.Truncate(10*time.Minute).Unix(), v.opts.Now(), time.Hour, func(ctx context.Context) ([]query.Sample, error) {
			return v.store.Instant(ctx, exprMemoryTotal, at)
		})
	})
	answers, err := v.instants(ctx, at, v.exprIdentity(), exprOwners, exprUtil, exprMemory, exprPower, exprTemp, exprHealth)
	meanwhile.Wait()
	if err = cmp.Or(err, failed); err != nil {
		return nil, err
	}
	f := v.identities(answers[0], at)
	f.own(answers[1])
	f.sort() // after own, which knows clusters
	values := []func(*gpu) *float64{
		func(g *gpu) *float64 { return &g.util },
		func(g *gpu) *float64 { return &g.memory },
		func(g *gpu) *float64 { return &g.power },
		func(g *gpu) *float64 { return &g.temp },
		func(g *gpu) *float64 { return &g.health },
	}
	for i, field := range values {
		f.fill(answers[2+i], field)
	}
	total := func(g *gpu) *float64 { return &g.memoryTotal }
	f.fill(totals, total)
	// One that came since says its own.
	if slices.ContainsFunc(f.gpus, func(g gpu) bool { return math.IsNaN(g.memoryTotal) && !math.IsNaN(g.memory) }) {
		fresh, err := v.store.Instant(ctx, exprMemoryTotal, at)
		if err != nil {
			return nil, err
		}
		f.fill(fresh, total)
	}
	// A device that is cut into partitions may have no utilization of its own.
	if slices.ContainsFunc(f.gpus, func(g gpu) bool { return g.held > 0 && math.IsNaN(g.util) }) {
		shares, err := v.store.Instant(ctx, exprShares, at)
		if err != nil {
			return nil, err
		}
		f.fill(shares, func(g *gpu) *float64 {
			if !math.IsNaN(g.util) {
				return new(float64)
			}
			return &g.util
		})
	}
	if err := v.idleness(ctx, f); err != nil {
		return nil, err
	}
	return f, nil
}

// instants asks for several things at once, two at a time.
func (v *viewer) instants(ctx context.Context, at time.Time, exprs ...string) ([][]query.Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers := make([][]query.Sample, len(exprs))
	turns := make(chan struct{}, 2)
	done := make(chan struct{})
	for i, expr := range exprs {
		go func() {
			defer func() { done <- struct{}{} }()
			turns <- struct{}{}
			defer func() { <-turns }()
			if ctx.Err() != nil {
				return
			}
			var err error
			if answers[i], err = v.store.Instant(ctx, expr, at); err != nil {
				cancel(err)
			}
		}()
	}
	for range exprs {
		<-done
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return answers, nil
}

// identities returns the devices of the series of gpu_up.
func (v *viewer) identities(samples []query.Sample, at time.Time) *fleet {
	f := &fleet{at: at, gpus: make([]gpu, 0, len(samples)), index: make(map[string]int, len(samples))}
	// Of one that came by two ways, of which one knows more, that one is asked.
	slices.SortStableFunc(samples, func(a, b query.Sample) int { return cmp.Compare(len(b.Labels), len(a.Labels)) })
	for _, s := range samples {
		l := s.Labels
		g := gpu{
			uuid: l["gpu_uuid"], model: l["gpu_model"], shortModel: v.opts.shortModel(l["gpu_model"]), vendor: l["gpu_vendor"], node: nodeOf(l),
			cluster: l["k8s_cluster_name"], rack: l[v.opts.Rack], up: s.Value > 0, simulated: l["gpumeter_simulated"] == "true",
			index: absent, util: absent, memory: absent, memoryTotal: absent, power: absent, temp: absent, health: absent,
			idle: absent, rate: absent,
		}
		if n, err := strconv.Atoi(l["gpu_index"]); err == nil {
			g.index = float64(n)
		}
		if v.accounts.Rate != nil {
			if rate, ok := v.accounts.Rate(l, at); ok {
				g.rate = rate
			}
		}
		if i, ok := f.index[g.uuid]; ok { // it moved to another node within minutes: the later one answers
			if g.up && !f.gpus[i].up {
				f.gpus[i] = g
			}
			continue
		}
		f.index[g.uuid] = len(f.gpus)
		f.gpus = append(f.gpus, g)
	}
	return f
}

// sort puts devices into the order in which they are shown.
func (f *fleet) sort() {
	order := make([]*gpu, len(f.gpus)) // which are smaller to move
	for i := range f.gpus {
		order[i] = &f.gpus[i]
	}
	slices.SortFunc(order, func(a, b *gpu) int {
		if a.node != b.node || a.cluster != b.cluster || a.rack != b.rack { // most do not get further
			if c := cmp.Or(natural(a.cluster, b.cluster), natural(a.rack, b.rack), natural(a.node, b.node)); c != 0 {
				return c
			}
		}
		return cmp.Or(cmp.Compare(a.vendor, b.vendor), cmp.Compare(a.model, b.model), cmp.Compare(a.index, b.index), cmp.Compare(a.uuid, b.uuid))
	})
	sorted := make([]gpu, len(order))
	for i, g := range order {
		sorted[i] = *g
		f.index[g.uuid] = i
	}
	f.gpus = sorted
}

func nodeOf(l query.Labels) string { return cmp.Or(l["k8s_node_name"], l["host_name"]) }

// natural compares names so that node-9 is before node-10.
func natural(a, b string) int {
	if a == b {
		return 0
	}
	for a != "" && b != "" {
		if digit(a[0]) && digit(b[0]) {
			m, n := digits(a), digits(b)
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			a, b = a[len(m):], b[len(n):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func digits(s string) string {
	n := 0
	for n < len(s) && digit(s[n]) {
		n++
	}
	return s[:n]
}

// own says who holds the devices.
func (f *fleet) own(samples []query.Sample) {
	slices.SortFunc(samples, func(a, b query.Sample) int { return cmp.Compare(b.Value, a.Value) }) // who has most is named first
	known := map[string]int{}
	clusters := map[string]string{} // of nodes that do not say theirs
	for _, s := range samples {
		i, ok := f.index[s.Labels["gpu_uuid"]]
		if !ok || s.Value <= 0 {
			continue
		}
		o, ok := ownerOf(s.Labels)
		if !ok {
			continue
		}
		n, ok := known[o.ID]
		if !ok {
			n = len(f.owners)
			known[o.ID] = n
			f.owners = append(f.owners, o)
		}
		g := &f.gpus[i]
		g.held += s.Value
		if !slices.Contains(g.owners, n) {
			g.owners = append(g.owners, n)
		}
		if g.cluster == "" && o.Cluster != "" {
			clusters[g.node] = o.Cluster
		}
	}
	for i := range f.gpus {
		g := &f.gpus[i]
		g.held = math.Round(g.held*1e6) / 1e6 // eight eighths
		if g.cluster == "" {
			g.cluster = clusters[g.node]
		}
	}
	f.sortOwners()
}

// sortOwners makes the order that of their IDs: answers to the same question are the same.
func (f *fleet) sortOwners() {
	order := make([]int, len(f.owners))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(f.owners[a].ID, f.owners[b].ID) })
	sorted, place := make([]Owner, len(order)), make([]int, len(order))
	for to, from := range order {
		sorted[to], place[from] = f.owners[from], to
	}
	f.owners = sorted
	for i := range f.gpus {
		for j, n := range f.gpus[i].owners {
			f.gpus[i].owners[j] = place[n]
		}
	}
}

// fill puts one value of each device into the field of it.
func (f *fleet) fill(samples []query.Sample, field func(*gpu) *float64) {
	for _, s := range samples {
		if i, ok := f.index[s.Labels["gpu_uuid"]]; ok {
			*field(&f.gpus[i]) = s.Value
		}
	}
}

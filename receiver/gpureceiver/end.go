package gpureceiver

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// ended reports whether something of the previous tick is gone: a device or its answer, a workload, an
// owner, or a runtime. Its series need a final point, or a database shows them for minutes more.
func ended(before, now node.Tick) bool {
	there := map[string]bool{}
	for _, key := range identities(now) {
		there[key] = true
	}
	return slices.ContainsFunc(identities(before), func(key string) bool { return !there[key] })
}

// identities returns a key for each label set of the series of a tick.
func identities(t node.Tick) []string {
	var list []string
	for _, s := range t.Attribution {
		list = append(list, s.Source+"|"+string(s.Reason))
	}
	for i := range t.Readings {
		r := &t.Readings[i]
		list = append(list, r.ID.UUID+strconv.FormatBool(r.Up)+describe(r.Owner))
		list = append(list, runtimeIdentities(r)...)
		for j := range r.Holders {
			h := &r.Holders[j]
			list = append(list, strings.Join([]string{r.ID.UUID, h.Partition, string(h.Basis), strconv.FormatBool(h.Ended), describe(&h.Workload)}, "|"))
		}
	}
	return list
}

// runtimeIdentities returns the keys of the runtime's series, which end with their workload.
func runtimeIdentities(r *node.Reading) []string {
	x := &r.Runtime
	var list []string
	add := func(v device.Value, words ...string) {
		if v.OK() {
			list = append(list, r.ID.UUID+"|runtime|"+strings.Join(words, "|"))
		}
	}
	add(x.Queue, "queue")
	add(x.Idle, "idle")
	add(x.Operations, "operations")
	for _, e := range x.Executions {
		add(e.Count, "executions", e.Type)
	}
	for i := range x.Latencies {
		add(device.Of(1), "latency", x.Latencies[i].Operation, x.Latencies[i].Detail)
	}
	return list
}

func describe(w *workload.Workload) string {
	if w == nil {
		return ""
	}
	pairs := []string{w.ID, w.Kind, w.Name, w.Team}
	for key, value := range w.Attributes {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs[4:])
	return strings.Join(pairs, "|")
}

package fleet

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/query"
)

// transport has the labels that tell how a sample reached the store, not what it measures.
var transport = map[string]bool{
	"job": true, "instance": true, "pod": true, "container": true, "endpoint": true, "service": true, "service_name": true, "service_instance_id": true,
	"service_version": true, "prometheus": true, "prometheus_replica": true, "replica": true, "receive": true, "tenant_id": true,
	LabelIndex: true, LabelShareBasis: true, "otel_scope_name": true, "otel_scope_version": true, "otel_scope_schema_url": true,
}

var transportList = strings.Join(slices.Sorted(maps.Keys(transport)), ", ")

// Once returns an expression for selector without duplicates: a store may scrape an agent that
// also pushes to it, and a sum must not count its series twice.
func Once(selector string) string { return "(max without (" + transportList + ") (" + selector + "))" }

// OfEngines matches series that an agent read from an inference engine itself. Applications report to OpenTelemetry
// under the same names what they see of the same requests.
const OfEngines = LabelEngine + `!=""`

// Select returns the selector of a series with sorted equality matchers for match, followed by
// the matchers in more.
func Select(name string, match map[string]string, more ...string) string {
	parts := make([]string, 0, len(match)+len(more))
	for _, label := range slices.Sorted(maps.Keys(match)) {
		parts = append(parts, Equals(label, match[label]))
	}
	parts = append(parts, more...)
	if len(parts) == 0 {
		return name
	}
	return name + "{" + strings.Join(parts, ",") + "}"
}

// Equals returns the matcher for a label value.
func Equals(label, value string) string { return label + "=" + strconv.Quote(value) }

// AnyOf returns matchers for any of the values of a label, split into several for stores that
// limit the length of a query.
func AnyOf(label string, values []string) []string {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	var out []string
	for len(values) > 0 {
		n, size := 0, 0
		for n < len(values) && n < 200 && (n == 0 || size+len(values[n]) < 6000) {
			size += len(values[n])
			n++
		}
		quoted := make([]string, n)
		for i, v := range values[:n] {
			quoted[i] = regexp.QuoteMeta(v)
		}
		out = append(out, label+"=~"+strconv.Quote(strings.Join(quoted, "|")))
		values = values[n:]
	}
	return out
}

// Over returns the expression for a function over a range of samples.
func Over(f, selector, window string) string { return f + "(" + selector + "[" + window + "])" }

// descriptive reports whether a label describes a row without distinguishing accounts. Some
// descriptive labels arrive late, when the cloud or the API server answers.
func descriptive(name string) bool {
	switch name {
	case LabelModel, LabelVendor, LabelCluster, LabelNode:
		return true
	}
	for _, prefix := range []string{"gpu_", "k8s_", "slurm_", "container_", "user_", "process_"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return true
}

// OfDevice returns the matchers that select devices regardless of their holders.
func OfDevice(match map[string]string) map[string]string {
	out := map[string]string{}
	for label, value := range match {
		if descriptive(label) {
			out[label] = value
		}
	}
	return out
}

// OfMachine returns the labels of a series that describe its device and machine, whoever holds the
// device.
func OfMachine(l query.Labels) query.Labels {
	out := query.Labels{}
	for name, value := range l {
		if descriptive(name) || name == LabelUUID || name == LabelIndex || strings.HasPrefix(name, "k8s_node_") {
			out[name] = value
		}
	}
	return out
}

// OfWorkload returns the labels of a row that describe the workload rather than its device or
// partition.
func OfWorkload(l query.Labels) map[string]string {
	out := map[string]string{}
	for name, value := range l {
		switch {
		case name == LabelCluster:
		case descriptive(name), name == LabelUUID, name == LabelPartition, name == LabelPartitionProfile:
			continue
		}
		out[name] = value
	}
	return out
}

// Row returns the labels without the name and the transport labels.
func Row(l query.Labels) query.Labels {
	out := make(query.Labels, len(l))
	for name, value := range l {
		if value != "" && !transport[name] && !strings.HasPrefix(name, "__") {
			out[name] = value
		}
	}
	return out
}

// Account returns the key of the account of a series: the counters of one workload instance, under
// one description, on one device or partition, or the free time of a device. All labels except
// descriptive and transport labels distinguish accounts: an agent whose workload gets other labels
// closes one account and opens the next at zero. The host distinguishes accounts only where the ID
// of the device does not (see Global).
//
// Account runs for every series of every response, so it copies only what it needs.
func Account(l query.Labels) string {
	names := make([]string, 0, 24)
	size := 0
	global := Global(l)
	for name, value := range l {
		if value != "" && !descriptive(name) && !transport[name] && name != LabelPartitionProfile || name == LabelHost && !global {
			names = append(names, name)
			size += len(name) + len(value) + 2
		}
	}
	slices.Sort(names)
	key := make([]byte, 0, size)
	for _, name := range names {
		key = append(key, name...)
		key = append(key, 0xff) // invalid in UTF-8, so in no name and no value
		key = append(key, l[name]...)
		key = append(key, 0xff)
	}
	return string(key)
}

// Instance returns the key of the workload instance of a series on its device or partition. An
// instance with an identity (pod UID and container, Slurm job, container ID) is keyed by it, so it
// stays one instance when labels arrive late or are edited. Any other instance has one account.
func Instance(l query.Labels) string {
	for _, id := range identities {
		if value := l[id]; value != "" && l[LabelUUID] != "" {
			return id + "\xff" + value + "\xff" + l[LabelContainer] + "\xff" + DeviceKey(l) + "\xff" + l[LabelPartition]
		}
	}
	return Account(l)
}

// identities are the labels that identify a workload instance permanently, best first.
var identities = []string{LabelPodUID, LabelSlurmJob, LabelContainerID}

// Unit returns the partition of a row, or its device if it has none.
func Unit(l query.Labels) string {
	if p := l[LabelPartition]; p != "" {
		return p
	}
	return l[LabelUUID]
}

// NodeOf returns the display name of the machine of a series.
func NodeOf(l query.Labels) string {
	if n := l[LabelNode]; n != "" {
		return n
	}
	return l[LabelHost]
}

// Sole returns a selector of device series restricted to devices with a sole holder, which makes
// devices comparable.
func Sole(series string) string {
	return Select(series, nil, LabelWorkload+`!=""`, LabelKind+`!~"`+strings.Join([]string{KindUnallocated, KindUnattributed, KindOther}, "|")+`"`)
}

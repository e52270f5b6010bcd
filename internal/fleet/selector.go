package fleet

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/query"
)

// transport are the labels that say how a sample reached the store, not what it measures.
var transport = map[string]bool{
	"job": true, "instance": true, "pod": true, "container": true, "endpoint": true, "service": true, "service_name": true, "service_instance_id": true,
	"service_version": true, "prometheus": true, "prometheus_replica": true, "replica": true, "receive": true, "tenant_id": true,
	LabelIndex: true, LabelShareBasis: true, "otel_scope_name": true, "otel_scope_version": true, "otel_scope_schema_url": true,
}

var transportList = strings.Join(slices.Sorted(maps.Keys(transport)), ", ")

// Once returns an expression for selector without duplicates: an agent may both push to a
// store and be scraped by it, and a sum must not count its series twice.
func Once(selector string) string { return "(max without (" + transportList + ") (" + selector + "))" }

// Select returns the plain selector of a series, with matchers for labels that must have a
// value, in order, and then the matchers in more as they are.
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

// Equals returns the matcher for one value of a label.
func Equals(label, value string) string { return label + "=" + strconv.Quote(value) }

// AnyOf returns matchers for any of the values of a label, in as many parts as stores with a
// limit on the length of a query need.
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

// over returns the expression for a function over the samples in the time before a moment.
func over(f, selector string, window string) string { return f + "(" + selector + "[" + window + "])" }

// descriptive reports whether a label describes a row without telling two accounts apart.
// Some descriptive labels arrive late, when the cloud or the API server answers.
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

// OfDevice returns those matchers that select devices whoever holds them.
func OfDevice(match map[string]string) map[string]string {
	out := map[string]string{}
	for label, value := range match {
		if descriptive(label) {
			out[label] = value
		}
	}
	return out
}

// OfWorkload returns the labels of a row that describe the workload rather than the device
// or partition that it is on.
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

// Row returns the labels without the name and without those that say how the sample came.
func Row(l query.Labels) query.Labels {
	out := make(query.Labels, len(l))
	for name, value := range l {
		if value != "" && !transport[name] && !strings.HasPrefix(name, "__") {
			out[name] = value
		}
	}
	return out
}

// Account returns the key of the account that a series belongs to: one workload instance on
// one device or partition, or what nobody holds of a device. An instance that has an
// identity (a pod's UID and container, a Slurm job, a container's ID) is known by it: its
// other labels may arrive late or be edited, and stay one account. What has none is known by
// all labels but descriptive ones and those of transport.
//
// The key is computed for every series of every answer, so it copies only what it needs.
func Account(l query.Labels) string {
	for _, id := range identities {
		if value := l[id]; value != "" && l[LabelUUID] != "" {
			return id + "\xff" + value + "\xff" + l[LabelContainer] + "\xff" + l[LabelUUID] + "\xff" + l[LabelPartition]
		}
	}
	names := make([]string, 0, 24)
	size := 0
	for name, value := range l {
		if value != "" && !descriptive(name) && !transport[name] || name == LabelHost && l[LabelUUID] == "" {
			names = append(names, name)
			size += len(name) + len(value) + 2
		}
	}
	slices.Sort(names)
	key := make([]byte, 0, size)
	for _, name := range names {
		key = append(key, name...)
		key = append(key, 0xff) // in no name and, not being UTF-8, in no value
		key = append(key, l[name]...)
		key = append(key, 0xff)
	}
	return string(key)
}

// identities are the labels that name an instance of a workload for ever, best first.
var identities = []string{LabelPodUID, LabelSlurmJob, LabelContainerID}

// Unit returns the partition that a row is about, or else the device.
func Unit(l query.Labels) string {
	if p := l[LabelPartition]; p != "" {
		return p
	}
	return l[LabelUUID]
}

// NodeOf returns the name by which people know the machine of a series.
func NodeOf(l query.Labels) string {
	if n := l[LabelNode]; n != "" {
		return n
	}
	return l[LabelHost]
}

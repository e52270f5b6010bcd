package workloadprocessor

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// tag is an attribute of a workload.
type tag = workload.Attribute

// attributed reports whether the owner is already set, most likely by the agent.
func attributed(attrs pcommon.Map) bool {
	_, ok := attrs.Get(workload.KeyKind)
	return ok
}

// contradicts reports whether attrs conflict with tags.
func contradicts(attrs pcommon.Map, tags []tag) bool {
	for _, t := range tags {
		if v, ok := attrs.Get(t.Key); ok && (v.Type() != pcommon.ValueTypeStr || v.Str() != t.Value) {
			return true
		}
	}
	return false
}

// dress adds tags to attrs without overwriting anything. If attrs name another pod, mixing
// attributes of both would describe a third one, so only our own attributes are added then.
func dress(attrs pcommon.Map, tags []tag) {
	only := contradicts(attrs, tags)
	attrs.EnsureCapacity(attrs.Len() + len(tags))
	for _, t := range tags {
		if only && !strings.HasPrefix(t.Key, workload.OwnPrefix) {
			continue
		}
		if v, there := attrs.GetOrPutEmpty(t.Key); !there {
			v.SetStr(t.Value)
		}
	}
}

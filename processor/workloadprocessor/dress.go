package workloadprocessor

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// tag is an attribute of a workload.
type tag = workload.Attribute

// attributed reports whether somebody, most likely the agent, has said whose it is.
func attributed(attrs pcommon.Map) bool {
	_, ok := attrs.Get(workload.KeyKind)
	return ok
}

// contradicts reports whether attrs say something else than tags.
func contradicts(attrs pcommon.Map, tags []tag) bool {
	for _, t := range tags {
		if v, ok := attrs.Get(t.Key); ok && (v.Type() != pcommon.ValueTypeStr || v.Str() != t.Value) {
			return true
		}
	}
	return false
}

// dress adds tags to attrs and overwrites nothing. Where attrs speak of another pod, half
// of one pod's attributes beside half of another's would be a third one: only what is
// ours is added then.
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

package workloadprocessor

import (
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// tag is an attribute of a workload.
type tag struct{ key, value string }

// ours begins the names of the attributes that nobody else gives.
const ours = "gpu.workload."

const kindKey = ours + "kind"

// tagsOf returns what is to be added to what w does, ours first.
func tagsOf(w *workload.Workload) []tag {
	list := make([]tag, 0, 3+len(w.Attributes))
	for _, t := range []tag{{kindKey, w.Kind}, {ours + "name", w.Name}, {ours + "team", w.Team}} {
		if t.value != "" {
			list = append(list, t)
		}
	}
	first := len(list)
	for key, value := range w.Attributes {
		if value != "" {
			list = append(list, tag{key, value})
		}
	}
	sortTags(list[first:])
	return list
}

func sortTags(list []tag) {
	slices.SortFunc(list, func(a, b tag) int { return strings.Compare(a.key, b.key) })
}

// attributed reports whether somebody, most likely the agent, has said whose it is.
func attributed(attrs pcommon.Map) bool {
	_, ok := attrs.Get(kindKey)
	return ok
}

// contradicts reports whether attrs say something else than tags.
func contradicts(attrs pcommon.Map, tags []tag) bool {
	for _, t := range tags {
		if v, ok := attrs.Get(t.key); ok && (v.Type() != pcommon.ValueTypeStr || v.Str() != t.value) {
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
		if only && !strings.HasPrefix(t.key, ours) {
			continue
		}
		if v, there := attrs.GetOrPutEmpty(t.key); !there {
			v.SetStr(t.value)
		}
	}
}

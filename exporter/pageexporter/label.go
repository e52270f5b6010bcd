package pageexporter

import (
	"cmp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
)

// Labels that the formats add to lines of histograms and summaries.
const (
	bucketLabel   = model.BucketLabel
	quantileLabel = model.QuantileLabel
)

// maxLabelValue bounds what one attribute can add to the page, in bytes.
const maxLabelValue = 4096

// labelName returns the label of an attribute, or "" if it cannot be a label.
func labelName(attribute string) string {
	namer := otlptranslator.LabelNamer{}
	name, err := namer.Build(attribute)
	if err != nil || strings.HasPrefix(name, model.ReservedLabelPrefix) {
		return ""
	}
	return name
}

// attribute is an attribute that becomes a label.
type attribute struct {
	label, key, value string
	from              origin
}

// origin is where an attribute was found; the lower one wins.
type origin int

const (
	fromPoint origin = iota
	fromResource
)

// labeler creates labels. Nearly all points of a call share nearly all labels, so each name
// and each pair is created once.
type labeler struct {
	dropped *dropped
	names   map[string]string
	made    map[[2]string]*dto.LabelPair
	scratch []attribute
}

func newLabeler(d *dropped) labeler {
	return labeler{dropped: d, names: map[string]string{}, made: map[[2]string]*dto.LabelPair{}}
}

// promoted returns the resource attributes that become labels.
func (l *labeler) promoted(resource pcommon.Map, wanted []string) []attribute {
	var out []attribute
	for _, key := range wanted {
		if v, ok := resource.Get(key); ok {
			out = l.append(out, fromResource, key, v)
		}
	}
	return out
}

// append adds an attribute to out unless it cannot be a label or is empty: to Prometheus an
// empty label is an absent one.
func (l *labeler) append(out []attribute, from origin, key string, v pcommon.Value) []attribute {
	label, ok := l.names[key]
	if !ok {
		label = labelName(key)
		l.names[key] = label
	}
	value := strings.ToValidUTF8(v.AsString(), "\uFFFD")
	if label == "" {
		l.dropped.add(invalidLabel, 1, key)
		return out
	}
	if len(value) > maxLabelValue {
		l.dropped.add(invalidLabel, 1, key)
		value = strings.ToValidUTF8(value[:maxLabelValue], "") // without a split character
	}
	if value == "" {
		return out
	}
	return append(out, attribute{label, key, value, from})
}

// pairs returns the labels of one point, sorted by name. As in Prometheus' OTLP receiver,
// point attributes that map to the same label are joined in the order of their keys, and
// override resource attributes.
func (l *labeler) pairs(point pcommon.Map, resource []attribute, reserved string) []*dto.LabelPair {
	all := l.scratch[:0]
	all = append(all, resource...)
	for key, v := range point.All() {
		all = l.append(all, fromPoint, key, v)
	}
	l.scratch = all
	slices.SortFunc(all, func(a, b attribute) int {
		if c := cmp.Compare(a.label, b.label); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.key, b.key))
	})
	out := make([]*dto.LabelPair, 0, len(all))
	for i := 0; i < len(all); {
		a := all[i]
		for i++; i < len(all) && all[i].label == a.label; i++ {
			if all[i].from == fromPoint {
				a.value += ";" + all[i].value
			}
		}
		if a.label == reserved {
			l.dropped.add(invalidLabel, 1, a.key)
			continue
		}
		out = append(out, l.pair(a.label, a.value))
	}
	return out
}

func (l *labeler) pair(name, value string) *dto.LabelPair {
	p := l.made[[2]string{name, value}]
	if p == nil {
		p = &dto.LabelPair{Name: new(name), Value: new(value)}
		l.made[[2]string{name, value}] = p
	}
	return p
}

package cost

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

type matcher struct {
	label string
	text  string
	glob  *regexp.Regexp // nil: text is the value
}

// aliases are short label names for the match sections of rules and quotas.
var aliases = map[string]string{
	"model": fleet.LabelModel, "vendor": fleet.LabelVendor, "cluster": fleet.LabelCluster, "node": fleet.LabelNode, "host": fleet.LabelHost,
	"instance_type": fleet.LabelHostType, "team": fleet.LabelTeam, "namespace": fleet.LabelNamespace, "account": fleet.LabelSlurmAccount, "queue": fleet.LabelWorkloadQueue,
	"user": fleet.LabelSlurmUser, "region": fleet.LabelRegion, "zone": fleet.LabelZone, "provider": fleet.LabelCloudProvider,
}

// labelSet has the labels that a file declares in addition to those that agents set.
type labelSet map[string]bool

// maxLabels bounds the declared labels.
const maxLabels = 1000

// declared returns the labels of the key labels. They are resource attributes that
// --resource-label or another store adds to series.
func declared(names []string) (labelSet, error) {
	if len(names) > maxLabels {
		return nil, fmt.Errorf("more than %d", maxLabels)
	}
	out := labelSet{}
	for _, name := range names {
		label := labelOf(name)
		if !validLabel.MatchString(label) {
			return nil, fmt.Errorf("%.60q is not the name of a label", name)
		}
		out[label] = true
	}
	return out, nil
}

var validLabel = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// labelOf returns the label for a name that may have OpenTelemetry's dots.
func labelOf(name string) string {
	return strings.NewReplacer(".", "_", "-", "_", "/", "_").Replace(name)
}

// matchers compiles globs by label. A label that no row can have is an error: its rule would
// never apply.
func (known labelSet) matchers(globs map[string]*string) ([]matcher, error) {
	out := make([]matcher, 0, len(globs))
	names := map[string]string{} // as written, by label
	for _, name := range slices.Sorted(maps.Keys(globs)) {
		label := labelOf(name)
		label = cmp.Or(aliases[label], label)
		if other := names[label]; other != "" {
			return nil, of("match", of(name, fmt.Errorf("%s is the same label", other)))
		}
		names[label] = name
		if !known[label] && !fleet.IsRowLabel(label) {
			return nil, of("match", of(name, unknownLabel(name, label, known)))
		}
		glob := globs[name]
		if glob == nil {
			return nil, of("match", of(name, errors.New(`has no value: "" is a missing label, "*" any value`)))
		}
		g, err := compile(*glob)
		if err != nil {
			return nil, of("match", of(name, err))
		}
		out = append(out, matcher{label, *glob, g})
	}
	slices.SortFunc(out, func(a, b matcher) int { return cmp.Compare(a.label, b.label) })
	return out, nil
}

// exactly returns matchers for patterns from another system, by alias or label.
func exactly(globs map[string]string) ([]matcher, error) {
	list := map[string]*string{}
	for name, glob := range globs {
		list[name] = &glob
	}
	return labelSet(nil).matchers(list)
}

// compile returns the regular expression of a pattern with * and ?, nil if it has neither.
func compile(glob string) (*regexp.Regexp, error) {
	if len(glob) > 1000 {
		return nil, errors.New("the pattern exceeds 1000 characters")
	}
	if !strings.ContainsAny(glob, "*?") {
		return nil, nil
	}
	text := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(glob))
	g, err := regexp.Compile(`^(?s:` + text + `)$`)
	if err != nil {
		return nil, fmt.Errorf("%.40q: %w", glob, err)
	}
	return g, nil
}

// matches reports whether all matchers match. An absent label is empty, which * matches.
func matches(list []matcher, labels map[string]string) bool {
	for _, m := range list {
		if v := labels[m.label]; m.glob == nil && v != m.text || m.glob != nil && !m.glob.MatchString(v) {
			return false
		}
	}
	return true
}

// unknownLabel explains a label that no row has, with the nearest label that rows have.
func unknownLabel(name, label string, known labelSet) error {
	best, least := "", max(2, len(label)/3)+1
	for _, candidate := range slices.Concat(slices.Sorted(maps.Keys(aliases)), fleet.RowLabels(), slices.Sorted(maps.Keys(known))) {
		if d := distance(label, candidate); d < least {
			best, least = candidate, d
		}
	}
	if best != "" {
		return fmt.Errorf("no row has the label %.60q: did you mean %s? Labels that --resource-label or another store adds are listed under labels", name, best)
	}
	return fmt.Errorf("no row has the label %.60q: labels that --resource-label or another store adds are listed under labels", name)
}

// distance returns how many characters must be inserted, removed, replaced or swapped with their
// neighbor to turn a into b.
func distance(a, b string) int {
	if len(a) > 100 || len(b) > 100 {
		return 100
	}
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(row[j-1]+1, last[j]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

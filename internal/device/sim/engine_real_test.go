package sim

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// realFamily is a metric of a real engine: its type, and the labels beside those that all metrics have.
type realFamily struct {
	kind   string
	labels []string
}

// newest returns the metrics that the newest release in a catalog has. columns says where a line has the extra labels
// and the releases, such as v0.2.3..v0.9.0, or v0.8.0.. if that is still the case.
func newest(t *testing.T, name string, labels, releases int) map[string]realFamily {
	t.Helper()
	text, err := os.ReadFile("../../../../shared/reference/catalog/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the catalog of metrics is not in this checkout")
	} else if err != nil {
		t.Fatal(err)
	}
	all := map[string]realFamily{}
	for line := range strings.Lines(string(text)) {
		row := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(row) > max(labels, releases) && strings.HasSuffix(row[releases], "..") {
			all[row[0]] = realFamily{row[1], strings.FieldsFunc(row[labels], func(r rune) bool { return strings.ContainsRune(", ", r) })}
		}
	}
	return all
}

// Catches a simulated engine with a metric, a type or a label that the newest real one does not have.
func TestEnginePagesAreReal(t *testing.T) {
	catalog := map[string]map[string]realFamily{"vllm": newest(t, "vllm.tsv", 2, 5), "sglang": newest(t, "sglang.tsv", 2, 4)}
	everywhere := map[string][]string{
		"vllm":   {"model_name", "engine", "le"},
		"sglang": {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank", "le"},
	}
	for _, e := range engines(t, engineConfig()) {
		text := scan(t, e, 30*time.Hour)
		for name, kind := range text.Types {
			base, created := strings.CutSuffix(name, "_created") // the Python client's, with every counter and histogram
			if created {
				if _, ok := catalog[e.Kind][base]; !ok {
					_, ok = catalog[e.Kind][base+"_total"]
					created = ok
				}
			}
			want, ok := catalog[e.Kind][name]
			switch {
			case created || !strings.HasPrefix(name, e.Kind+":"): // or what the language counts of itself
			case !ok:
				t.Errorf("%s: the real engine has no %s", e.ID, name)
			case kind != want.kind:
				t.Errorf("%s: %s is a %s, that of the real engine a %s", e.ID, name, kind, want.kind)
			case strings.HasSuffix(name, "_info"): // whose labels are the configuration
			default:
				for _, label := range labelsOf(text, name) {
					if !slices.Contains(everywhere[e.Kind], label) && !slices.Contains(want.labels, label) {
						t.Errorf("%s: %s has the label %s, that of the real engine %v", e.ID, name, label, want.labels)
					}
				}
			}
		}
	}
}

func labelsOf(text *promtext.Text, name string) []string {
	var list []string
	for _, s := range text.Samples {
		if part, ok := strings.CutPrefix(s.Name, name); ok && slices.Contains([]string{"", "_bucket", "_sum", "_count"}, part) {
			for _, l := range s.Labels {
				list = append(list, l.Name)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

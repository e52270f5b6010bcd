package inference

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Catches metrics without a description, two of the same name, and one that Metrics leaves out.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	known := map[string]*Metric{}
	for _, m := range Metrics() {
		if known[m.Name] != nil || m.Description == "" || m.Unit == "" || !strings.HasSuffix(m.Description, ".") {
			t.Errorf("%+v", m)
		}
		known[m.Name] = m
	}
	for _, e := range engines {
		for _, r := range e.rules {
			for _, m := range metricsOf(&r) {
				if known[m.Name] != m {
					t.Errorf("%s is not in Metrics", m.Name)
				}
			}
		}
	}
	literals := 0
	for _, file := range []string{"vocabulary.go", "ollama.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		literals += len(regexp.MustCompile(`&Metric\{"`).FindAll(text, -1))
	}
	if len(known) != literals {
		t.Errorf("Metrics returns %d of %d", len(known), literals)
	}
}

func metricsOf(r *rule) []*Metric {
	if r.made != nil {
		return r.makes
	}
	return []*Metric{r.metric}
}

// Catches a table of engines in the documentation that is out of date.
func TestEnginesDocument(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	b.WriteString("[comment]: <> (Written by go test -update from internal/inference. Do not edit.)\n\n# Names of inference engines\n\n" +
		"What each engine calls what the [vocabulary](metrics.md#inference-receiver) has one name for. Of several names the first counts that a page has: they are ordered from the newest version to the oldest. " +
		"`:` in a name is written as `_`, and `_total` at its end is left out, because versions and proxies differ in both. " +
		"Whatever else a page has under a prefix of the engine is counted in `inference.scrape.samples.unmapped`; of an engine without a prefix, whatever else is not common to programs of Python and to web servers.\n")
	for _, e := range engines {
		whose := "`" + strings.Join(e.prefixes, "`, `") + "`"
		if len(e.prefixes) == 0 {
			whose = "a page with `" + strings.Join(e.names, "`, `") + "`"
		}
		fmt.Fprintf(&b, "\n## %s (%s)\n\n| the engine's name | OpenTelemetry | attributes |\n|---|---|---|\n", e.provider, whose)
		for _, r := range e.rules {
			var names, attrs []string
			for _, m := range metricsOf(&r) {
				names = append(names, "`"+m.Name+"`")
			}
			for _, a := range r.set {
				attrs = append(attrs, "`"+a.Name+"` = "+a.Value)
			}
			for _, a := range r.by {
				attrs = append(attrs, "`"+a.Value+"` from `"+a.Name+"`")
			}
			if r.only != nil {
				attrs = append(attrs, "only `"+r.only.Name+"` = "+r.only.Value)
			}
			if r.made != nil && len(r.from) > 1 {
				attrs = append(attrs, "from all of these")
			}
			if r.sum {
				attrs = append(attrs, "its sum")
			}
			if r.parts != 0 {
				attrs = append(attrs, fmt.Sprintf("divided by %v", r.parts))
			}
			slices.Sort(names)
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(r.from, "`, `"), strings.Join(names, ", "), strings.Join(attrs, ", "))
		}
	}
	const path = "../../docs/engines.md"
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, b.Bytes()) {
		t.Errorf("docs/engines.md is out of date, rewrite it with make generate (%v)", err)
	}
}

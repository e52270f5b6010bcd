package layers

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// These versions move together: with a different Prometheus library, Go silently selects another
// release of some of the Collector's modules.
const (
	collectorStable = "v1.65.0"
	collectorBeta   = "v0.159.0"
	// prometheusVersion is what contrib's prometheusreceiver of the same release requires.
	prometheusVersion = "v0.313.2"
)

func TestModules(t *testing.T) {
	for _, file := range []string{"../../go.mod", "../../tools.mod"} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range checkModules(string(src)) {
			t.Errorf("%s: %s", strings.TrimPrefix(file, "../../"), problem)
		}
	}
}

// checkModules returns what is wrong with a go.mod.
func checkModules(src string) []string {
	var bad []string
	collectors := 0
	for line := range strings.Lines(src) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(words) == 0 {
			continue
		}
		if words[0] == "replace" || slices.Contains(words, "=>") {
			bad = append(bad, "replace: modules that import this one ignore it")
		}
		if len(words) != 2 {
			continue
		}
		name, version := words[0], words[1]
		switch {
		case name == "go.opentelemetry.io/collector", strings.HasPrefix(name, "go.opentelemetry.io/collector/"):
			collectors++
			if version != collectorStable && version != collectorBeta {
				bad = append(bad, fmt.Sprintf("%s is %s, but the Collector's release is %s and %s", name, version, collectorStable, collectorBeta))
			}
		case name == "github.com/prometheus/prometheus" && version != prometheusVersion:
			bad = append(bad, fmt.Sprintf("%s is %s, but Collector %s requires %s", name, version, collectorBeta, prometheusVersion))
		}
	}
	if collectors == 0 {
		bad = append(bad, "no module of the Collector found")
	}
	return bad
}

func TestModulesCatch(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		src := "module m\n\ngo 1.26\n\nrequire (\n\tgo.opentelemetry.io/collector/component v1.65.0\n)\n" + line + "\n"
		got := strings.Join(checkModules(src), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q gives %q, want %q", line, got, want)
		}
	}
	f("", "")
	f("require go.opentelemetry.io/collector/otelcol v0.159.0 // indirect", "")
	f("require go.opentelemetry.io/collector/otelcol v0.160.0", "v0.160.0")
	f("require go.opentelemetry.io/collector v0.158.0", "v0.158.0")
	f("require go.opentelemetry.io/otel v1.45.0", "")
	f("require github.com/prometheus/prometheus v0.313.2", "")
	f("require github.com/prometheus/prometheus v0.315.0", "v0.315.0")
	f("replace example.com/a => ../a", "replace")
	f("replace (\n\texample.com/a v1.0.0 => example.com/b v1.0.0\n)", "replace")
}

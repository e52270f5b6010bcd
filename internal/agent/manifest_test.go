//go:build linux

package agent

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// types are the names of the components of gpumeter-collector in configurations, by the last part
// of their import paths.
var types = map[string]string{
	"attributesprocessor": "attributes", "basicauthextension": "basicauth", "batchprocessor": "batch", "bearertokenauthextension": "bearertokenauth",
	"cudareceiver": "cuda", "debugexporter": "debug", "fileexporter": "file", "filestorage": "file_storage", "filterprocessor": "filter", "gpuextension": "gpu",
	"gpureceiver": "gpu", "healthcheckextension": "health_check", "hostreceiver": "host", "hubexporter": "hub", "inferencereceiver": "inference", "k8sattributesprocessor": "k8sattributes",
	"loadbalancingexporter": "loadbalancing", "localonly": "local_only", "memorylimiterprocessor": "memory_limiter", "otlpexporter": "otlp_grpc", "otlphttpexporter": "otlp_http",
	"otlpreceiver": "otlp", "pageexporter": "page", "pprofextension": "pprof", "prometheusreceiver": "prometheus", "prometheusremotewriteexporter": "prometheusremotewrite",
	"gpuspanprocessor": "gpuspan", "reservedprocessor": "reserved", "resourcedetectionprocessor": "resourcedetection", "resourceprocessor": "resource", "schedulerreceiver": "scheduler", "trainingprocessor": "training", "transformprocessor": "transform",
	"workloadprocessor": "workload",
}

// onlyLean are components of gpumeter that need its process: the builder cannot pass one.
var onlyLean = []string{"exporters stdout", "receivers self"}

// Catches a component of gpumeter that gpumeter-collector lacks, and a table of components in the
// documentation that is out of date.
func TestCollectorManifest(t *testing.T) {
	text, err := os.ReadFile("../../cmd/gpumeter-collector/builder.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type module struct{ Gomod, Import string }
	var manifest map[string]any
	var lists struct{ Extensions, Receivers, Processors, Exporters []module }
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &lists); err != nil {
		t.Fatal(err)
	}
	large := map[string]bool{}
	for kind, list := range map[string][]module{"extensions": lists.Extensions, "receivers": lists.Receivers, "processors": lists.Processors, "exporters": lists.Exporters} {
		for _, m := range list {
			name, version, _ := strings.Cut(m.Gomod, " ")
			if m.Import != "" {
				name = m.Import
			}
			if types[path.Base(name)] == "" {
				t.Errorf("%s is not in the list of this test", name)
			}
			if m.Import == "" && version != "v0.159.0" && path.Base(name) != "basicauthextension" {
				t.Errorf("%s is of another release: %s", name, version)
			}
			large[kind+" "+types[path.Base(name)]] = true
		}
	}
	components, err := Components()
	if err != nil {
		t.Fatal(err)
	}
	lean := map[string]bool{}
	for kind, names := range components {
		for _, name := range names {
			lean[kind+" "+name] = true
			if !large[kind+" "+name] && !slices.Contains(onlyLean, kind+" "+name) {
				t.Errorf("gpumeter-collector has no %s of %s", name, kind)
			}
		}
	}

	page, err := os.ReadFile("../../docs/collector.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][2]bool{}
	row := regexp.MustCompile("(?m)^\\| (extension|receiver|processor|exporter) \\| `([a-z0-9_]+)` \\| (yes|–) \\| (yes|–) \\|")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		documented[m[1]+"s "+m[2]] = [2]bool{m[3] == "yes", m[4] == "yes"}
	}
	want := map[string][2]bool{}
	for name := range lean {
		want[name] = [2]bool{true, large[name]}
	}
	for name := range large {
		want[name] = [2]bool{lean[name], true}
	}
	if diff := cmp.Diff(want, documented); diff != "" {
		t.Errorf("the table in docs/collector.md: in gpumeter, in gpumeter-collector (-want +got):\n%s", diff)
	}
}

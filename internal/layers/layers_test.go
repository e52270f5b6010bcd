package layers

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "github.com/gpumeter/gpumeter/"

// Third-party modules by purpose.
const (
	collector = "go.opentelemetry.io/..."
	pdata     = "go.opentelemetry.io/collector/pdata/..."
	component = "go.opentelemetry.io/collector/component"
	zap       = "go.uber.org/zap/..."
	xsys      = "golang.org/x/sys/..."
)

// layers lists what each package of this module may import besides the standard library and the
// packages below its own internal folder. A name that ends in /... covers a package and all below
// it. The first match decides, and a package without a match fails: a new folder must be listed
// here first. Test files are exempt.
var layers = []struct {
	pkg string
	may []string
}{
	// The optional number.
	{"internal/optional", nil},

	// Small readers of the kernel, one idea each. They import nothing else of this module.
	{"internal/dlopen", []string{"github.com/ebitengine/purego"}},
	{"internal/sysfs", []string{"internal/natural", xsys}},
	{"internal/kmsg", []string{xsys}},
	{"internal/openfiles", nil},
	{"internal/natural", nil},
	{"internal/quantity", nil},
	{"internal/cloud", nil},
	{"internal/host", []string{"internal/optional", xsys}},
	{"internal/slurm", []string{"internal/optional"}},

	// Folders for state and data, without links of other users.
	{"internal/folder", nil},

	// Protection of loopback servers from DNS rebinding.
	{"internal/rebind", nil},

	// The only parser of metrics pages.
	{"internal/promtext", nil},

	// Queries to a store of time series, the hub's own or any other.
	{"internal/query", nil},
	{"internal/query/querytest", []string{"internal/query"}},

	// The model of the reading side: the only package that names series and labels.
	{"internal/fleet", []string{"internal/natural", "internal/optional", "internal/quantity", "internal/query"}},
	{"internal/fleet/queue", []string{"internal/fleet", "internal/optional", "internal/query"}},
	{"internal/fleet/serving", []string{"internal/fleet", "internal/optional", "internal/quantity", "internal/query"}},
	{"internal/fleet/training", []string{"internal/fleet", "internal/optional", "internal/quantity", "internal/query"}},
	{"internal/fleet/sizing", []string{"internal/fleet", "internal/optional", "internal/query"}},
	{"internal/fleet/sighting", []string{"internal/fleet", "internal/query"}},
	{"internal/remote", []string{"internal/fleet", "internal/fleet/sighting", "internal/query"}},

	// Service level objectives for inference.
	{"internal/slo", []string{"internal/fleet", "internal/fleet/serving", "internal/optional", "internal/query", "go.yaml.in/yaml/v3"}},

	// The model, and one package per vendor. No vendor knows another, or what a metric is.
	{"internal/device", []string{"internal/optional"}},
	{"internal/device/nvidia/nvmltest", nil},
	{"internal/device/devicetest", []string{"internal/device"}},
	{"internal/device/tpu", []string{
		"internal/device", "internal/openfiles", "internal/promtext", "internal/sysfs", xsys, "google.golang.org/grpc/...", "google.golang.org/protobuf/...",
	}},
	{"internal/device/vendorlib", []string{"internal/device", "internal/dlopen"}},
	{"internal/device/nvidia", []string{"internal/device", "internal/device/vendorlib", "internal/dlopen", "internal/kmsg", "internal/openfiles", "internal/sysfs", xsys}},
	{"internal/device/gaudi", []string{"internal/device", "internal/device/vendorlib", "internal/dlopen", "internal/openfiles", "internal/sysfs", xsys}},
	{"internal/device/...", []string{"internal/device", "internal/kmsg", "internal/openfiles", "internal/sysfs", xsys}},

	// The owner of the work on a device.
	{"internal/workload", []string{"internal/device"}},
	{"internal/workload/podgroup", nil},
	{"internal/workload/hami", nil},
	{"internal/workload/kubeapi", []string{"internal/workload/hami", "internal/workload/podgroup", "go.yaml.in/yaml/v3"}},
	{"internal/workload/kubelet/...", []string{"google.golang.org/grpc/...", "k8s.io/kubelet/..."}},
	{"internal/workload/cgroup", nil},
	{"internal/workload/kubernetes", []string{"internal/device", "internal/workload", "internal/workload/cgroup", "internal/workload/hami", "internal/workload/kubeapi", "internal/workload/kubelet"}},
	{"internal/workload/runtime", []string{"internal/workload", "internal/workload/cgroup"}},
	{"internal/workload/...", []string{"internal/natural", "internal/slurm", "internal/workload", "internal/workload/cgroup", "internal/sysfs", xsys}},

	// Pure functions over values.
	{"internal/health", []string{"internal/device", "internal/workload"}},
	{"internal/cost/tokens", []string{"internal/cost", "internal/fleet", "internal/fleet/serving", "internal/optional", "internal/quantity", "internal/query"}},
	{"internal/cost/worldtest", []string{"internal/fleet", "internal/query", "internal/query/querytest"}},
	{"internal/cost", []string{"internal/fleet", "internal/fleet/sighting", "internal/fleet/sizing", "internal/natural", "internal/optional", "internal/quantity", "internal/query", "go.yaml.in/yaml/v3"}},

	// Node checks: reads of the kernel, and the findings of the rules.
	{"internal/check/ata", []string{xsys}},
	{"internal/check/ipmi", []string{xsys}},
	{"internal/check/nvme", []string{xsys}},
	{"internal/check", []string{"internal/check/ata", "internal/check/ipmi", "internal/check/nvme", "internal/device", "internal/health", "internal/kmsg", "internal/openfiles", "internal/sysfs", xsys}},

	// The single owner of live state gets vendors and sources as interfaces from local.
	{"internal/node", []string{"internal/device", "internal/folder", "internal/workload", "internal/health"}},
	{"internal/local/fleettest", nil},
	{"internal/local", []string{"internal/cloud", "internal/device/...", "internal/inference/...", "internal/node", "internal/sysfs", "internal/workload/..."}},

	// The checks of this machine, in a separate process.
	{"internal/check/worker", []string{
		"internal/check", "internal/device", "internal/health", "internal/local", "internal/node", "internal/slurm", "go.yaml.in/yaml/v3",
	}},

	// The receivers of the same names without the Collector.
	{"internal/inference", []string{"internal/optional", "internal/promtext"}},
	{"internal/inference/discover", []string{"internal/device", "internal/inference", "internal/node", "internal/promtext", "internal/workload", xsys}},
	{"internal/scheduler", []string{"internal/optional"}},
	{"internal/scheduler/kube", []string{
		"internal/device", "internal/optional", "internal/scheduler", "internal/scheduler/kube/dra", "internal/scheduler/kube/gang",
		"internal/scheduler/kube/tally", "internal/workload/podgroup",
	}},
	{"internal/scheduler/kube/tally", nil},
	{"internal/scheduler/kube/gang", nil},
	{"internal/scheduler/kube/dra", []string{"internal/device"}},
	{"internal/scheduler/kube/simulated", []string{"internal/device", "internal/scheduler/kube", "internal/scheduler/kube/live"}},
	{"internal/scheduler/kube/live", []string{"internal/device", "internal/scheduler", "internal/scheduler/kube", "internal/workload/kubeapi"}},
	{"internal/scheduler/work", []string{"internal/folder", "internal/node", "internal/scheduler", "internal/workload"}},
	{"internal/scheduler/queueing", []string{"internal/device", "internal/promtext", "internal/scheduler"}},
	{"internal/scheduler/queueing/pages", []string{"internal/device", "internal/promtext", "internal/scheduler/queueing", "internal/workload/kubeapi"}},
	{"internal/scheduler/accounting", []string{"internal/fleet", "internal/optional", "internal/promtext", "internal/query", "internal/slurm"}},
	{"internal/scheduler/...", []string{"internal/optional", "internal/promtext", "internal/scheduler", "internal/slurm"}},
	{"internal/spans", []string{"internal/device"}},
	{"internal/timeline", []string{"internal/device", "internal/node", "internal/workload"}},
	{"internal/sender", []string{"internal/node", "internal/workload"}},
	{"internal/tracer", nil},
	{"internal/tracer/tracertest", []string{"internal/device", "internal/node", "internal/tracer", "internal/workload"}},
	{"internal/tracer/probe", []string{"internal/tracer", "github.com/cilium/ebpf/...", xsys}},
	{"internal/tracer/target", []string{"internal/tracer", xsys}},
	{"internal/tracer/profile", nil},
	{"internal/tracer/profile/python", nil},
	{"internal/tracer/profile/encode", []string{"internal/tracer/profile", "github.com/google/pprof/profile", pdata}},
	{"internal/tracer/profile/sampler", []string{
		"internal/tracer", "internal/tracer/profile", "internal/tracer/profile/python", "internal/tracer/target",
		"github.com/cilium/ebpf/...", "github.com/ianlancetaylor/demangle", xsys,
	}},
	{"internal/tracer/ncclinfo", nil},
	{"internal/tracer/anomaly", []string{"internal/host", "internal/optional", "internal/tracer", "internal/tracer/training"}},
	{"internal/tracer/training", []string{"internal/tracer"}},
	{"internal/tracer/watch", []string{"internal/device", "internal/host", "internal/node", "internal/optional", "internal/tracer", "internal/tracer/anomaly", "internal/tracer/training", "internal/workload"}},
	{"internal/tracer/journal", []string{"internal/tracer/anomaly"}},
	{"internal/tracer/ledger", []string{"internal/device", "internal/node", "internal/tracer", "internal/tracer/anomaly", "internal/tracer/journal", "internal/tracer/training", "internal/workload"}},
	{"internal/tracer/inspect", []string{
		"internal/node", "internal/tracer", "internal/tracer/anomaly", "internal/tracer/journal", "internal/tracer/probe", "internal/tracer/profile", "internal/tracer/profile/sampler",
		"internal/tracer/watch", "internal/workload",
	}},
	{"internal/tracer/live", []string{"internal/tracer", "internal/tracer/ncclinfo", "internal/tracer/probe", "internal/tracer/target", "github.com/ianlancetaylor/demangle", xsys}},

	// Shared by Collector components.
	{"internal/series", []string{pdata}},
	{"internal/ticks", []string{"internal/node", component, pdata}},

	// Collector components. None imports another. Only the extension opens devices.
	{"extension/filestorage", []string{"internal/requeue", "github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage", collector}},
	{"extension/localonly", []string{"internal/rebind", "internal/sender", "google.golang.org/grpc/...", collector}},
	{"extension/...", []string{"internal/local", "internal/node", "internal/spans", "internal/workload", collector, zap}},
	{"receiver/gpureceiver/...", []string{"internal/device", "internal/node", "internal/spans", "internal/health", "internal/series", "internal/ticks", "internal/workload", collector, zap}},
	{"receiver/cudareceiver/...", []string{"internal/node", "internal/series", "internal/spans", "internal/ticks", "internal/tracer/...", collector, zap}},
	{"receiver/hostreceiver/...", []string{"internal/host", "internal/node", "internal/ticks", collector, zap}},
	{"receiver/schedulerreceiver/...", []string{"internal/local", "internal/node", "internal/optional", "internal/query", "internal/scheduler/...", "internal/series", "internal/ticks", "internal/workload", "internal/workload/kubeapi", collector, zap}},
	{"receiver/inferencereceiver/...", []string{"internal/device", "internal/inference/...", "internal/node", "internal/promtext", "internal/rebind", "internal/series", "internal/ticks", "internal/workload", collector, zap}},
	{"receiver/...", []string{"internal/node", "internal/series", "internal/ticks", "internal/workload", collector, zap}},
	{"processor/reservedprocessor", []string{"internal/node", "internal/ticks", "github.com/prometheus/otlptranslator", collector, zap}},
	{"processor/gpuspanprocessor/...", []string{"internal/device", "internal/node", "internal/sender", "internal/spans", "internal/ticks", "internal/timeline", "internal/workload", collector, zap}},
	{"processor/trainingprocessor", []string{"internal/node", "internal/ticks", "internal/tracer/training", "internal/workload", collector, zap}},
	{"processor/...", []string{"internal/node", "internal/series", "internal/ticks", "internal/workload", collector, zap}},
	{"exporter/fileexporter", []string{"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter", collector}},
	{"exporter/stdoutexporter", []string{collector}},
	{"exporter/hubexporter/...", []string{"internal/hub", "internal/hub/access", "internal/hub/events", "internal/hub/peer", "github.com/prometheus/otlptranslator", "google.golang.org/grpc/...", collector, zap}},
	{"exporter/pageexporter/...", []string{
		"internal/rebind", "github.com/prometheus/client_model/go", "github.com/prometheus/common/...", "github.com/prometheus/otlptranslator", collector, zap,
	}},

	// Between the Collector's queue and its storage.
	{"internal/requeue", []string{collector}},

	// The hub reads from its store. It knows no device and no Collector.
	{"internal/hub/growth", []string{"github.com/prometheus/prometheus/..."}},
	{"internal/hub/peer", nil},
	{"internal/hub/share", nil},
	{"internal/hub/ui", nil},
	{"internal/hub/access", []string{"internal/fleet"}},
	{"internal/hub/audit", nil},
	{"internal/hub/events", []string{"internal/hub/share", "github.com/prometheus/client_golang/..."}},
	{"internal/hub/triage", []string{"internal/hub/access", "internal/hub/events"}},
	{"internal/hub/server", []string{
		"internal/cost", "internal/device", "internal/fleet", "internal/hub", "internal/hub/access", "internal/hub/audit", "internal/hub/events", "internal/hub/peer", "internal/hub/rules", "internal/hub/share", "internal/hub/triage", "internal/hub/ui", "internal/hub/view", "internal/logging", "internal/optional", "internal/query", "internal/rebind", "internal/slo", "internal/slurm",
		"internal/workload/kubeapi", "exporter/hubexporter", zap,
	}},
	{"internal/hub/view", []string{"internal/natural", "internal/cost", "internal/cost/tokens", "internal/fleet", "internal/fleet/queue", "internal/fleet/serving", "internal/fleet/sizing", "internal/fleet/training", "internal/optional", "internal/hub/...", "internal/query", "internal/remote", "internal/slo"}},
	{"internal/hub/days", []string{"internal/fleet", "internal/query", "github.com/klauspost/compress/zstd", "golang.org/x/sync/errgroup"}},
	{"internal/hub/disk", []string{"github.com/prometheus/prometheus/...", xsys}},
	{"internal/hub/...", []string{"internal/hub/...", "internal/fleet", "internal/fleet/queue", "internal/folder", "internal/query", "internal/rebind", "github.com/oklog/ulid/v2", "github.com/prometheus/...", xsys}},

	// Output of the process, without secrets.
	{"internal/redact", nil},
	{"internal/logging", []string{"internal/redact", zap}},

	// The agent is a Collector with a list of components. It knows no vendor and no hub.
	{"internal/agent", []string{
		"internal/folder", "internal/local", "internal/logging", "internal/node", "internal/redact", "internal/tracer/inspect", "internal/tracer/profile/encode", "internal/workload",
		"exporter/...", "extension/...", "processor/...", "receiver/...",
		"github.com/open-telemetry/opentelemetry-collector-contrib/...", "go.yaml.in/yaml/v3", collector, zap,
	}},

	// The support bundle. The caller reads devices and runs checks.
	{"internal/bundle", []string{"internal/device", "internal/kmsg", "internal/logging", "internal/node", "internal/redact", "go.yaml.in/yaml/v3"}},

	// A simulated fleet, through an agent's receivers, into any store that a hub supports.
	{"internal/demo", []string{"internal/device/sim", "internal/local", "internal/node", "internal/scheduler/kube/simulated", "exporter/hubexporter", "receiver/gpureceiver", "receiver/inferencereceiver", "receiver/schedulerreceiver", collector, zap}},

	// The command has flags and prints. It knows no Collector: agent, demo and hub/server do.
	// Only main uses the command.
	{"internal/cli/billing", []string{"internal/cost", "internal/cost/tokens", "internal/fleet", "internal/fleet/queue", "internal/fleet/serving", "internal/fleet/sizing", "internal/fleet/training", "internal/optional", "internal/query", "internal/scheduler"}},
	{"internal/cli/profiling", []string{"internal/agent", "internal/tracer/inspect", "internal/tracer/profile/encode", "internal/tracer/profile/sampler", "github.com/spf13/cobra"}},
	{"internal/cli/tui", []string{"internal/device", "internal/fleet", "charm.land/...", "github.com/charmbracelet/..."}},
	{"internal/cli/render", []string{
		"internal/hub/days", "internal/hub/disk",
		"internal/check", "internal/check/worker", "internal/device", "internal/health", "internal/node", "internal/scheduler/accounting",
		"internal/tracer", "internal/tracer/anomaly", "internal/tracer/inspect", "internal/workload",
	}},
	{"internal/cli", []string{
		"internal/agent", "internal/bundle", "internal/check/...", "internal/cli/billing", "internal/cli/profiling", "internal/cli/render", "internal/cli/tui", "internal/cost", "internal/cost/tokens", "internal/demo", "internal/device/...",
		"internal/fleet", "internal/fleet/queue", "internal/fleet/serving", "internal/health", "internal/hub/days", "internal/hub/disk", "internal/hub/rules", "internal/hub/server", "internal/local", "internal/logging", "internal/natural", "internal/node", "internal/query", "internal/remote", "internal/redact",
		"internal/scheduler/accounting", "internal/scheduler/kube/live", "internal/scheduler/slurmctl", "internal/slo", "internal/tracer/...", "internal/workload", "internal/workload/kubeapi", "exporter/hubexporter",
		"charm.land/...", "github.com/charmbracelet/...", "github.com/spf13/cobra", "go.yaml.in/yaml/v3", zap,
	}},
	{"cmd/...", []string{"internal/cli"}},

	// Tools of this repository only.
	{"internal/layers", nil},
	{"internal/await", nil},
	{"internal/programtest", nil},
	{"e2e", []string{"internal/device/nvidia/nvmltest"}},
	{"bench/...", nil},
	{"tools/...", nil},
}

// restricted lists imports, including the standard library, that only some packages may use. Test
// files are exempt.
var restricted = []struct {
	imp  string
	only []string
}{
	// The agent runs no other program while it samples.
	{"os/exec", []string{"internal/check/worker", "internal/local/fleettest", "internal/device/nvidia/nvmltest", "internal/slurm", "e2e", "tools/..."}},
	// With them the linker must keep every exported method of everything: see linked_test.go.
	{"html/template", nil},
	{"text/template", nil},
	{"testing/...", []string{"internal/await", "internal/device/nvidia/nvmltest", "internal/programtest"}},
	{"unsafe", []string{"internal/check/ata", "internal/check/ipmi", "internal/check/nvme", "internal/dlopen", "internal/device/...", "internal/tracer/probe"}},
	// Everything upstream of a pipeline is plain Go values.
	{pdata, []string{"receiver/...", "processor/...", "exporter/...", "internal/demo", "internal/series", "internal/ticks", "internal/tracer/profile/encode"}},
	{"internal/device/nvidia/nvmltest", []string{"e2e"}},
	{"internal/device/devicetest", nil},
	{"internal/query/querytest", []string{"internal/cost/worldtest"}},
	{"internal/cost/worldtest", nil},
	{"internal/local/fleettest", nil},
	{"internal/tracer/tracertest", nil},
	{"internal/await", nil},
	{"internal/programtest", nil},
}

// meaningless names attract unrelated code. A package is named after its one idea.
var meaningless = []string{"common", "helper", "helpers", "misc", "pkg", "shared", "types", "util", "utils"}

func TestLayers(t *testing.T) {
	for _, v := range violations(t, os.DirFS("../..")) {
		t.Error(v)
	}
}

// violations returns the forbidden imports of the module at fsys.
func violations(t *testing.T, fsys fs.FS) []string {
	t.Helper()
	var bad []string
	placed := map[string]bool{}
	err := fs.WalkDir(fsys, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && file != "." && (strings.ContainsAny(d.Name()[:1], "._") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if _, err := fs.Stat(fsys, path.Join(file, "go.mod")); err == nil && d.IsDir() && file != "." {
			return fs.SkipDir // another module: what make collector generated
		}
		if d.IsDir() || path.Ext(file) != ".go" {
			return nil
		}
		pkg := path.Dir(file)
		if !placed[pkg] {
			placed[pkg] = true
			bad = append(bad, misplaced(pkg)...)
		}
		if strings.HasSuffix(file, "_test.go") {
			return nil
		}
		src, err := fs.ReadFile(fsys, file)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			imp, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if !allowed(pkg, imp) {
				bad = append(bad, file+" must not import "+imp)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bad
}

// misplaced returns what is wrong with the name or place of a package.
func misplaced(pkg string) []string {
	var bad []string
	for name := range strings.SplitSeq(pkg, "/") {
		if slices.Contains(meaningless, name) {
			bad = append(bad, fmt.Sprintf("%s: %q is meaningless, name the package after what it does", pkg, name))
		}
	}
	if _, ok := mayImport(pkg); !ok {
		bad = append(bad, pkg+" has no layer: list its allowed imports in internal/layers")
	}
	return bad
}

func allowed(pkg, imp string) bool {
	imp, ours := strings.CutPrefix(imp, module)
	for _, r := range restricted {
		if covers(r.imp, imp) && !covered(pkg, r.only) {
			return false
		}
	}
	host, _, _ := strings.Cut(imp, "/")
	if !ours && !strings.Contains(host, ".") {
		return true // the standard library
	}
	may, _ := mayImport(pkg)
	return covered(imp, may) || strings.HasPrefix(imp, pkg+"/internal/")
}

func mayImport(pkg string) (may []string, ok bool) {
	for _, l := range layers {
		if covers(l.pkg, pkg) {
			return l.may, true
		}
	}
	return nil, false
}

func covered(pkg string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, pkg) })
}

func covers(pattern, pkg string) bool {
	tree, all := strings.CutSuffix(pattern, "/...")
	return pkg == tree || all && strings.HasPrefix(pkg, tree+"/")
}

// Catches rules that never fail.
func TestLayersCatch(t *testing.T) {
	f := func(file, imp, want string) {
		t.Helper()
		src := fmt.Sprintf("package p\n\nimport _ %q\n", imp)
		got := strings.Join(violations(t, fstest.MapFS{file: {Data: []byte(src)}}), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s importing %s gives %q, want %q", file, imp, got, want)
		}
	}
	const refused = "must not import"
	f("internal/device/amd/amd.go", module+"internal/device", "")
	f("internal/device/amd/amd.go", module+"internal/device/nvidia", refused)
	f("internal/device/amd/amd.go", module+"internal/node", refused)
	f("internal/device/device.go", module+"internal/device/sim", refused)
	f("internal/device/device.go", "github.com/google/go-cmp/cmp", refused)
	f("internal/device/amd/amd.go", "os/exec", refused)
	f("internal/device/amd/amd_test.go", "os/exec", "")
	f("internal/node/node.go", module+"internal/local", refused)
	f("internal/node/node.go", "go.opentelemetry.io/collector/pdata/pmetric", refused)
	f("internal/node/node.go", "testing", refused)
	f("internal/node/node.go", "testing/synctest", refused)
	f("internal/node/node.go", "unsafe", refused)
	f("internal/local/local.go", module+"internal/device/nvidia/nvmltest", refused)
	f("internal/device/nvidia/gpu.go", module+"internal/device/nvidia/nvmltest", refused)
	f("internal/device/nvidia/nvmltest/nvmltest.go", "testing", "")
	f("extension/gpuextension/extension.go", "go.opentelemetry.io/collector/component", "")
	f("extension/gpuextension/extension.go", "go.opentelemetry.io/collector/pdata/pmetric", refused)
	f("receiver/gpureceiver/emit.go", "go.opentelemetry.io/collector/pdata/pmetric", "")
	f("receiver/gpureceiver/emit.go", module+"receiver/gpureceiver/internal/metadata", "")
	f("receiver/gpureceiver/emit.go", module+"extension/gpuextension", refused)
	f("receiver/gpureceiver/emit.go", module+"internal/local", refused)
	f("receiver/gpureceiver/emit.go", module+"internal/cli", refused)
	f("exporter/pageexporter/page.go", module+"internal/node", refused)
	f("internal/cli/agent.go", "go.opentelemetry.io/collector/otelcol", refused)
	f("internal/cli/agent.go", module+"receiver/gpureceiver", refused)
	f("internal/cli/check.go", "os/exec", refused)
	f("internal/cli/render/trace.go", module+"internal/cli", refused)
	f("internal/agent/agent.go", module+"internal/hub", refused)
	f("internal/agent/agent.go", module+"internal/device/nvidia", refused)
	f("internal/agent/agent.go", "go.opentelemetry.io/collector/pdata/pmetric", refused)
	f("internal/hub/server/server.go", module+"internal/node", refused)
	f("internal/hub/server/server.go", module+"internal/agent", refused)
	f("internal/bundle/bundle.go", module+"internal/local", refused)
	f("internal/tracer/inspect/report.go", module+"internal/tracer/live", refused)
	f("internal/tracer/inspect/report.go", module+"internal/tracer/tracertest", refused)
	f("internal/demo/demo.go", module+"internal/hub/server", refused)
	f("cmd/gpumeter/main.go", module+"internal/cli", "")
	f("cmd/gpumeter/main.go", module+"internal/local", refused)
	f("internal/banana/banana.go", "fmt", "internal/banana has no layer")
	f("internal/banana/banana_test.go", "fmt", "internal/banana has no layer")
	f("internal/device/util/x.go", "fmt", `"util" is meaningless`)
	f("internal/device/testdata/x.go", "os/exec", "")
}

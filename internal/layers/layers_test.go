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

// Third parties by what they bring.
const (
	collector = "go.opentelemetry.io/..."
	pdata     = "go.opentelemetry.io/collector/pdata/..."
	zap       = "go.uber.org/zap/..."
	xsys      = "golang.org/x/sys/..."
)

// layers says what the packages of this module may import besides the standard library
// and what is below their own internal folder. A name that ends in /... covers the
// package and all below it. The first match decides, and a package that nothing matches
// fails: a new folder states its place here first. Test files are free.
var layers = []struct {
	pkg string
	may []string
}{
	// Small readers of the kernel, one idea each. They know nothing of ours.
	{"internal/dlopen", []string{"github.com/ebitengine/purego"}},
	{"internal/sysfs", []string{xsys}},
	{"internal/kmsg", []string{xsys}},
	{"internal/openfiles", nil},
	{"internal/cloud", nil},
	{"internal/host", []string{xsys}},
	{"internal/slurm", nil},

	// How a store of time series is asked, the hub's own or any other.
	{"internal/query", nil},

	// The model, and one package a vendor. No vendor knows another, or what a metric is.
	{"internal/device", nil},
	{"internal/device/nvidia/nvmltest", nil},
	{"internal/device/devicetest", []string{"internal/device"}},
	{"internal/device/tpu", []string{
		"internal/device", "internal/openfiles", "internal/sysfs", xsys, "github.com/prometheus/common/...", "google.golang.org/grpc/...", "google.golang.org/protobuf/...",
	}},
	{"internal/device/...", []string{"internal/device", "internal/dlopen", "internal/kmsg", "internal/openfiles", "internal/sysfs", xsys}},

	// Who the work on a device belongs to.
	{"internal/workload", []string{"internal/device"}},
	{"internal/workload/kubeapi", []string{"go.yaml.in/yaml/v3"}},
	{"internal/workload/kubelet/...", []string{"google.golang.org/grpc/...", "k8s.io/kubelet/..."}},
	{"internal/workload/cgroup", nil},
	{"internal/workload/kubernetes", []string{"internal/workload", "internal/workload/cgroup", "internal/workload/kubeapi", "internal/workload/kubelet"}},
	{"internal/workload/runtime", []string{"internal/workload", "internal/workload/cgroup"}},
	{"internal/workload/...", []string{"internal/slurm", "internal/workload", "internal/workload/cgroup", "internal/sysfs", xsys}},

	// Pure functions over values.
	{"internal/health", []string{"internal/device", "internal/workload"}},
	{"internal/cost", []string{"internal/query", "go.yaml.in/yaml/v3"}},

	// May a node take work: reads of the kernel, and findings of the rules.
	{"internal/check/ata", []string{xsys}},
	{"internal/check/ipmi", []string{xsys}},
	{"internal/check/nvme", []string{xsys}},
	{"internal/check", []string{"internal/check/ata", "internal/check/ipmi", "internal/check/nvme", "internal/device", "internal/health", "internal/kmsg", "internal/openfiles", "internal/sysfs", xsys}},

	// The one owner of live state gets vendors and sources as interfaces from local.
	{"internal/node", []string{"internal/device", "internal/workload", "internal/health"}},
	{"internal/local", []string{"internal/cloud", "internal/device/...", "internal/node", "internal/workload/..."}},

	// The plain half of the receivers of these names.
	{"internal/inference", []string{"github.com/prometheus/common/..."}},
	{"internal/scheduler", []string{"internal/slurm"}},
	{"internal/scheduler/...", []string{"internal/scheduler", "internal/slurm", "github.com/prometheus/common/..."}},
	{"internal/tracer", nil},
	{"internal/tracer/probe", []string{"internal/tracer", "github.com/cilium/ebpf/...", xsys}},
	{"internal/tracer/target", []string{"internal/tracer", xsys}},
	{"internal/tracer/ncclinfo", nil},
	{"internal/tracer/anomaly", []string{"internal/host", "internal/tracer"}},
	{"internal/tracer/live", []string{"internal/tracer/...", "github.com/ianlancetaylor/demangle", xsys}},

	// Collector components. None knows another. Only the extension opens devices.
	{"extension/...", []string{"internal/local", "internal/node", "internal/workload", collector, zap}},
	{"receiver/gpureceiver/...", []string{"internal/device", "internal/node", "internal/health", "internal/workload", collector, zap}},
	{"receiver/cudareceiver/...", []string{"internal/device", "internal/host", "internal/node", "internal/tracer/...", "internal/workload", collector, zap}},
	{"receiver/hostreceiver/...", []string{"internal/host", "internal/node", collector, zap}},
	{"receiver/...", []string{"internal/inference", "internal/node", "internal/scheduler/...", "internal/workload", collector, zap}},
	{"processor/...", []string{"internal/node", "internal/workload", collector, zap}},
	{"exporter/hubexporter/...", []string{"internal/hub", "github.com/prometheus/otlptranslator", "google.golang.org/grpc/...", collector, zap}},
	{"exporter/pageexporter/...", []string{
		"github.com/prometheus/client_model/go", "github.com/prometheus/common/...", "github.com/prometheus/otlptranslator", collector, zap,
	}},

	// What is between the Collector's queue and its storage.
	{"internal/requeue", []string{collector}},

	// The hub reads what arrived. It knows no device and no Collector.
	{"internal/hub/ui", nil},
	{"internal/hub/view", []string{"internal/cost", "internal/hub/...", "internal/query"}},
	{"internal/hub/...", []string{"internal/hub/...", "internal/cost", "internal/health", "internal/query", "github.com/prometheus/...", xsys}},

	// The command may use all of it, and only main uses the command.
	{"internal/cli/...", []string{
		"internal/...", "exporter/...", "extension/...", "processor/...", "receiver/...",
		"charm.land/...", "github.com/charmbracelet/...", "github.com/open-telemetry/opentelemetry-collector-contrib/...",
		"github.com/prometheus/client_golang/...", "github.com/spf13/cobra", "go.yaml.in/yaml/v3", collector, zap,
	}},
	{"cmd/...", []string{"internal/cli"}},

	// What is built for this repository only.
	{"internal/layers", nil},
	{"internal/await", nil},
	{"e2e", []string{"internal/device/nvidia/nvmltest"}},
	{"bench/...", nil},
	{"tools/...", nil},
}

// restricted are imports, of the standard library too, that only some packages may use.
// Test files may use them all.
var restricted = []struct {
	imp  string
	only []string
}{
	// The agent runs no other program while it samples.
	{"os/exec", []string{"internal/cli/...", "internal/device/nvidia/nvmltest", "internal/slurm", "e2e", "tools/..."}},
	{"testing/...", []string{"internal/await", "internal/device/nvidia/nvmltest"}},
	{"unsafe", []string{"internal/check/ata", "internal/check/ipmi", "internal/check/nvme", "internal/dlopen", "internal/device/...", "internal/tracer/probe"}},
	// Everything before a pipeline is plain Go values.
	{pdata, []string{"receiver/...", "processor/...", "exporter/...", "internal/cli/..."}},
	{"internal/device/nvidia/nvmltest", []string{"e2e"}},
	{"internal/device/devicetest", nil},
	{"internal/await", nil},
}

// meaningless names invite everything. A package is named after its one idea.
var meaningless = []string{"common", "helper", "helpers", "misc", "pkg", "shared", "types", "util", "utils"}

func TestLayers(t *testing.T) {
	for _, v := range violations(t, os.DirFS("../..")) {
		t.Error(v)
	}
}

// violations returns what is wrong with the imports of the module at fsys.
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

// misplaced returns what is wrong with the name of a package.
func misplaced(pkg string) []string {
	var bad []string
	for name := range strings.SplitSeq(pkg, "/") {
		if slices.Contains(meaningless, name) {
			bad = append(bad, fmt.Sprintf("%s: %q says nothing, name the package after what it does", pkg, name))
		}
	}
	if _, ok := mayImport(pkg); !ok {
		bad = append(bad, pkg+" has no layer: say in internal/layers what it may import")
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

// The rules above are worth what they catch.
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
	f("cmd/gpumeter/main.go", module+"internal/cli", "")
	f("cmd/gpumeter/main.go", module+"internal/local", refused)
	f("internal/banana/banana.go", "fmt", "internal/banana has no layer")
	f("internal/banana/banana_test.go", "fmt", "internal/banana has no layer")
	f("internal/device/util/x.go", "fmt", `"util" says nothing`)
	f("internal/device/testdata/x.go", "os/exec", "")
}

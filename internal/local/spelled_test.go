//go:build linux

package local

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gpumeter/gpumeter/internal/device"
)

// spellings lists the files outside the vendor's package and the simulator that may spell out
// a fact about a vendor, and why. A rule about a mechanism of one vendor may do so; a list of
// vendors may not.
var spellings = []struct{ file, why string }{
	{"internal/health/links.go", "a rule names the vendors whose drivers report the slot"},
	{"internal/health/state.go", "a rule about NVIDIA's driver only"},
	{"internal/health/xid.go", "XIDs are NVIDIA's"},
	{"internal/health/unlisted.go", "XIDs are NVIDIA's"},
	{"internal/check/kernellog.go", "XIDs are NVIDIA's"},
	{"internal/check/gpu.go", "NVSwitches and the fabric manager are NVIDIA's"},
	{"internal/workload/slurm/machine.go", "MIG instances, as slurmd finds them in NVIDIA's /proc"},
	{"internal/workload/slurm/jobmap.go", "names of files that dcgm-exporter reads"},
}

// fact is a string that only the package of its vendor may spell out.
type fact struct {
	vendor, text string
	in           func(literal string) bool
}

// facts returns the strings that may not be spelled out elsewhere. A word that also has other
// meanings only matches as a whole literal, or at the beginning of a literal.
func facts(vendors device.Vendors) []fact {
	var list []fact
	for i := range vendors {
		v := &vendors[i]
		add := func(text string, in func(literal string) bool) {
			if text != "" { // TestVendors reports missing facts
				list = append(list, fact{v.Name, text, in})
			}
		}
		part := func(text string) { add(text, func(l string) bool { return strings.Contains(l, text) }) }
		whole := func(text string) { add(text, func(l string) bool { return l == text }) }
		whole(v.Name)
		part(v.PCI)
		for _, f := range v.DeviceFiles {
			part(strings.TrimPrefix(f, "/"))
		}
		for _, m := range slices.Concat(v.Modules, v.LogWords) {
			if whole(m); m != v.Name && len(m) > 3 {
				word := regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(regexp.QuoteMeta(m), "_", "[-_]") + `\b`)
				add(m, word.MatchString)
			}
		}
		for _, r := range v.Resources {
			name, _, _ := strings.Cut(r.Name, "*")
			part(name)
		}
		for _, s := range slices.Concat(v.ModelLabels, v.Services) {
			part(s)
		}
		for _, p := range v.ModelPrefixes {
			add(p, func(l string) bool { return strings.HasPrefix(l, p) })
		}
	}
	return list
}

// A fact that is spelled out a second time makes a list that the next vendor is missing from.
func TestSpelledOnce(t *testing.T) {
	bad := spelled(t, os.DirFS("../.."), Vendors())
	for _, s := range spellings {
		if len(bad[s.file]) == 0 {
			t.Errorf("%s no longer spells out a fact: remove it from spellings", s.file)
		}
		delete(bad, s.file)
	}
	for _, file := range slices.Sorted(maps.Keys(bad)) {
		t.Error(strings.Join(bad[file], "\n"))
	}
}

// spelled returns, by file, the facts that the module at fsys spells out outside the vendors'
// packages: in Go string literals, and in any word of the page.
func spelled(t *testing.T, fsys fs.FS, vendors device.Vendors) map[string][]string {
	t.Helper()
	list := facts(vendors)
	bad := map[string][]string{}
	report := func(file string, line int, literal string) {
		for _, f := range list {
			if f.in(literal) {
				bad[file] = append(bad[file], fmt.Sprintf("%s:%d: %q is a fact about %s: take it from device.Vendors, or add the file to spellings", file, line, f.text, f.vendor))
				return
			}
		}
	}
	err := fs.WalkDir(fsys, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			own := path.Dir(file) == "internal/device" && (vendors.ByName(d.Name()).Name != "" || d.Name() == "sim")
			if own || file != "." && (strings.ContainsAny(d.Name()[:1], "._") || slices.Contains([]string{"testdata", "node_modules", "e2e", "tools", "bench"}, d.Name())) {
				return fs.SkipDir
			}
			return nil
		}
		page := strings.HasPrefix(file, "web/src/")
		isGo := path.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go")
		if !page && !isGo {
			return nil
		}
		src, err := fs.ReadFile(fsys, file)
		if err != nil {
			return err
		}
		if page {
			for i, line := range strings.Split(string(src), "\n") {
				for _, word := range regexp.MustCompile("[\"'`(|/]+").Split(line, -1) {
					report(file, i+1, word)
					report(file, i+1, word+" ") // in a pattern such as (NVIDIA|AMD)
				}
			}
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil {
					report(file, set.Position(l.Pos()).Line, text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bad
}

// Catches a search that misses a spelled-out fact, or reports an ordinary word.
func TestSpelledCatches(t *testing.T) {
	f := func(file, text, want string) {
		t.Helper()
		if strings.HasSuffix(file, ".go") {
			text = "package p\n\n// nvidia.com/gpu, /dev/nvidia\nvar x = " + text + "\n"
		}
		got := strings.Join(spelled(t, fstest.MapFS{file: {Data: []byte(text)}}, Vendors())[file], "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s with %s gives %q, want %q", file, text, got, want)
		}
	}
	f("internal/cost/quota.go", `"nvidia.com/gpu"`, "nvidia")
	f("internal/cost/quota.go", `"tenstorrent.com/n150"`, "tenstorrent")
	f("internal/check/x.go", `"/dev/neuron"`, "neuron")
	f("internal/check/x.go", `"/host/dev/kfd"`, "amd")
	f("internal/cli/bundle.go", "`\\b(amdgpu|xe)\\b`", "amdgpu")
	f("internal/cli/bundle.go", `[]string{"xe"}`, "intel")
	f("internal/cli/tui/columns.go", `"Instinct "`, "amd")
	f("internal/check/x.go", `"0x1e52"`, "tenstorrent")
	f("web/src/format.ts", "model.replace(/^(NVIDIA|AMD) /, '')", "nvidia")
	f("web/src/format.ts", "model.replace('Data Center GPU ', '')", "intel")
	f("internal/cli/agent.go", `"measure PCIe traffic on NVIDIA GPUs"`, "") // a word in a sentence
	f("internal/cli/agent.go", `"nvidia-library"`, "")                      // the name of an option
	f("internal/device/nvidia/x.go", `"/dev/nvidia"`, "")
	f("internal/device/sim/x.go", `"nvidia"`, "")
	f("internal/cost/quota_test.go", `"nvidia.com/gpu"`, "")
}

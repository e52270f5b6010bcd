package layers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dropped are the modules that the binary that people get has none of, or an empty shell in hollow/: the SDKs of three
// clouds and the client of Kubernetes, which the hub's store names and never calls.
var dropped = []string{
	"cloud.google.com/go/auth", "github.com/Azure", "github.com/AzureAD", "github.com/aws", "github.com/fxamacker/cbor", "github.com/google/s2a-go",
	"github.com/googleapis", "github.com/mwitkow/go-conntrack", "github.com/prometheus/sigv4", "golang.org/x/net/trace", "google.golang.org/api",
	"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog", "net/rpc",
}

// keepers make the linker keep every exported method of everything if something calls them: they find methods by
// name. Those that import them here do not in our binary.
var keepers = map[string][]string{
	"html/template": {"go.opentelemetry.io/collector/service/internal/zpages"},
	"text/template": {"github.com/spf13/cobra", "html/template"},
}

// A dependency that brings an SDK back adds tens of packages to every node, and half a second to each start on a slow one.
func TestLinked(t *testing.T) {
	cmd := exec.Command("../../tools/lean.sh", "list")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tools/lean.sh list: %v", err)
	}
	hollow, err := filepath.Abs("../../hollow")
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(packages) < 500 {
		t.Errorf("only %d packages are listed", len(packages))
	}
	for _, problem := range linked(packages, hollow) {
		t.Error(problem)
	}
}

// linked returns what is wrong with packages, each with its path, its folder and its imports.
func linked(packages []string, hollow string) []string {
	var bad []string
	for _, line := range packages {
		f := strings.SplitN(line, " ", 3)
		if len(f) != 3 {
			bad = append(bad, fmt.Sprintf("cannot read %q", line))
			continue
		}
		for _, module := range dropped {
			if (f[0] == module || strings.HasPrefix(f[0], module+"/")) && !strings.HasPrefix(f[1], hollow+"/") {
				bad = append(bad, f[0]+" is linked: add what names it to hollow/, or do without")
			}
		}
		for imp := range strings.SplitSeq(f[2], ",") {
			if only, ok := keepers[imp]; ok && !slices.Contains(only, f[0]) {
				bad = append(bad, fmt.Sprintf("%s imports %s: the linker would keep every exported method", f[0], imp))
			}
		}
	}
	return bad
}

func TestLinkedFinds(t *testing.T) {
	for line, want := range map[string]string{
		"github.com/aws/smithy-go /mod/smithy-go errors":               "is linked",
		"k8s.io/client-go/rest /mod/client-go/rest net":                "is linked",
		"k8s.io/client-go/rest /repo/hollow/client-go/rest net":        "",
		"k8s.io/kubelet/pkg/apis/podresources/v1 /mod/kubelet context": "",
		"example.com/a /mod/a errors,html/template":                    "exported method",
		"github.com/spf13/cobra /mod/cobra text/template":              "",
		"nonsense": "cannot read",
	} {
		got := strings.Join(linked([]string{line}, "/repo/hollow"), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

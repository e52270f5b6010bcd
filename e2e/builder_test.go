//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Catches components that do not build into a custom Collector.
func TestBuilder(t *testing.T) {
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := tryCommand(t, repo, "go", "tool", "-modfile=tools.mod", "builder", "version"); err != nil {
		skip(t, "builder", out)
	}
	dir := t.TempDir()
	manifest := copyManifest(t, repo, dir)
	command(t, repo, "go", "tool", "-modfile=tools.mod", "builder", "--config", manifest)
	collector := filepath.Join(dir, "otelcol-gpu", "otelcol-gpu")

	if out := command(t, dir, "go", "version", "-m", collector); !regexp.MustCompile(`build\s+CGO_ENABLED=0`).MatchString(out) {
		t.Error("the Collector was built with cgo")
	}
	components := command(t, dir, collector, "components")
	for _, want := range []string{"extensions:\n    - name: gpu\n", "receivers:\n    - name: gpu\n", "    - name: scheduler\n", "processors:\n    - name: gpuspan\n", "    - name: training\n", "    - name: workload\n", "exporters:\n    - name: page\n"} {
		if !strings.Contains(components, want) {
			t.Errorf("%q is not among the components:\n%s", want, components)
		}
	}

	config := filepath.Join(repo, "e2e", "testdata", "collector.yaml")
	command(t, dir, collector, "validate", "--config", config)
	p := start(t, collector, "--config", config)
	page := "http://" + p.find(t, pageAddress) + "/metrics"
	eventually(t, "the page shows the GPUs", func() error {
		body, err := get(t, page)
		if err == nil && (strings.Count(body, "\ngpu_up{") != 8 || strings.Count(body, "\ngpu_partition_up{") != 4) {
			err = fmt.Errorf("%d of gpu_up, %d of gpu_partition_up", strings.Count(body, "\ngpu_up{"), strings.Count(body, "\ngpu_partition_up{"))
		}
		return err
	})
	if code := p.stop(t); code != 0 {
		t.Errorf("the Collector ended with %d", code)
	}
}

// copyManifest copies the manifest to dir, with this checkout in place of a release.
func copyManifest(t *testing.T, repo, dir string) string {
	t.Helper()
	src, err := os.ReadFile("testdata/builder.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const ours = "gomod: github.com/gpumeter/gpumeter v0.0.0\n"
	text := strings.ReplaceAll(string(src), ours, ours+"    path: "+repo+"\n")
	text = strings.Replace(text, "output_path: .", "output_path: "+dir, 1)
	path := filepath.Join(dir, "builder.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Catches a manifest of gpumeter-collector that does not build, and a component in it that does not
// work beside ours. The first build takes minutes.
func TestCollectorBuild(t *testing.T) {
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := tryCommand(t, repo, "go", "tool", "-modfile=tools.mod", "builder", "version"); err != nil {
		skip(t, "builder", out)
	}
	command(t, repo, "make", "collector", "VERSION=v9.9.9")
	collector := filepath.Join(repo, "bin", "gpumeter-collector")
	if out := command(t, repo, collector, "--version"); !strings.Contains(out, "v9.9.9") {
		t.Errorf("the version is %q", out)
	}
	config := filepath.Join(repo, "e2e", "testdata", "gpumeter-collector.yaml")
	command(t, repo, collector, "validate", "--config", config)
	p := start(t, collector, "--config", config)
	page := "http://" + p.find(t, pageAddress) + "/metrics"
	eventually(t, "the page shows the GPUs as the processors left them", func() error {
		body, err := get(t, page)
		if err != nil {
			return err
		}
		up := regexp.MustCompile(`(?m)^gpu_up\{.*gpu_vendor="nv".*rack="r1".*site="lab".*\} 1$`).FindAllString(body, -1)
		if len(up) != 8 || strings.Contains(body, "\ngpu_info{") {
			return fmt.Errorf("%d of gpu_up, want 8; gpu_info: %v", len(up), strings.Contains(body, "\ngpu_info{"))
		}
		return nil
	})
	if code := p.stop(t); code != 0 {
		t.Errorf("the Collector ended with %d", code)
	}
}

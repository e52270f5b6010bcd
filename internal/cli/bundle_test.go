//go:build linux

package cli_test

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/local"
)

// unpack returns the files of an archive by name.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(head.Name, "gpumeter-bundle/")] = string(text)
	}
}

// bundleOf runs doctor --bundle with variables, and returns the archive.
func bundleOf(t *testing.T, env []string, args ...string) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	cmd := command(t.Context(), env, append([]string{"doctor", "--bundle", file}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil && cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("the bundle is for its owner only: %v, %v", st, err)
	}
	return unpack(t, file)
}

// A bundle has the version and the kernel log lines of every vendor's driver.
func TestBundleVendors(t *testing.T) {
	t.Parallel()
	files, log := map[string]string{}, ""
	modules := local.Vendors().Modules()
	for i, m := range modules {
		files["sys/module/"+m+"/version"] = m + "-1.2.3\n"
		log += fmt.Sprintf("4,%d,863990000000,-;%s 0000:01:00.0: probe failed\n", i, m)
	}
	files["dev/kmsg"] = log + "6,999,863990000000,-;usb 1-1: new device\n"
	_, flags := checkRoot(t, files)
	got := bundleOf(t, nil, flags[:4]...) // --root and --host-name
	for _, m := range modules {
		if !strings.Contains(got["versions.json"], m+"-1.2.3") || !strings.Contains(got["kernel.log"], "] "+m+" 0000:01:00.0") {
			t.Errorf("%s is missing in %s\n%s", m, got["versions.json"], got["kernel.log"])
		}
	}
	if strings.Contains(got["kernel.log"], "usb") {
		t.Errorf("lines of others: %s", got["kernel.log"])
	}
}

// No file of a bundle contains a planted secret or serial number; useful data is kept.
func TestBundleSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-sEcReT" // in all that must not be seen
	h := nvmltest.New(t, healthy)
	root, flags := checkRoot(t, map[string]string{
		"dev/kmsg": "4,1,863990000000,-;NVRM: GPU Board Serial Number: 1650" + "SERIALKMSG\n" +
			"4,2,863991000000,-;NVRM: Xid (PCI:0000:10:00): 31, pid=610, name=python3, MMU Fault\n" +
			"6,3,863992000000,-;some other driver says password=" + secret + "1\n" +
			"6,4,863993000000,-;amdgpu 0000:01:00.0: token=" + secret + "2\n",
		"sys/class/dmi/id/product_serial": "DMISERIAL0815\n",
		"proc/driver/nvidia/version":      "NVRM version: 580.1 DMISERIAL0815\n",
	})
	flags = flags[:4] // --root and --host-name
	config := write(t, "config.yaml", `
receivers: {gpu: {}}
extensions: {gpu: {root: `+root+`, nvidia_library: `+h.Library+`}}
exporters:
  otlphttp:
    endpoint: https://user:`+secret+`3@example.org/?api_key=`+secret+`4
    headers: {authorization: Bearer `+secret+`5, x-api-key: "${env:MY_TOKEN}"}
service:
  extensions: [gpu]
  pipelines: {metrics: {receivers: [gpu], exporters: [otlphttp]}}
`)
	env := []string{
		"MY_TOKEN=" + secret + "6", "OTEL_EXPORTER_OTLP_ENDPOINT=https://example.org", "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20" + secret + "7,x=" + secret + "8",
		"DB_PASSWORD=" + secret + "9",
	}
	for _, args := range [][]string{{}, {"--config", config}} {
		files := bundleOf(t, env, append(append(args, "--nvidia-library", h.Library), flags...)...)
		names := slices.Sorted(maps.Keys(files))
		if diff := cmp.Diff([]string{"README.txt", "check.json", "config.yaml", "devices.json", "doctor.json", "findings.json", "kernel.log", "versions.json"}, names); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		for name, text := range files {
			for _, bad := range []string{secret, "SERIALKMSG", "DMISERIAL0815"} {
				if i := strings.Index(text, bad); i >= 0 {
					t.Errorf("%v: %s has %q: %s", args, name, bad, text[max(0, i-100):i+len(bad)])
				}
			}
			if strings.HasSuffix(name, ".json") && !json.Valid([]byte(text)) {
				t.Errorf("%s is no JSON: %s", name, text)
			}
		}
		for name, good := range map[string]string{
			"kernel.log": "Xid (PCI:0000:10:00): 31", "devices.json": "GPU-00000000-0000-4000-8000-000000000001", "versions.json": "NVRM version: 580.1",
			"check.json": `"id": "gpu.xid"`, "doctor.json": "nvidia library", "config.yaml": "[REDACTED]",
		} {
			if !strings.Contains(files[name], good) {
				t.Errorf("%v: %s has no %q:\n%.1500s", args, name, good, files[name])
			}
		}
		if strings.Contains(files["kernel.log"], "some other driver") {
			t.Error("the kernel's log has more than the lines of drivers")
		}
	}
}

// A bundle is requested when something hangs, so writing it must not hang.
func TestBundleOfHungDriver(t *testing.T) {
	t.Parallel()
	h := nvmltest.New(t, healthy+"gpu 1 hang nvmlDeviceGetTemperature\n")
	_, flags := checkRoot(t, nil)
	files := bundleOf(t, nil, append([]string{"--nvidia-library", h.Library}, flags[:4]...)...)
	if !strings.Contains(files["check.json"], "GPU 1: no answer") {
		t.Errorf("check.json: %.2000s", files["check.json"])
	}
}

// A mistyped name must not overwrite a file.
func TestBundleKeepsFiles(t *testing.T) {
	t.Parallel()
	file := write(t, "precious", "data")
	line := oneLine(t, run(t, "doctor", "--bundle", file))
	if text, err := os.ReadFile(file); !strings.Contains(line, "exists") || err != nil || string(text) != "data" {
		t.Errorf("%q, and the file has %q", line, text)
	}
	oneLine(t, run(t, "doctor", "--config", file))
}

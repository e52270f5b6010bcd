//go:build linux

package nvidia

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
)

const soname = "libnvidia-ml.so.1"

// libraryDirs are the directories where drivers install libnvidia-ml: distributions,
// NVIDIA's container toolkit, WSL, NixOS, the GPU operator's driver container and GKE's
// host directory.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib64",
	"/usr/lib",
	"/usr/local/nvidia/lib64",
	"/usr/local/nvidia/lib",
	"/usr/lib/wsl/lib",
	"/run/opengl-driver/lib",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
	"/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
	"/run/nvidia/driver/usr/lib64",
	"/home/kubernetes/bin/nvidia/lib64",
}

// candidates returns the files to try below root, best first: the caller's directories, the
// usual ones, and those in the dynamic loader's configuration.
func candidates(root string, first []string) []string {
	var files []string
	seen := map[string]bool{}
	add := func(dir string) {
		file := filepath.Join(dir, soname)
		if dir != "" && !seen[file] {
			seen[file] = true
			files = append(files, file)
		}
	}
	for _, dir := range first {
		add(dir)
	}
	for _, dir := range libraryDirs {
		add(filepath.Join(root, dir))
	}
	confs, _ := filepath.Glob(filepath.Join(root, "/etc/ld.so.conf.d/*.conf")) // the only error is a bad pattern
	for _, conf := range confs {
		data, err := os.ReadFile(conf)
		if err != nil {
			continue // not our file to report on
		}
		for _, dir := range parseLoaderConf(string(data)) {
			add(filepath.Join(root, dir))
		}
	}
	return files
}

// parseLoaderConf returns the directories listed in a file of /etc/ld.so.conf.d.
func parseLoaderConf(data string) []string {
	var dirs []string
	lines := bufio.NewScanner(strings.NewReader(data))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line = strings.TrimSpace(line)
		if filepath.IsAbs(line) {
			dirs = append(dirs, line)
		}
	}
	return dirs
}

// nvml describes libnvidia-ml.
var nvml = vendorlib.Kind{
	Name: "NVIDIA's management library", File: soname, Init: "nvmlInit_v2",
	Codes: vendorlib.Codes{
		Lost: uint32(errGPULost), NotSupported: uint32(errNotSupported), Missing: uint32(errFunctionNotFound),
		Error: func(code uint32) error { return ret(code) },
		Never: func(code uint32) bool { return ret(code).never() },
		Quiet: func(code uint32) bool { return ret(code).quiet() },
	},
}

// caller makes NVML calls for one device.
type caller struct{ vendorlib.Caller }

func newCaller(lib *vendorlib.Library, handle uintptr) *caller {
	return &caller{vendorlib.Caller{Lib: lib, Handle: handle}}
}

// try calls sym without a selector and returns the return code.
//
//go:uintptrescapes
func (c *caller) try(sym string, args ...uintptr) ret {
	return ret(c.Try(sym, 0, args...))
}

// openLibrary opens the library that the options name, or the first usable one found. On a
// machine without one the error is device.ErrAbsent.
func openLibrary(o Options) (*vendorlib.Library, error) {
	return nvml.Open(o.Library, candidates(o.Root, o.LibraryDirs))
}

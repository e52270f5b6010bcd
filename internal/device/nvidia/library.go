//go:build linux

package nvidia

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/dlopen"
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
//
// The loader never searches by name: it would map a broken file that dlopen.Open rejects.
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

// library is an open libnvidia-ml. Functions are looked up by name at first use.
type library struct {
	*dlopen.Library
	symbols sync.Map // name -> *symbol
}

type symbol struct {
	name string
	fn   dlopen.Func
}

// get returns the function called name. Its fn is not OK if the library does not have it.
func (l *library) get(name string) *symbol {
	if s, ok := l.symbols.Load(name); ok {
		return s.(*symbol)
	}
	s, _ := l.symbols.LoadOrStore(name, &symbol{name, l.Lookup(name)})
	return s.(*symbol)
}

// missing returns the functions that were looked up and not found.
func (l *library) missing() []string {
	var names []string
	l.symbols.Range(func(_, v any) bool {
		if s := v.(*symbol); !s.fn.OK() {
			names = append(names, s.name)
		}
		return true
	})
	return names
}

// openLibrary opens the library that the options name, or the first usable one found. On a
// machine without one the error is device.ErrAbsent.
func openLibrary(o Options) (*library, error) {
	if o.Library != "" {
		lib, err := open(o.Library)
		if err != nil {
			return nil, err
		}
		return lib, nil
	}
	var errs []error
	for _, file := range candidates(o.Root, o.LibraryDirs) {
		lib, err := open(file)
		switch {
		case err == nil:
			return lib, nil
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, fmt.Errorf("no %s found: %w", soname, device.ErrAbsent)
}

func open(file string) (*library, error) {
	l, err := dlopen.Open(file)
	if err != nil {
		return nil, err
	}
	lib := &library{Library: l}
	if !lib.get("nvmlInit_v2").fn.OK() {
		return nil, errors.Join(fmt.Errorf("%s is not NVIDIA's management library: it has no nvmlInit_v2", file), l.Close())
	}
	return lib, nil
}

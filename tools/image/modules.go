package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	"golang.org/x/mod/module"
)

// allowed are the licenses that what we distribute may have: they ask for a copy of their text and, MPL, for the
// source of files that we do not change.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "Unlicense", "CC0-1.0", "0BSD"}

// component is a module or library in the binary.
type component struct {
	name, version string
	purl          string
	licenses      []string // SPDX identifiers
	texts         []text
}

type text struct {
	file string
	data string
}

// linked returns what a binary is linked from: Go, its modules, and the libraries of the page below the folder page.
// Modules of hollow/ are ours.
func linked(binary, page string) ([]component, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(info.GoVersion, "go")
	root := runtime.GOROOT() //nolint:staticcheck // -trimpath leaves it empty, then the environment has it
	if root == "" {
		root = os.Getenv("GOROOT")
	}
	out := []component{{name: "std", version: version, purl: "pkg:golang/std@" + version}}
	dirs := []string{root}
	cache := os.Getenv("GOMODCACHE")
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			if !strings.HasPrefix(dep.Replace.Path, "./hollow/") {
				return nil, fmt.Errorf("%s is replaced by %s", dep.Path, dep.Replace.Path)
			}
			continue
		}
		escaped, err := module.EscapePath(dep.Path)
		if err != nil {
			return nil, err
		}
		v, err := module.EscapeVersion(dep.Version)
		if err != nil {
			return nil, err
		}
		out = append(out, component{name: dep.Path, version: dep.Version, purl: "pkg:golang/" + dep.Path + "@" + dep.Version})
		dirs = append(dirs, filepath.Join(cache, escaped+"@"+v))
	}
	libraries, err := libraries(filepath.Join(page, "../package.json"))
	if err != nil {
		return nil, err
	}
	for _, l := range libraries {
		out = append(out, component{name: l[0], version: l[1], purl: "pkg:npm/" + l[0] + "@" + l[1]})
		dirs = append(dirs, filepath.Join(page, l[0]))
	}
	var bad []error
	for i := range out {
		if err := out[i].read(dirs[i]); err != nil {
			bad = append(bad, fmt.Errorf("%s %s: %w", out[i].name, out[i].version, err))
		}
	}
	return out, errors.Join(bad...)
}

// libraries returns the names and versions of what the page is made from.
func libraries(file string) ([][2]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var p struct{ Dependencies map[string]string }
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var out [][2]string
	for name, version := range p.Dependencies {
		out = append(out, [2]string{name, version})
	}
	slices.SortFunc(out, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out, nil
}

// read reads the licenses and notices in the folder of a component.
func (c *component) read(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		name := strings.ToUpper(f.Name())
		legal := slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}, func(p string) bool { return strings.HasPrefix(name, p) })
		if !legal || !f.Type().IsRegular() || strings.HasSuffix(name, ".GO") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		c.texts = append(c.texts, text{f.Name(), string(bytes.TrimSpace(data))})
		if strings.HasPrefix(name, "NOTICE") || strings.HasPrefix(name, "PATENTS") {
			continue
		}
		for _, m := range licensecheck.Scan(data).Match {
			if !m.IsURL && !slices.Contains(c.licenses, m.ID) {
				c.licenses = append(c.licenses, m.ID)
			}
		}
	}
	slices.Sort(c.licenses)
	return c.check()
}

// check returns what forbids us to distribute the component.
func (c *component) check() error {
	if len(c.licenses) == 0 {
		return errors.New("no license is known")
	}
	for _, id := range c.licenses {
		if !slices.Contains(allowed, id) {
			return fmt.Errorf("license %s is not allowed", id)
		}
	}
	return nil
}

// notices returns the texts of all components, each different one once.
func notices(components []component) []byte {
	names := map[string][]string{}
	var order []string
	for _, c := range components {
		for _, t := range c.texts {
			if names[t.data] == nil {
				order = append(order, t.data)
			}
			names[t.data] = append(names[t.data], c.name+" "+c.version+": "+t.file)
		}
	}
	var b bytes.Buffer
	b.WriteString("gpumeter contains the following works.\n")
	for _, data := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(names[data], "\n"), data)
	}
	return b.Bytes()
}

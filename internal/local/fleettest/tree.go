// Package fleettest makes a machine with accelerators of every vendor, for tests: the
// files of its drivers below a folder, the library of Gaudi, and the metric service that
// libtpu runs. The machine itself is in testdata.
package fleettest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Tree is a part of a file system, by path. It is written as text:
//
//	[sys/class/drm/card10/device]   the folder of the lines below, [/] is the top
//	unique_id = 1901f3a8c0de4242    a file; \n, \t and \0 stand for what they do in Go
//	driver -> ../../amdgpu          a symbolic link
//	gpu_metrics !v1.3               a table of AMD's firmware, whose values follow,
//		temperature_edge 39     indented; others are absent
//
// What is in braces is replaced: {5000+3n} by 5000 plus 3 for each step, {name} by what is
// told.
type Tree map[string]Entry

// Entry is one file of a Tree.
type Entry struct {
	kind  byte // one of =, > and !
	text  string
	table string // of !
}

// Files returns the path of a file of testdata.
func Files(name ...string) (string, error) {
	return source(append([]string{"internal/local/fleettest/testdata"}, name...)...)
}

// Load returns the trees of testdata whose paths match a pattern, in one.
func Load(pattern string) (Tree, error) {
	folder, err := Files()
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(os.DirFS(folder), pattern)
	if err != nil {
		return nil, err
	}
	all := Tree{}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		t, err := Parse(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for p := range t {
			if _, twice := all[p]; twice {
				return nil, fmt.Errorf("%s: %s is in another file, too", name, p)
			}
		}
		maps.Copy(all, t)
	}
	return all, nil
}

var escapes = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\0`, "\x00")

// Parse reads the text of a Tree.
func Parse(text string) (Tree, error) {
	t := Tree{}
	folder, table := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		value, indented := strings.CutPrefix(line, "\t")
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == '[':
			folder = strings.Trim(line, "[]/")
			continue
		case indented && table != "":
			e := t[table]
			e.text += value + "\n"
			t[table] = e
			continue
		}
		name, rest, ok := strings.Cut(line, " ")
		if !ok || rest == "" {
			return nil, fmt.Errorf("%q is no file", line)
		}
		name = path.Join(folder, name)
		switch {
		case strings.HasPrefix(rest, "= ") || rest == "=":
			t[name] = Entry{kind: '=', text: escapes.Replace(strings.TrimPrefix(rest[1:], " "))}
		case strings.HasPrefix(rest, "-> "):
			t[name] = Entry{kind: '>', text: rest[3:]}
		case rest[0] == '!':
			t[name], table = Entry{kind: '!', table: rest[1:]}, name
		default:
			return nil, fmt.Errorf("%q is no file", line)
		}
	}
	return t, nil
}

var (
	step  = regexp.MustCompile(`\{(\d+)\+(\d+)n\}`)
	named = regexp.MustCompile(`\{\w+\}`)
)

// Moving returns what is not the same at each step.
func (t Tree) Moving() Tree {
	m := maps.Clone(t)
	maps.DeleteFunc(m, func(_ string, e Entry) bool { return !step.MatchString(e.text) && !strings.Contains(e.text, "{now}") })
	return m
}

// Rename returns the tree with other words in paths and contents.
func (t Tree) Rename(oldnew ...string) Tree {
	r := strings.NewReplacer(oldnew...)
	out := Tree{}
	for p, e := range t {
		e.text = r.Replace(e.text)
		out[r.Replace(p)] = e
	}
	return out
}

// Write writes the tree below root as it is at step n. A file that is there is replaced
// whole, so that nobody reads half of it.
func (t Tree) Write(root string, n int, values map[string]string) error {
	layouts, err := layouts()
	if err != nil {
		return err
	}
	made := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(t)) {
		e, full := t[p], filepath.Join(root, p)
		if dir := filepath.Dir(full); !made[dir] {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			made[dir] = true
		}
		text := step.ReplaceAllStringFunc(e.text, func(s string) string {
			m := step.FindStringSubmatch(s)
			base, _ := strconv.ParseUint(m[1], 10, 64) // digits
			each, _ := strconv.ParseUint(m[2], 10, 64)
			return strconv.FormatUint(base+uint64(n)*each, 10)
		})
		text = named.ReplaceAllStringFunc(text, func(s string) string { return values[s[1:len(s)-1]] })
		switch e.kind {
		case '>':
			err = os.Symlink(text, full)
		case '!':
			var b []byte
			if b, err = layouts[e.table].encode(text); err == nil {
				err = replace(root, full, b)
			}
		default:
			if !strings.HasSuffix(text, "\n") {
				text += "\n"
			}
			err = replace(root, full, []byte(text))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

func replace(root, file string, b []byte) error {
	next := filepath.Join(root, ".next") // beside nothing that a reader looks at
	if err := os.WriteFile(next, b, 0o644); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// Spoil puts a folder in the place of a file: reading it fails as a broken driver does.
func Spoil(root, file string) error {
	full := filepath.Join(root, file)
	if _, err := os.Stat(full); err != nil {
		return err
	}
	if err := os.RemoveAll(full); err != nil {
		return err
	}
	return os.Mkdir(full, 0o755)
}

// source returns the path of a file of this repository, from any package's test.
func source(name ...string) (string, error) {
	// With -trimpath the name of this file is no path: then go up from the working
	// directory, which is a package's folder while its tests run.
	dir, err := os.Getwd()
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir, err = filepath.Dir(file), nil
	}
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(append([]string{dir}, name...)...), nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the source of this repository is not above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

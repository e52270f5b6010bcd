// Package fleettest builds a machine with accelerators of every vendor for tests: the files
// of the drivers below a directory, the Gaudi library, and libtpu's metric service. The
// contents of the machine are in testdata.
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

// Tree is a part of a file system, by path. Its text form is:
//
//	[sys/class/drm/card10/device]   the directory of the lines below; [/] is the root
//	unique_id = 1901f3a8c0de4242    a file; \n, \t and \0 are escapes as in Go
//	driver -> ../../amdgpu          a symbolic link
//	gpu_metrics !v1.3               a table of AMD's firmware; its values follow,
//		temperature_edge 39     indented; all others are absent
//
// Braces are replaced: {5000+3n} with 5000 plus 3 for each step, {name} with the value that
// Write is given for the name.
type Tree map[string]Entry

// Entry is a file of a Tree.
type Entry struct {
	kind  byte // one of =, > and !
	text  string
	table string // for !
}

// Files returns the path of a file in testdata.
func Files(name ...string) (string, error) {
	return source(append([]string{"internal/local/fleettest/testdata"}, name...)...)
}

// Load returns the trees in testdata whose paths match a pattern, merged into one.
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
				return nil, fmt.Errorf("%s: %s is also in another file", name, p)
			}
		}
		maps.Copy(all, t)
	}
	return all, nil
}

var escapes = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\0`, "\x00")

// Parse parses the text form of a Tree.
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

// Moving returns the entries that change with each step.
func (t Tree) Moving() Tree {
	m := maps.Clone(t)
	maps.DeleteFunc(m, func(_ string, e Entry) bool { return !step.MatchString(e.text) && !strings.Contains(e.text, "{now}") })
	return m
}

// Rename returns the tree with strings replaced in paths and contents.
func (t Tree) Rename(oldnew ...string) Tree {
	r := strings.NewReplacer(oldnew...)
	out := Tree{}
	for p, e := range t {
		e.text = r.Replace(e.text)
		out[r.Replace(p)] = e
	}
	return out
}

// Write writes the tree below root as of step n. Existing files are replaced atomically, so a
// concurrent reader never sees half a file.
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
			base, _ := strconv.ParseUint(m[1], 10, 64) // cannot fail: the pattern matches digits only
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
	next := filepath.Join(root, ".next") // not in a directory that a reader lists
	if err := os.WriteFile(next, b, 0o644); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// Spoil replaces a file with a directory, so that reading the file fails as with a broken
// driver.
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

// source returns the path of a file of this repository. It works in the tests of any package.
func source(name ...string) (string, error) {
	// With -trimpath the name of this file is not a path. Then search from the working
	// directory upwards: tests run in the directory of their package.
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
			return "", errors.New("the working directory is not inside this repository")
		}
		dir = filepath.Dir(dir)
	}
}

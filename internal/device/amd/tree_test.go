//go:build linux

package amd

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// tree is the file system of a fake machine, below a directory of its own.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree { return tree{t, t.TempDir()} }

// machine creates the tree described by testdata/machine.txt.
func machine(t *testing.T) tree {
	t.Helper()
	b, err := os.ReadFile("testdata/machine.txt")
	if err != nil {
		t.Fatal(err)
	}
	tr := newTree(t)
	for _, block := range strings.Split("\n"+string(b), "\n== ")[1:] {
		head, content, _ := strings.Cut(block, "\n")
		if path, to, ok := strings.Cut(head, " -> "); ok {
			tr.link(path, to)
		} else if path, table, ok := strings.Cut(head, " !"); ok {
			tr.table(path, table, content)
		} else {
			tr.write(head, strings.TrimRight(content, "\n")+"\n")
		}
	}
	return tr
}

func (tr tree) path(name string) string { return filepath.Join(tr.root, name) }

func (tr tree) write(name, content string) {
	tr.t.Helper()
	if err := os.MkdirAll(filepath.Dir(tr.path(name)), 0o700); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(tr.path(name), []byte(content), 0o600); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) link(name, to string) {
	tr.t.Helper()
	if err := os.MkdirAll(filepath.Dir(tr.path(name)), 0o700); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.Symlink(to, tr.path(name)); err != nil {
		tr.t.Fatal(err)
	}
}

// folder replaces a file by a directory: reading it fails as with a broken driver.
func (tr tree) folder(name string) {
	tr.t.Helper()
	tr.remove(name)
	if err := os.MkdirAll(tr.path(name), 0o700); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) remove(name string) {
	tr.t.Helper()
	if err := os.RemoveAll(tr.path(name)); err != nil {
		tr.t.Fatal(err)
	}
}

// table writes one of the firmware's tables, from lines of a name and its values. A name
// may be prefixed with a partition: xcp1.vcn_busy.
func (tr tree) table(name, table, lines string) {
	tr.t.Helper()
	tr.write(name, string(structures(tr.t)[table].blob()))
	tr.change(name, table, lines)
}

// change overwrites some values of a table.
func (tr tree) change(name, table, lines string) {
	tr.t.Helper()
	s := structures(tr.t)[table]
	b, err := os.ReadFile(tr.path(name))
	if err != nil {
		tr.t.Fatal(err)
	}
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		field, row := words[0], 0
		if k, rest, ok := strings.Cut(field, "."); ok {
			field, row = rest, int(k[len("xcp")]-'0')
		}
		for i, word := range words[1:] {
			v, err := strconv.ParseUint(word, 10, 64)
			if err != nil {
				tr.t.Fatal(line)
			}
			s.put(tr.t, b, field, row, i, v)
		}
	}
	tr.write(name, string(b))
}

// card creates a GPU with a few files below its directory.
func (tr tree) card(number int, pci string, files map[string]string) {
	tr.t.Helper()
	dir := "sys/class/drm/card" + strconv.Itoa(number) + "/device/"
	tr.write(dir+"uevent", "DRIVER=amdgpu\nPCI_ID=1002:74A1\nPCI_SLOT_NAME="+pci+"\n")
	for name, content := range files {
		tr.write(dir+name, content)
	}
}

// now is the time at which the tests run.
var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func (tr tree) options() Options {
	return Options{Root: tr.root, Machine: "0123456789abcdef", Now: func() time.Time { return now }}
}

func (tr tree) open() *Reader {
	tr.t.Helper()
	r, err := Open(tr.t.Context(), tr.options())
	if err != nil {
		tr.t.Fatal(err)
	}
	return r
}

func devices(t *testing.T, r *Reader) []device.Device {
	t.Helper()
	list, err := r.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// read returns the samples of devices, all of which must answer.
func read(t *testing.T, list []device.Device, tier device.Tier) []device.Sample {
	t.Helper()
	var samples []device.Sample
	for _, d := range list {
		s, err := d.Read(t.Context(), tier)
		if err != nil {
			t.Errorf("%s: %v", d.ID().UUID, err)
		}
		samples = append(samples, s)
	}
	return samples
}

//go:build linux

package intel

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// machine is a fake file system with hardware in it, and a clock.
type machine struct {
	t    testing.TB
	root string
	now  time.Time
	dirs map[string]bool // directories that were created
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	return &machine{t: t, root: t.TempDir(), dirs: map[string]bool{}, now: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)}
}

// load creates the machine described by a file in testdata.
func load(t testing.TB, name string) *machine {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if path, target, ok := strings.Cut(line, " -> "); ok {
			m.link(path, target)
		} else if path, content, ok := strings.Cut(line, " = "); ok && line[0] != '#' {
			m.set(path, strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(content))
		}
	}
	return m
}

func (m *machine) path(name string) string {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if dir := filepath.Dir(path); !m.dirs[dir] {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			m.t.Fatal(err)
		}
		m.dirs[dir] = true
	}
	return path
}

func (m *machine) set(name, content string) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) link(name, target string) {
	m.t.Helper()
	if err := os.Symlink(target, m.path(name)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) remove(name string) {
	m.t.Helper()
	if err := os.RemoveAll(filepath.Join(m.root, name)); err != nil {
		m.t.Fatal(err)
	}
	clear(m.dirs)
}

// spoil replaces a file by a directory: reading it fails as with a broken device.
func (m *machine) spoil(name string) {
	m.t.Helper()
	m.remove(name)
	if err := os.MkdirAll(filepath.Join(m.root, name), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) options() Options {
	return Options{Root: m.root, Machine: machineID, Now: func() time.Time { return m.now }}
}

func (m *machine) open() *Reader {
	m.t.Helper()
	r, err := Open(context.Background(), m.options())
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// devices opens the machine and returns its devices.
func (m *machine) devices() []device.Device {
	m.t.Helper()
	list, err := m.open().Devices(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	return list
}

// read reads a device after some seconds.
func (m *machine) read(d device.Device, tier device.Tier, after time.Duration) device.Sample {
	m.t.Helper()
	m.now = m.now.Add(after)
	s, err := d.Read(context.Background(), tier)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// card is a machine with one Arc A380, plus what the test adds to its PCI device.
const cardDir = "sys/devices/pci0000:00/0000:00:01.0/0000:08:00.0"

func oneCard(t *testing.T, files map[string]string) *machine {
	t.Helper()
	m := newMachine(t)
	m.add(0, cardDir, "xe", "8086:56A5")
	m.set("proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0")
	for name, content := range files {
		m.set(filepath.Join(cardDir, name), content)
	}
	return m
}

// add adds a card with sensors to the machine.
func (m *machine) add(n int, dir, driver, id string) {
	m.t.Helper()
	card := "card" + itoa(n)
	m.set(dir+"/uevent", "DRIVER="+driver+"\nPCI_CLASS=30000\nPCI_ID="+id+"\nPCI_SLOT_NAME="+filepath.Base(dir)+"\n")
	m.set(dir+"/hwmon/hwmon"+itoa(n)+"/name", driver)
	m.set(dir+"/drm/"+card+"/dev", "226:"+itoa(n))
	m.set(dir+"/drm/renderD"+itoa(128+n)+"/dev", "226:"+itoa(128+n))
	m.link(dir+"/drm/"+card+"/device", "../../../"+filepath.Base(dir))
	m.link("sys/class/drm/"+card, "../../"+strings.TrimPrefix(dir, "sys/")+"/drm/"+card)
}

// replace replaces texts in a file, each of which must exist.
func (m *machine) replace(name string, pairs ...string) {
	m.t.Helper()
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(string(b), pairs[i]) {
			m.t.Fatalf("%s has no %q", name, pairs[i])
		}
	}
	m.set(name, strings.NewReplacer(pairs...).Replace(string(b)))
}

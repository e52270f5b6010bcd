//go:build linux

package gaudi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

var untouched string // root file system of server, for read-only tests

func TestMain(m *testing.M) {
	var err error
	if untouched, err = os.MkdirTemp("", "gaudi"); err != nil {
		panic(err)
	}
	code := 1
	if err := fill(untouched, server()); err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	os.RemoveAll(untouched)
	os.Exit(code)
}

// machine creates a root file system. "-> x" is a symbolic link, "/" a directory.
func machine(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	check(t, fill(root, files))
	return root
}

func fill(root string, files map[string]string) error {
	made := map[string]bool{}
	for name, text := range files {
		path := filepath.Join(root, name)
		if dir := filepath.Dir(path); !made[dir] {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			made[dir] = true
		}
		if err := write(path, text); err != nil {
			return err
		}
	}
	return nil
}

// put creates or replaces one file of a machine.
func put(t testing.TB, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.RemoveAll(path))
	check(t, write(path, text))
}

func write(path, text string) error {
	switch {
	case text == "/":
		return os.Mkdir(path, 0o755)
	case strings.HasPrefix(text, "-> "):
		return os.Symlink(text[3:], path)
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o644)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// accel adds the files of an accelerator to a machine, as drivers since Linux 6.2 provide
// them.
func accel(files map[string]string, number int, pci string) {
	name := fmt.Sprintf("accel%d", number)
	bus := "sys/devices/pci0000:00/" + pci
	for file, text := range map[string]string{
		"vendor": "0x1da3", "device": "0x1020", "numa_node": "1", "accel/" + name + "/device": "-> ../../../" + pci,
		"status": "Operational", "device_type": "GAUDI2", "pci_addr": pci, "module_id": "5",
		"hard_reset_cnt": "2", "soft_reset_cnt": "0", "clk_max_freq_mhz": "1650", "clk_cur_freq_mhz": "1200", "max_power": "600000",
		"fw_os_ver": "Linux gaudi2 5.10.18-hl-gaudi2-1.22.1-fw-61.4.2.1", "preboot_btl_ver": "Preboot version hl-gaudi2-1.22.1-fw-61.4.2.1",
		"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe", "current_link_width": "8", "max_link_width": "16",
	} {
		files[bus+"/"+file] = text
	}
	files["sys/class/accel/"+name] = "-> ../../devices/pci0000:00/" + pci + "/accel/" + name
	files["sys/bus/pci/devices/"+pci] = "-> ../../../devices/pci0000:00/" + pci
}

const (
	first  = "0000:33:00.0" // accel0, HLML's second
	second = "0000:9a:00.0" // accel2, HLML's third
	third  = "0000:b3:00.0" // accel10, HLML's first
	busDir = "sys/devices/pci0000:00/"
)

// server is a machine with three accelerators, whose numbers have a gap, and another
// vendor's.
func server() map[string]string {
	files := map[string]string{
		"sys/module/habanalabs/version":              "1.22.1-97ec1a4",
		"sys/class/accel/accel_controlD0/device/dev": "1",
		"sys/class/accel/accel1/device/vendor":       "0x8086", // an Intel NPU
		"proc/4242/comm":                             "python3",
		"proc/4242/fd/3":                             "-> /dev/accel/accel0",
		"proc/4242/fd/4":                             "-> /dev/accel/accel0",
		"proc/17/comm":                               "vllm",
		"proc/17/fd/9":                               "-> /dev/accel/accel0",
		"proc/18/comm":                               "hl-smi",
		"proc/18/fd/9":                               "-> /dev/accel/accel_controlD0",
		"proc/19/comm":                               "trainer",
		"proc/19/fd/9":                               "-> /dev/accel/accel10",
	}
	accel(files, 0, first)
	accel(files, 2, second)
	accel(files, 10, third)
	return files
}

// script is what the library reports for server. Its order differs from the driver's.
const script = `count 3
0 text pci 0000:b3:00.0
1 text pci 00000000:33:00.0
2 text pci 0000:9A:00.0
0 text uuid 01P4-HL3090A0-18-U4V193-22-07-00
1 text uuid 01P4-HL3090A0-18-U4V193-22-07-01
2 text uuid 01P4-HL3090A0-18-U4V193-22-07-02
0 text serial AN00000010
1 text serial AN00000000
2 text serial AN00000002
* text name HL-225
* util 0
1 util 40
* memory-free 102273908736
* memory-total 103079215104
* memory-used 805306368
* temperature-0 45
* temperature-1 31
* threshold-0 110
* threshold-1 100
* threshold-2 0
* threshold-3 95
* power 88000
* default-limit 600000
* energy 5000000
* clock-0 1500
* max-clock-0 1800
* max-clock-3 1900
* throttle 2
* ecc-mode 1
* ecc-1-0 3
* ecc-1-1 4
* ecc-1-0-1 2
* rows-0 1
* rows-1 0
* rows-pending 0
* replays 6
* ports 0xc00000
* ports-up 0x400000
`

// fake creates a scripted library, without the given symbols, in a fresh directory.
func fake(t testing.TB, script string, without ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), "gcc") {
			t.Fatal("gcc is required to build the fake HLML library: ", err)
		}
		t.Skip("the fake HLML library needs gcc: ", err)
	}
	file := filepath.Join(t.TempDir(), soname)
	check(t, os.WriteFile(file, build(t, without), 0o755))
	rewrite(t, file, script)
	return file
}

// rewrite replaces the script of a library atomically. It takes effect at the next call.
func rewrite(t testing.TB, file, script string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(file), "fake.next")
	check(t, os.WriteFile(next, []byte(script), 0o644))
	check(t, os.Rename(next, filepath.Join(filepath.Dir(file), "fake.conf")))
}

var (
	buildLock sync.Mutex
	builds    = map[string][]byte{} // by the omitted symbols
)

func build(t testing.TB, without []string) []byte {
	t.Helper()
	buildLock.Lock()
	defer buildLock.Unlock()
	key := strings.Join(without, "; ")
	if library, ok := builds[key]; ok {
		return library
	}
	dir := t.TempDir()
	target := filepath.Join(dir, soname)
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", target, "testdata/fakehlml/fakehlml.c", "-ldl"}
	if len(without) > 0 {
		version := filepath.Join(dir, "version")
		check(t, os.WriteFile(version, []byte("{ global: *; local: "+key+"; };\n"), 0o644))
		args = append(args, "-Wl,--version-script="+version)
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cannot build the fake HLML library: %v\n%s", err, out)
	}
	library, err := os.ReadFile(target)
	check(t, err)
	builds[key] = library
	return library
}

// clock is a manually advanced clock.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func open(t testing.TB, root, library string) (*Reader, *clock) {
	t.Helper()
	c := &clock{t: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	r, err := Open(t.Context(), Options{Root: root, Library: library, Machine: "9b0c", Now: c.now})
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return r, c
}

func devices(t testing.TB, r *Reader) []device.Device {
	t.Helper()
	list, err := r.Devices(t.Context())
	check(t, err)
	return list
}

func read(t testing.TB, d device.Device, tier device.Tier) device.Sample {
	t.Helper()
	s, err := d.Read(t.Context(), tier)
	check(t, err)
	return s
}

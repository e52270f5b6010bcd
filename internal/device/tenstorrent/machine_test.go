//go:build linux

package tenstorrent

import (
	"embed"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
)

// machine creates a root file system. "-> x" is a symbolic link, "/" a directory.
func machine(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	made := map[string]bool{}
	for name, text := range files {
		path := filepath.Join(root, name)
		if dir := filepath.Dir(path); !made[dir] {
			check(t, os.MkdirAll(dir, 0o755))
			made[dir] = true
		}
		write(t, path, text)
	}
	return root
}

// put creates or replaces one file of a machine.
func put(t testing.TB, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.RemoveAll(path))
	write(t, path, text)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	switch {
	case text == "/":
		check(t, os.Mkdir(path, 0o755))
	case strings.HasPrefix(text, "-> "):
		check(t, os.Symlink(text[3:], path))
	default:
		check(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hush makes every attribute provided by the firmware return EAGAIN, as during a reset:
// each becomes a pipe that is open for writing but never written.
func hush(t testing.TB, folder string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		if err != nil || !d.Type().IsRegular() || !strings.HasPrefix(name, "tt_") && !strings.Contains(name, "_input") && !strings.Contains(name, "_max") && !strings.Contains(name, "word") {
			return err
		}
		check(t, os.Remove(path))
		check(t, unix.Mkfifo(path, 0o644))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		check(t, err)
		t.Cleanup(func() { f.Close() })
		return nil
	})
	check(t, err)
}

// chipFiles returns the files of chip n at a PCI address, as in tt-kmd 2.10.
func chipFiles(n, pci string, class, pciDevice map[string]string) map[string]string {
	bus := "sys/devices/pci0000:00/" + pci
	dir := bus + "/tenstorrent/tenstorrent!" + n
	files := map[string]string{
		"sys/class/tenstorrent/tenstorrent!" + n: "-> ../../devices/pci0000:00/" + pci + "/tenstorrent/tenstorrent!" + n,
		dir + "/device":                          "-> ../../../" + pci,
		bus + "/vendor":                          "0x1e52",
		"sys/bus/pci/devices/" + pci:             "-> ../../../devices/pci0000:00/" + pci,
	}
	for name, text := range class {
		files[dir+"/"+name] = text
	}
	for name, text := range pciDevice {
		files[bus+"/"+name] = text
	}
	return files
}

//go:embed testdata/lab
var labFiles embed.FS

// The attributes of a chip in its class directory and its PCI directory.
var (
	wormholeClass = attributes("wormhole-class")
	wormholePCI   = attributes("wormhole-pci")
	blackholePCI  = attributes("blackhole-pci")
)

// attributes reads a file of testdata/lab, with one name and value per line.
func attributes(file string) map[string]string {
	text, err := labFiles.ReadFile("testdata/lab/" + file + ".txt")
	if err != nil {
		panic(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		out[name] = value
	}
	return out
}

// lab is a machine with a Wormhole board, a Blackhole board with two chips, and a Grayskull
// whose firmware reports nothing. Their numbers have gaps.
func lab() map[string]string {
	files := map[string]string{
		"sys/module/tenstorrent/version":   "2.10.0",
		"sys/class/tenstorrent/README":     "not a chip",
		"proc/driver/tenstorrent/0/pids":   "4242\n17\n4242\n0",
		"proc/driver/tenstorrent/2/pids":   "",
		"proc/driver/tenstorrent/10/pids":  "99", // not in this /proc
		"proc/driver/tenstorrent/3/pids":   "",
		"proc/4242/comm":                   "python3",
		"proc/17/comm":                     "tt-metal server",
		"sys/bus/pci/devices/other/vendor": "0x8086",
	}
	maps.Copy(files, chipFiles("0", "0000:41:00.0", wormholeClass, wormholePCI))
	for n, chip := range map[string]struct{ pci, asic string }{"2": {"0000:81:00.0", "FCF9BCF9E3C8B89E"}, "10": {"0000:82:00.0", "FCF9BCF9E3C8B89F"}} {
		maps.Copy(files, chipFiles(n, chip.pci, map[string]string{
			"tt_aiclk": "800", "tt_serial": "0000046131924099", "tt_asic_id": chip.asic, "tt_card_type": "p300c", "tt_heartbeat": "43874",
			"tt_therm_trip_count": "3", "tt_fw_bundle_ver": "19.11.0.0",
			"pcie_perf_counters/mst_posted_wr_data_word_sent0": "77",
		}, blackholePCI))
	}
	maps.Copy(files, chipFiles("3", "0000:C1:00.0", nil, map[string]string{"device": "0xfaca", "numa_node": "0"}))
	return files
}

func open(t testing.TB, root string) *Reader {
	t.Helper()
	now := time.Unix(0, 0)
	r, err := Open(t.Context(), Options{Root: root, Machine: "3f6c1e", Now: func() time.Time {
		now = now.Add(time.Second) // at each call
		return now
	}})
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return r
}

func devices(t testing.TB, r *Reader) []device.Device {
	t.Helper()
	list, err := r.Devices(t.Context())
	check(t, err)
	return list
}

// class returns the directory of a chip's attributes.
func class(root, n string) string {
	return filepath.Join(root, "sys/class/tenstorrent/tenstorrent!"+n)
}

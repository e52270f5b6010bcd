//go:build bench

package readers

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

var (
	length = flag.Duration("length", 2*time.Second, "how long to repeat each measurement")
	counts = flag.String("devices", "8,16", "numbers of devices per machine, one run each")
	chips  = flag.Int("tpu", 0, "run as the metric service of a process with this many TPU chips")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *chips > 0 {
		if err := serveTPU(*chips); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// machine is the machine on which one vendor's reader is measured.
type machine struct {
	reader device.Reader
	root   string
	clock  *clock            // the reader's clock; nil for the real one
	tick   func() error      // runs between two readings; may be nil
	calls  func(device.Tier) // calls to the vendor's library or a server, for all devices; may be nil
	pace   time.Duration     // time between two readings, where it matters
	how    string            // description of the floor
}

// clock advances by a tick with each reading, independent of the real time.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// cost is the cost of one Read of all devices.
type cost struct {
	rounds int
	cpu    time.Duration
	allocs uint64
	bytes  uint64
}

func (c cost) each(n int) (cpu time.Duration, allocs, kib float64) {
	total := float64(c.rounds * n)
	return time.Duration(float64(c.cpu) / total), float64(c.allocs) / total, float64(c.bytes) / total / 1024
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// repeat measures f for some time. With a pace, the work of other goroutines until the next round counts as
// well.
func (c *cost) repeat(length, pace time.Duration, before func() error, f func() error) error {
	var m runtime.MemStats
	for end := time.Now().Add(length); c.rounds == 0 || time.Now().Before(end); c.rounds++ {
		if err := before(); err != nil {
			return err
		}
		runtime.ReadMemStats(&m)
		allocs, bytes, cpu := m.Mallocs, m.TotalAlloc, cpuTime()
		if err := f(); err != nil {
			return err
		}
		time.Sleep(pace)
		c.cpu += cpuTime() - cpu
		runtime.ReadMemStats(&m)
		c.allocs, c.bytes = c.allocs+m.Mallocs-allocs, c.bytes+m.TotalAlloc-bytes
	}
	return nil
}

var vendors = []struct {
	name string
	make func(*testing.T, int) machine
}{
	{"NVIDIA H200, fake NVML", newNVIDIA},
	{"AMD MI210", newMI210},
	{"AMD MI300X in two partitions", newMI300X},
	{"Gaudi 2, fake HLML", newGaudi},
	{"Intel B580 (xe)", newIntel},
	{"Trainium, two cores", newNeuron},
	{"Tenstorrent Wormhole", newTenstorrent},
	{"TPU v6e", newTPU},
}

func TestReaders(t *testing.T) {
	runtime.GOMAXPROCS(1) // as in the agent
	fmt.Printf("%s, %d CPUs, %s, each for %s\n\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOARCH, *length)
	fmt.Print("| reader | devices | tier | CPU a device, µs | floor, µs | to the floor | allocations | KiB allocated | floor, of a device |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, v := range vendors {
		for word := range strings.SplitSeq(*counts, ",") {
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("%s %d", v.name, n), func(t *testing.T) { measure(t, v.name, n, v.make(t, n)) })
		}
	}
}

// measure prints the rows of one reader.
func measure(t *testing.T, name string, n int, m machine) {
	t.Cleanup(func() {
		if err := m.reader.Close(); err != nil {
			t.Error(err)
		}
	})
	devices, err := m.reader.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if whole := countWhole(devices); whole != n {
		t.Fatalf("found %d devices, want %d", whole, n)
	}
	const fast, slow = time.Second, 10 * time.Second
	read := func(tier device.Tier) func() error {
		return func() error {
			for _, d := range devices {
				if _, err := d.Read(context.Background(), tier); err != nil {
					return fmt.Errorf("%s: %w", d.ID().UUID, err)
				}
			}
			return nil
		}
	}
	before := func(tier device.Tier) func() error {
		return func() error {
			if m.clock != nil {
				m.clock.t = m.clock.t.Add(map[bool]time.Duration{true: slow, false: fast}[tier == device.Slow])
			}
			if m.tick != nil {
				return m.tick()
			}
			return nil
		}
	}
	// once returns the files that one reading opens.
	once := func(tier device.Tier) []opened {
		if err := before(tier)(); err != nil {
			t.Fatal(err)
		}
		opens := watchOpens(t, m.root)
		if err := read(tier)(); err != nil {
			t.Fatal(err)
		}
		return opens()
	}
	once(device.Static)
	once(device.Slow)
	once(device.Fast)
	for _, tier := range []device.Tier{device.Fast, device.Slow} {
		files := once(tier)
		floor := func() error {
			for _, f := range files {
				if err := f.read(); err != nil {
					return err
				}
			}
			if m.calls != nil {
				m.calls(tier)
			}
			return nil
		}
		if err := floor(); err != nil { // connect first
			t.Fatal(err)
		}
		long := *length
		if m.pace > 0 {
			long *= 4
		}
		var ours, bare cost
		const turns = 4 // alternating, so that other load affects both
		for range turns {
			if err := ours.repeat(long/turns, m.pace, before(tier), read(tier)); err != nil {
				t.Fatal(err)
			}
			if err := bare.repeat(long/turns, m.pace, before(tier), floor); err != nil {
				t.Fatal(err)
			}
		}
		cpu, allocs, kib := ours.each(n)
		least, _, _ := bare.each(n)
		base, ratio := "", ""
		if m.calls != nil || len(files) > 0 && m.how != "none" {
			base, ratio = fmt.Sprintf("%.1f", micro(least)), fmt.Sprintf("%.2f", float64(cpu)/float64(least))
		}
		fmt.Printf("| %s | %d | %s | %.1f | %s | %s | %.0f | %.1f | %s |\n", name, n, tierName(tier), micro(cpu), base, ratio, allocs, kib, describe(files, n, m))
	}
}

func micro(d time.Duration) float64 { return float64(d) / 1e3 }

func tierName(tier device.Tier) string {
	if tier == device.Slow {
		return "slow"
	}
	return "fast"
}

func describe(files []opened, n int, m machine) string {
	if m.how == "none" {
		return "see bench/agent"
	}
	nf, nd := 0, 0
	for _, f := range files {
		if f.folder {
			nd++
		} else {
			nf++
		}
	}
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{nf, "files"}, {nd, "folders"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%.1f %s", float64(p.n)/float64(n), p.what))
		}
	}
	if m.how != "" {
		parts = append(parts, m.how)
	}
	return strings.Join(parts, ", ")
}

// countWhole counts devices without their partitions.
func countWhole(list []device.Device) (n int) {
	for _, d := range list {
		if d.ID().Parent == "" {
			n++
		}
	}
	return n
}

// opened is a file or folder that a reader opened.
type opened struct {
	path   string
	folder bool
}

func (o opened) read() error {
	if o.folder {
		_, err := os.ReadDir(o.path)
		return err
	}
	_, err := os.ReadFile(o.path)
	return err
}

// watchOpens makes the kernel record which files and folders below root are opened until the returned
// function is called.
func watchOpens(t *testing.T, root string) func() []opened {
	t.Helper()
	if root == "" {
		return func() []opened { return nil }
	}
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	folders := map[int32]string{}
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		w, err := syscall.InotifyAddWatch(fd, path, syscall.IN_OPEN)
		folders[int32(w)] = path
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	drain := func() []opened {
		var list []opened
		buf := make([]byte, 1<<20)
		for {
			n, err := syscall.Read(fd, buf)
			if n <= 0 || err != nil {
				return list
			}
			list = append(list, parseOpens(buf[:n], folders)...)
		}
	}
	drain() // discard the events of the walk itself
	return func() []opened {
		defer syscall.Close(fd)
		return drain()
	}
}

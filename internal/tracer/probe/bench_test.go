package probe

import (
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumeter/gpumeter/internal/programtest"
)

// The price of a call, with and without probes: the program's CPU time per call, least and median over a hundred
// batches, because wall-clock time is meaningless on a shared machine. The floor is that of a program that does nothing.
// Each round runs all of them once, so that they have the same neighbors.
func BenchmarkPrice(b *testing.B) {
	programs := map[string]string{}
	prepare := func(name string, m *machine) { programs[name] = filepath.Join(m.dir, "work") }
	bare, floor, entry := &machine{t: b, dir: b.TempDir()}, &machine{t: b, dir: b.TempDir()}, &machine{t: b, dir: b.TempDir()}
	for _, m := range []*machine{bare, floor, entry} {
		for _, name := range []string{"libcuda.so.1", "libnccl.so.2", "work"} {
			programtest.Write(b, filepath.Join(m.dir, name), compiled(b, name, 580))
		}
	}
	prepare("none", bare)
	prepare("floor", floor)
	prepare("floor, entry", entry)
	b.Cleanup(nothing(b, filepath.Join(floor.dir, "libcuda.so.1"), 0))
	b.Cleanup(nothing(b, filepath.Join(entry.dir, "libcuda.so.1"), 1))
	names := []string{"none", "floor, entry", "floor"}
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"session", Options{Mode: ModeSession}},
		{"no budget", Options{Mode: ModeSession, Budget: -1}},
		{"multi", Options{Mode: ModeMulti}},
		{"perf", Options{Mode: ModePerf}},
		{"hash", Options{Mode: ModeMulti, NoTaskStorage: true}},
	} {
		prepare(c.name, newMachine(b, c.o, 580, "cuLaunchKernel", "cuStreamSync", "cuMemcpyHtoDAsync", "cuDevicePrimaryCtx", "cuCtx"))
		names = append(names, c.name)
	}
	best := map[string]float64{}
	for range max(b.N, 5) {
		for _, name := range names {
			out, err := exec.Command(programs[name], "prices", "300").Output()
			check(b, err)
			for line := range strings.Lines(string(out)) {
				f := strings.Fields(line)
				for i, unit := range []string{"min", "p50"} {
					key := fmt.Sprintf("%-12s %-7s %s", name, f[0], unit)
					ns, err := strconv.ParseFloat(f[1+i], 64)
					check(b, err)
					if old, ok := best[key]; !ok || ns < old {
						best[key] = ns
					}
				}
			}
		}
	}
	for _, name := range names {
		line := fmt.Sprintf("%-12s", name)
		for _, call := range []string{"launch", "copy", "sync"} {
			for _, unit := range []string{"min", "p50"} {
				line += fmt.Sprintf("  %s %s %5.0f", call, unit, best[fmt.Sprintf("%-12s %-7s %s", name, call, unit)])
			}
		}
		b.Log(line)
	}
}

var (
	floorLibrary = flag.String("library", "", "a libcuda.so.1 for BenchmarkFloor")
	floorProgram = flag.String("program", "", "what BenchmarkFloor runs with it")
)

// What the kernel alone takes of a program's calls: each line of its output is printed after floor, with probes of entry and
// return, and after floor1, with those of the entry. For bench/trace/price.sh.
func BenchmarkFloor(b *testing.B) {
	if *floorProgram == "" {
		b.Skip("needs -library and -program")
	}
	for i, name := range []string{"floor", "floor1"} {
		end := nothing(b, *floorLibrary, int32(i))
		out, err := exec.Command(*floorProgram).Output()
		check(b, err)
		end()
		for line := range strings.Lines(string(out)) {
			fmt.Print(name, " ", line)
		}
	}
}

// nothing probes a library with a session program that does nothing, until it is ended. The result of the program says
// whether returns are not probed.
func nothing(t testing.TB, file string, result int32) (end func()) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachType(attachSession), License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, result), asm.Return()},
	})
	check(t, err)
	offsets, cookies := places(points(t, file, 0), false)
	l, err := linkSession(p.FD(), file, offsets, cookies)
	check(t, err)
	return func() {
		check(t, l.Close())
		check(t, p.Close())
	}
}

package probe

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gpumeter/gpumeter/internal/programtest"
)

// The added cost of a probed launch: the program's CPU time per call, compared with the same
// program without probes. Wall-clock time is meaningless on a shared machine.
func BenchmarkLaunch(b *testing.B) {
	bench := func(name string, file func(b *testing.B) string) {
		b.Run(name, func(b *testing.B) {
			cmd := exec.Command(file(b), "loop", strconv.Itoa(b.N))
			b.ResetTimer()
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			cpu := cmd.ProcessState.SystemTime() + cmd.ProcessState.UserTime()
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/call")
		})
	}
	bench("none", func(b *testing.B) string {
		dir := b.TempDir()
		for _, name := range []string{"libcuda.so.1", "libnccl.so.2", "work"} {
			programtest.Write(b, filepath.Join(dir, name), compiled(b, name, 580))
		}
		return filepath.Join(dir, "work")
	})
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"session", Options{Mode: ModeSession}},
		{"multi", Options{Mode: ModeMulti}},
		{"perf", Options{Mode: ModePerf}},
		{"hash", Options{Mode: ModeMulti, NoTaskStorage: true}},
	} {
		bench(c.name, func(b *testing.B) string { return filepath.Join(newMachine(b, c.o, 580, "cuLaunchKernel").dir, "work") })
	}
}

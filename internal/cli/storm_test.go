//go:build linux

package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// storm is a machine whose kernel log can be told, from the beginning as often as somebody
// reads it from there.
type storm struct {
	t     *testing.T
	log   *os.File
	flags []string
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	host := nvmltest.New(t, "gpus 1")
	root, maps := t.TempDir(), t.TempDir()
	for _, dir := range []string{"dev", "proc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// A prolog gave GPU 0 to job 7.
	for name, text := range map[string]string{filepath.Join(root, "proc/uptime"): "1000.00 1.00\n", filepath.Join(maps, "0"): "7\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(root, "dev/kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return &storm{t, log, []string{"--nvidia-library", host.Library, "--root", root, "--slurm-job-maps", maps, "--interval", "1s"}}
}

// tell writes the records from first to last, one for each read as the kernel does it.
func (s *storm) tell(first, last int) {
	s.t.Helper()
	for i := first; i <= last; i++ {
		at := 1_000_000_000 + 10*i // µs after boot, which is 1,000 s ago
		if _, err := fmt.Fprintf(s.log, "4,%d,%d,-;NVRM: Xid (PCI:0000:10:00): %d, pid=610, name=bad, fault %d\n", i, at, 31+i%2*64, i); err != nil {
			s.t.Fatal(err)
		}
		for {
			var n int32
			if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, s.log.Fd(), syscall.TIOCINQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
				s.t.Fatal(errno)
			}
			if n == 0 {
				break
			}
			if s.t.Context().Err() != nil {
				s.t.Fatalf("record %d is not read", i)
			}
			runtime.Gosched()
		}
	}
}

// Ten thousand errors at once (two with -short), and a kill in the middle of them: each is counted once, few
// become records, the records say whose job it was, and memory does not grow with them.
func TestStorm(t *testing.T) {
	s := newStorm(t)
	state, file := shortDir(t), filepath.Join(t.TempDir(), "out.json")
	args := append([]string{"--state-dir", state, "--otlp-file", file}, s.flags...)
	counts := func(a *agent, total float64) {
		t.Helper()
		a.waitPage(func(p page) error {
			codes := map[string]float64{}
			for name, v := range p {
				if strings.HasPrefix(name, "gpu_xid_errors_total{") {
					codes[label(name, "gpu_xid_code")] = v
				}
			}
			if codes["31"]+codes["95"] != total || codes["31"] != codes["95"] {
				return fmt.Errorf("%v, want %v in all", codes, total)
			}
			return nil
		})
	}
	first, all := 10_000, 11_000
	if testing.Short() {
		first, all = 2_000, 2_200
	}
	began := time.Now()
	a := start(t, args...)
	a.allUpOf(1)
	s.tell(1, first)
	counts(a, float64(first))
	a.waitPage(func(p page) error { // the GPU asks for a reset, of whoever's job it was
		for name, v := range p {
			if strings.HasPrefix(name, "gpu_health_ratio{") && v == 0 && label(name, "slurm_job_id") == "7" {
				return nil
			}
		}
		return fmt.Errorf("health is not 0")
	})
	if mib := peakMemory(t, a.cmd.Process.Pid); mib > 150 {
		t.Errorf("%d MiB at the most", mib)
	}
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-a.ended

	// The kernel keeps its log. Some of it was counted and not yet in the state file.
	a = start(t, args...)
	a.allUpOf(1)
	s.tell(1, all)
	counts(a, float64(all))
	a.stop()
	ticks := int(time.Since(began).Seconds()) + 4 // of two agents, each with a first and a last one

	records, named := 0, 0
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var batch struct {
			ResourceLogs []struct {
				ScopeLogs []struct {
					LogRecords []struct {
						EventName  string
						Attributes []struct {
							Key   string
							Value map[string]any
						}
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &batch); err != nil {
			t.Fatal(err)
		}
		for _, r := range batch.ResourceLogs {
			for _, sl := range r.ScopeLogs {
				for _, rec := range sl.LogRecords {
					if rec.EventName != "gpu.xid" {
						continue
					}
					records++
					for _, attr := range rec.Attributes {
						if attr.Key == "slurm.job.id" && attr.Value["stringValue"] == "7" {
							named++
						}
					}
				}
			}
		}
	}
	if most := 1000 * ticks; records == 0 || records > most || named != records {
		t.Errorf("%d records, %d of them with the job, at most %d expected", records, named, most)
	}
}

// allUpOf waits until n GPUs answer.
func (a *agent) allUpOf(n int) {
	a.t.Helper()
	a.waitPage(func(p page) error {
		if up := p.byGPU("gpu_up"); len(up) != n {
			return fmt.Errorf("up: %v", up)
		}
		return nil
	})
}

// peakMemory returns the most memory that a process ever had, in MiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

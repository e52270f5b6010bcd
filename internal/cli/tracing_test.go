//go:build linux && amd64

package cli_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// tracee is a program that calls CUDA: a line with a number makes so many launches, a copy
// and a failure.
const tracee = `
#include <stdio.h>
#include <stdlib.h>
typedef void *p;
void fake_next(int code, long us);
int cuLaunchKernel(p, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, p, p *, p *);
int cuLibraryGetKernel(p *, p, const char *), cuMemAlloc_v2(p *, size_t), cuMemcpyHtoD_v2(p, const void *, size_t), cuCtxSynchronize(void);
int cuDeviceGetUuid_v2(unsigned char *, int), cuDevicePrimaryCtxRetain(p *, int), cuCtxSetCurrent(p);
int main(void) {
	p kernel = 0, memory = 0, context = 0;
	unsigned char uuid[16];
	char line[64], name[] = "_Z4gemmPfi"; // on the stack: a driver reads it, ours does not, and its page must be there
	setvbuf(stdout, 0, _IOLBF, 0);
	cuDeviceGetUuid_v2(uuid, 0);
	cuDevicePrimaryCtxRetain(&context, 0);
	cuCtxSetCurrent(context);
	cuLibraryGetKernel(&kernel, 0, name);
	cuMemAlloc_v2(&memory, 1 << 20);
	while (fgets(line, sizeof line, stdin)) {
		for (int i = atoi(line); i > 0; i--) cuLaunchKernel(kernel, 132, 2, 1, 128, 1, 1, 0, 0, 0, 0);
		cuMemcpyHtoD_v2(memory, line, 1000);
		fake_next(700, 0);
		cuCtxSynchronize();
		puts("done");
	}
	return 0;
}
`

// missing ends a test for the lack of something: a failure where GPUMETER_REQUIRE names it.
func missing(t *testing.T, what, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), what) {
		t.Fatalf("GPUMETER_REQUIRE asks for %s: %s", what, why)
	}
	t.Skipf("needs %s: %s", what, why)
}

// buildTracee returns a folder with a fake driver, and the program under two names.
func buildTracee(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		missing(t, "gcc", err.Error())
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tracee.c"), []byte(tracee), 0o600); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "libcuda.so.1")
	// Old tags come before LD_LIBRARY_PATH, which names the real library on a machine with a GPU.
	for _, args := range [][]string{
		{"-O1", "-fPIC", "-shared", "-fcf-protection=none", "-DPROLOGUE=580", "-Wl,-soname,libcuda.so.1", "-o", lib, "../tracer/probe/testdata/cuda.c", "-lpthread"},
		{"-O1", "-o", filepath.Join(dir, "gm-before"), filepath.Join(dir, "tracee.c"), lib, "-Wl,-rpath,$ORIGIN,--disable-new-dtags"},
		{"-O1", "-o", filepath.Join(dir, "gm-after"), filepath.Join(dir, "tracee.c"), lib, "-Wl,-rpath,$ORIGIN,--disable-new-dtags"},
	} {
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("cannot build: %v\n%s", err, out)
		}
	}
	return dir
}

// work starts the program and returns a function that gives it work and waits for it, and
// one that ends it.
func work(t *testing.T, path string) (do func(launches int), end func()) {
	t.Helper()
	cmd := exec.Command(path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // unless it has ended
	lines := bufio.NewScanner(out)
	return func(launches int) {
			t.Helper()
			if _, err := fmt.Fprintln(in, launches); err != nil {
				t.Fatal(err)
			}
			if !lines.Scan() {
				t.Fatal("the program ended")
			}
		}, func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
		}
}

// An agent with --trace counts exactly what a process asks of the driver, under the name of
// the process and of the kernel, and keeps the sums when the process has ended.
func TestAgentTraces(t *testing.T) {
	t.Parallel()
	dir := buildTracee(t)
	a := start(t, "--trace", "--interval", "1s")
	a.waitPage(func(p page) error {
		for s, v := range p {
			if strings.HasPrefix(s, "gpumeter_tracer_up{") {
				if v == 0 {
					missing(t, "bpf", fmt.Sprint(a.waitLog("CUDA and NCCL are not traced")["reason"]))
				}
				return nil
			}
		}
		return fmt.Errorf("no word on whether it traces")
	})
	// of returns the series of a process, without what all have.
	of := func(p page, name string) map[string]float64 {
		list := map[string]float64{}
		for s, v := range p {
			metric, _, _ := strings.Cut(s, "{")
			if label(s, "gpu_workload_name") != name || strings.Contains(metric, "time_seconds") || strings.Contains(metric, "duration") ||
				strings.Contains(metric, "age_") || strings.Contains(metric, "host_") || strings.Contains(metric, "sync_") || strings.Contains(metric, "growth") {
				continue
			}
			for _, l := range []string{"gpu_cuda_kernel_name", "gpu_cuda_copy_kind", "gpu_cuda_error_code", "gpu_cuda_operation", "gpu_uuid"} {
				if v := label(s, l); v != "" {
					metric += " " + v
				}
			}
			list[metric] = v
		}
		return list
	}
	// The driver's library is found with the first process that has it.
	do, end := work(t, filepath.Join(dir, "gm-before"))
	a.waitPage(func(p page) error {
		do(1)
		if len(of(p, "gm-before")) == 0 {
			return fmt.Errorf("its library is not probed yet")
		}
		return nil
	})
	end()

	const gpu = " GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
	want := map[string]float64{
		"gpu_cuda_kernel_launches_total gemm" + gpu:                     12345,
		"gpu_cuda_copy_io_bytes_total htod" + gpu:                       3000,
		"gpu_cuda_operation_errors_total 700 cuCtxSynchronize" + gpu:    3,
		"gpu_cuda_operation_count_total cuCtxSynchronize" + gpu:         3,
		"gpu_cuda_operation_count_total cuDevicePrimaryCtxRetain" + gpu: 1,
		"gpu_cuda_operation_count_total cuLibraryGetKernel" + gpu:       1,
		"gpu_cuda_operation_count_total cuMemAlloc" + gpu:               1,
		"gpu_cuda_operation_count_total cuMemcpyHtoD" + gpu:             3,
		"gpu_cuda_operation_count_total cuLaunchKernel" + gpu:           12345,
		"gpu_cuda_memory_reserved_bytes" + gpu:                          1 << 20,
		"gpu_cuda_memory_peak_bytes" + gpu:                              1 << 20,
		"gpu_cuda_memory_leak" + gpu:                                    0,
	}
	do, end = work(t, filepath.Join(dir, "gm-after"))
	for _, n := range []int{10_000, 2_300, 45} {
		do(n)
	}
	as := func(want map[string]float64) func(page) error {
		return func(p page) error {
			if diff := cmp.Diff(want, of(p, "gm-after")); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		}
	}
	a.waitPage(as(want))
	end()
	for _, gauge := range []string{"memory_reserved_bytes", "memory_peak_bytes", "memory_leak"} {
		delete(want, "gpu_cuda_"+gauge+gpu)
	}
	a.waitPage(as(want))
	a.stop()
}

// Catches a probe, a program or a map that is left after gpumeter trace --stop, an agent that does not
// go on without tracing, and one that does not trace again.
func TestTraceStop(t *testing.T) {
	t.Parallel()
	dir := buildTracee(t)
	program := filepath.Join(dir, "gm-stop") // agents of other tests see it, too
	if err := os.Rename(filepath.Join(dir, "gm-before"), program); err != nil {
		t.Fatal(err)
	}
	a := start(t, "--trace", "--interval", "1s")
	up := func(want float64) {
		t.Helper()
		a.waitPage(func(p page) error {
			for s, v := range p {
				if strings.HasPrefix(s, "gpumeter_tracer_up{") && v == want {
					return nil
				}
			}
			return fmt.Errorf("gpumeter_tracer_up is not %v", want)
		})
	}
	inKernel := func() (n int) {
		fds := fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid)
		list, err := os.ReadDir(fds)
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range list {
			to, _ := os.Readlink(filepath.Join(fds, fd.Name())) // it may be closed by now
			if strings.HasPrefix(to, "anon_inode:bpf") || to == "anon_inode:[perf_event]" {
				n++
			}
		}
		return n
	}
	counted := func() {
		t.Helper()
		do, end := work(t, program)
		a.waitPage(func(p page) error {
			do(1)
			for s, v := range p {
				if strings.HasPrefix(s, "gpu_cuda_kernel_launches_total{") && label(s, "gpu_workload_name") == "gm-stop" && v > 0 {
					return nil
				}
			}
			return fmt.Errorf("no launch is counted")
		})
		end()
	}
	a.waitPage(func(p page) error {
		for s, v := range p {
			if strings.HasPrefix(s, "gpumeter_tracer_up{") && v == 0 {
				missing(t, "bpf", fmt.Sprint(a.waitLog("CUDA and NCCL are not traced")["reason"]))
			}
			if strings.HasPrefix(s, "gpumeter_tracer_up{") {
				return nil
			}
		}
		return fmt.Errorf("no word on whether it traces")
	})
	counted()
	if inKernel() == 0 {
		t.Error("nothing of the tracer is in the kernel: the test is wrong")
	}
	if got := output(t, "trace", "--stop", "--socket", a.socket); !strings.Contains(got, "no probe is left") {
		t.Errorf("the answer is %q", got)
	}
	if n := inKernel(); n != 0 {
		t.Errorf("%d programs, maps and probes are left", n)
	}
	up(0)
	if got := output(t, "trace", "--start", "--socket", a.socket); got != "Tracing.\n" {
		t.Errorf("the answer is %q", got)
	}
	up(1)
	counted()
	a.stop()

	b := start(t)
	b.waitLog("serving metrics")
	if r := run(t, "trace", "--stop", "--socket", b.socket); r.code == 0 || !strings.Contains(r.stderr, "started without --trace") {
		t.Errorf("an agent that does not trace: %+v", r)
	}
	if r := run(t, "trace", "--stop", "--json"); r.code == 0 || !strings.Contains(r.stderr, "--json has no effect with --stop") {
		t.Errorf("a flag without effect: %+v", r)
	}
	if r := run(t, "trace", "--stop", "--socket", "/nowhere"); r.code == 0 || !strings.Contains(r.stderr, "no agent responds at /nowhere") {
		t.Errorf("no agent: %+v", r)
	}
}

// Catches an agent that does not know a running process after it was killed or restarted, counts twice what its
// predecessor counted, or misses what happened in between; and probes that are left when the agent no longer
// traces, or is no longer there.
func TestTraceRestart(t *testing.T) {
	t.Parallel()
	dir := buildTracee(t)
	if err := os.Rename(filepath.Join(dir, "gm-after"), filepath.Join(dir, "gm-restart")); err != nil { // agents of other tests see it, too
		t.Fatal(err)
	}
	bpf, state := t.TempDir(), t.TempDir()
	if err := unix.Mount("bpf", bpf, "bpf", 0, ""); err != nil {
		missing(t, "bpf", err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bpf, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	kept := filepath.Join(bpf, "kept")
	traced := func() *agent {
		return start(t, "--trace", "--interval", "1s", "--trace-keep", kept, "--state-dir", state)
	}
	waitFor := func(a *agent, launches, memory float64) {
		t.Helper()
		a.waitPage(func(p page) error {
			got := map[string]float64{}
			for s, v := range p {
				if metric, _, _ := strings.Cut(s, "{"); label(s, "gpu_workload_name") == "gm-restart" && (metric == "gpu_cuda_kernel_launches_total" || metric == "gpu_cuda_memory_reserved_bytes") {
					got[metric+" "+label(s, "gpu_cuda_kernel_name")] += v
				}
			}
			if diff := cmp.Diff(map[string]float64{"gpu_cuda_kernel_launches_total gemm": launches, "gpu_cuda_memory_reserved_bytes ": memory}, got); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
	}
	a := traced()
	a.waitPage(func(p page) error {
		for s, v := range p {
			if strings.HasPrefix(s, "gpumeter_tracer_up{") {
				if v == 0 {
					missing(t, "bpf", fmt.Sprint(a.waitLog("CUDA and NCCL are not traced")["reason"]))
				}
				return nil
			}
		}
		return fmt.Errorf("no word on whether it traces")
	})
	do, end := work(t, filepath.Join(dir, "gm-before")) // the driver's library is found with the first process that has it
	a.waitPage(func(p page) error {
		do(1)
		for s := range p {
			if label(s, "gpu_workload_name") == "gm-before" {
				return nil
			}
		}
		return fmt.Errorf("its library is not probed yet")
	})
	end()
	do, end = work(t, filepath.Join(dir, "gm-restart"))
	do(100)
	waitFor(a, 100, 1<<20)
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-a.ended
	do(20)

	b := traced()
	b.waitLog("Tracing continues")
	waitFor(b, 20, 1<<20)
	do(3)
	waitFor(b, 23, 1<<20)
	b.stop()
	do(7)

	c := traced()
	waitFor(c, 7, 1<<20)
	c.stop()
	if r := run(t, "trace", "--stop", "--socket", "/nowhere", "--trace-keep", kept); r.code != 0 || !strings.Contains(r.stdout, "Removed the probes that an agent had left in "+kept+".") {
		t.Errorf("after the agent was uninstalled: %+v", r)
	}
	if _, err := os.Lstat(kept); !os.IsNotExist(err) {
		t.Errorf("something is left: %v", err)
	}

	d := traced()
	d.waitPage(func(p page) error {
		do(1)
		for s := range p {
			if label(s, "gpu_workload_name") == "gm-restart" {
				return nil
			}
		}
		return fmt.Errorf("it does not trace")
	})
	d.stop()
	e := start(t, "--trace-keep", kept, "--state-dir", state)
	e.waitLog("Removed the probes of an earlier agent: this one does not trace")
	if _, err := os.Lstat(kept); !os.IsNotExist(err) {
		t.Errorf("something is left: %v", err)
	}
	e.stop()
	end()
}

// Tracing is configured in one place: a flag that would do nothing is refused.
func TestTraceFlag(t *testing.T) {
	t.Parallel()
	if r := run(t, "agent", "--trace", "--once"); r.code != 1 || !strings.Contains(r.stderr, "--trace has no effect with --once") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "agent", "--trace", "--config", "x.yaml"); r.code != 1 || !strings.Contains(r.stderr, "--trace has no effect with --config") {
		t.Errorf("%+v", r)
	}
	conf := output(t, "agent", "--print-config", "--trace", "--state-dir", "/state", "--root", "/host")
	for _, want := range []string{"anomaly_file: /state/anomalies.jsonl", "proc: /host/proc"} {
		if !strings.Contains(conf, want) {
			t.Errorf("the configuration has no %q:\n%s", want, conf)
		}
	}
	if conf := output(t, "agent", "--print-config"); strings.Contains(conf, "cuda") {
		t.Errorf("nobody asked for tracing:\n%s", conf)
	}
}

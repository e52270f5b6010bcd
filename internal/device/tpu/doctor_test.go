//go:build linux

package tpu

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

func diagnosis(t *testing.T, o Options) []string {
	t.Helper()
	var lines []string
	for _, c := range Diagnose(t.Context(), o) {
		lines = append(lines, strings.ReplaceAll(fmt.Sprintf("%s: %s: %s [%s]", c.Subject, c.State, c.Detail, c.Fix), o.Root, "ROOT"))
	}
	return lines
}

// Every line that a user may see, with a fix they can apply.
func TestDiagnose(t *testing.T) {
	f := func(name string, m tree, o Options, want ...string) {
		t.Helper()
		o.Root = m.write(t, t.TempDir())
		if o.Exporter == "" {
			o.Exporter = NoExporter
		}
		if diff := cmp.Diff(want, diagnosis(t, o)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("nothing", tree{}, Options{}, "tpu hardware: absent: no TPU on the PCI bus []")
	const hardware = "tpu hardware: ok: 4 on the PCI bus (TPU v6e): 0000:00:04.0 0000:00:05.0 0000:00:06.0 0000:00:07.0 []"
	idle := v6e()
	idle["proc/1/fd/0"] = "-> /dev/null"
	f("idle", idle, Options{}, hardware,
		"tpu processes: absent: no process has a TPU open: duty cycle and memory are known only while a process runs [if a process has, run the agent in the host's PID namespace]")
	f("no service", v6e().process(42, "python3", 0, v6eFiles...), Options{}, hardware, "tpu processes: ok: 1 processes have a TPU open []",
		"tpu runtime: limited: process 42 (python3), 4 chips: the process runs no metric service [use libtpu from 2024 or later, which serves metrics at port 8431 or at the ports in TPU_RUNTIME_METRICS_PORTS]")

	s := serve(t, everything())
	s.more = []string{"tpu.new.thing", "megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution"}
	f("all is well", v6e().process(42, "python3", s.port(), v6eFiles...), Options{}, hardware, "tpu processes: ok: 1 processes have a TPU open []",
		fmt.Sprintf("tpu runtime: ok: process 42 (python3), 4 chips: 9 metrics at port %d; 2 more are not used: megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution tpu.new.thing []", s.port()))
	f("some", v6e().process(42, "python3", s.port(), v6eFiles[:3]...), Options{}, hardware, "tpu processes: ok: 1 processes have a TPU open []",
		strings.Join([]string{
			"tpu runtime: limited: process 42 (python3), 3 chips: tpu.runtime.hbm.memory.total.bytes: 4 devices are listed, but the process has 3 chips open",
			"tpu.runtime.hbm.memory.usage.bytes: 4 devices are listed, but the process has 3 chips open",
			"tpu.runtime.tensorcore.dutycycle.percent: 4 devices are listed, but the process has 3 chips open",
			"tpu.runtime.hbm.utilization.percent: 4 devices are listed, but the process has 3 chips open",
			"tpu.runtime.tensorcore.idle_duration.seconds: 4 devices are listed, but the process has 3 chips open",
			"hlo.queue.size.gauge: 4 devices are listed, but the process has 3 chips open",
			"hlo.execution.timing.distribution.microseconds: 4 devices are listed, but the process has 3 chips open; " +
				fmt.Sprintf("2 metrics at port %d; 2 more are not used: megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution tpu.new.thing []", s.port()),
		}, "\n"))
	port := s.port()
	s.stop()
	f("dead", v6e().process(42, "python3", port, v6eFiles...), Options{}, hardware, "tpu processes: ok: 1 processes have a TPU open []",
		fmt.Sprintf("tpu runtime: limited: process 42 (python3), 4 chips: cannot reach its metric service: port %d: connection refused []", port))

	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "duty_cycle{accelerator_id=\"1-9\"} 1\n")
	}))
	defer web.Close()
	url := strings.Replace(web.URL, "://", "://me:secret@", 1)
	f("exporter", idle, Options{Exporter: url}, hardware,
		"tpu processes: absent: no process has a TPU open: duty cycle and memory are known only while a process runs [if a process has, run the agent in the host's PID namespace]",
		"tpu exporter: limited: GKE's device plugin at "+strings.Replace(url, "secret", "xxxxx", 1)+" shows 1 accelerators: the page shows 1 accelerators, but the machine has 4 chips []")
	f("no exporter", idle, Options{Exporter: "http://127.0.0.1:1/"}, hardware,
		"tpu processes: absent: no process has a TPU open: duty cycle and memory are known only while a process runs [if a process has, run the agent in the host's PID namespace]",
		"tpu exporter: failed: GKE's device plugin at http://127.0.0.1:1/: connection refused [check the address; from a pod without the host's network use the node's address]")

	bare := tree{}.vfioChip("0000:00:04.0", "0x006f", "x")
	f("no file, no processes", bare, Options{},
		"tpu hardware: limited: 1 on the PCI bus (TPU v6e): 0000:00:04.0; 1 without a device file: their processes are unknown [bind them to vfio-pci, with the IOMMU on]",
		"tpu processes: failed: cannot find the processes on the TPUs: open ROOT/proc: no such file or directory [run in the host's PID namespace with CAP_SYS_PTRACE]")
}

// Diagnoses of an agent without sufficient privileges.
func TestDiagnoseRights(t *testing.T) {
	c := processCheck(machine{denied: 3, holders: []holder{{}}})
	if c.State != device.CheckLimited || c.Detail != "1 processes have a TPU open; the files of 3 processes are not readable" || c.Fix == "" {
		t.Errorf("%+v", c)
	}
	net, err := os.Stat("/etc") // not a namespace, so entering it fails
	if err != nil {
		t.Fatal(err)
	}
	s := &service{netns: "/nowhere", net: net, chips: 1, perChip: 1}
	c = holderCheck(t.Context(), holder{pid: 1, name: "x", chips: []string{"a"}, service: s})
	if c.State != device.CheckLimited || !strings.Contains(c.Detail, "cannot open its network namespace") {
		t.Errorf("%+v", c)
	}
}

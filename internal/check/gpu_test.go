//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
)

func TestDriver(t *testing.T) {
	f := func(m Machine, err error, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, nil)
		env.Manifest = manifest
		env.Devices = func(context.Context) (Machine, error) { return m, err }
		expect(t, env, "gpu.driver", want, words...)
	}
	open := Machine{Devices: []health.Device{gpu(0)}, Drivers: []Driver{{"nvidia", "open", ""}, {"amd", "absent", "not present"}}}
	f(open, nil, nil, OK, "nvidia")
	// A machine without a GPU is normal and not a broken driver.
	f(Machine{Drivers: []Driver{{"nvidia", "absent", "not present"}}}, nil, nil, Skipped)
	f(Machine{Drivers: []Driver{{"nvidia", "absent", "not present"}}}, nil, &Manifest{GPUs: GPUs{Count: 8}}, Critical, "8 devices expected")
	f(Machine{Drivers: []Driver{{"nvidia", "failed", "driver and library versions differ"}}}, nil, nil, Critical, "versions differ")
	f(Machine{Drivers: []Driver{{"nvidia", "opening", ""}}}, nil, nil, Critical, "not answered")
	f(Machine{}, errors.New("no library"), nil, Critical, "no library")
	f(open, nil, &Manifest{GPUs: GPUs{Driver: "580.1"}}, OK)
	// A second, broken driver does not affect the expected devices.
	two := open
	two.Drivers = append(two.Drivers, Driver{"intel", "failed", "cannot read"})
	f(two, nil, nil, Critical, "cannot read")
	f(two, nil, &Manifest{GPUs: GPUs{Count: 1}}, Warning, "cannot read")
	f(open, nil, &Manifest{GPUs: GPUs{Driver: "575.0"}}, Warning, "580.1", "575.0")
}

// A driver that never answers is critical, within the time limit of the run, and checks that
// depend on it are unknown.
func TestDriverHangs(t *testing.T) {
	env := node(t, nil)
	list, err := Select(Prolog, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	results := hanging(t, time.Second, func(ctx context.Context, hang func()) []Result {
		env.Devices = func(context.Context) (Machine, error) { hang(); return Machine{}, nil }
		return Run(ctx, env, list, time.Second)
	})
	for _, r := range results {
		want := map[string]Status{"gpu.driver": Critical, "gpu.answers": Unknown, "gpu.ecc": Unknown, "memory": OK, "disk.space": OK}[r.ID]
		if want != "" && r.Status != want {
			t.Errorf("%s is %s (%s), want %s", r.ID, r.Status, r.Reason, want)
		}
	}
	if s := Worst(results); s != Critical {
		t.Errorf("all together are %s", s)
	}
}

func TestCount(t *testing.T) {
	f := func(n, expectN int, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, nil)
		var list []health.Device
		for i := range n {
			list = append(list, gpu(i))
		}
		part := gpu(0)
		part.ID.Parent = "GPU-0" // a partition does not count as a device
		env.Devices, env.Expect, env.Manifest = with(append(list, part)...), expectN, manifest
		env.Mine = func(s *device.Sample) bool { return s.ID.Index == 0 } // in a job's check all devices are still counted
		expect(t, env, "gpu.count", want, words...)
	}
	f(7, 8, nil, Critical, "7 devices found, 8 expected")
	f(8, 8, nil, OK)
	f(9, 8, nil, Warning, "only 8")
	f(8, 0, nil, Skipped)
	f(8, 0, &Manifest{GPUs: GPUs{Count: 8, Models: map[string]int{"NVIDIA H200": 8}}}, OK)
	f(7, 0, &Manifest{GPUs: GPUs{Count: 8}}, Critical)
	f(8, 0, &Manifest{GPUs: GPUs{Count: 8, Models: map[string]int{"NVIDIA H100": 8}}}, Critical, "0 found")
}

func TestAnswers(t *testing.T) {
	env := node(t, nil)
	env.Devices = with(gpu(0), gpu(1))
	expect(t, env, "gpu.answers", OK, "2 devices")
	env.Devices = with(gpu(0), gpu(1, func(d *health.Device) { d.Up, d.Problem = false, "fallen off the bus" }))
	expect(t, env, "gpu.answers", Critical, "GPU 1", "fallen off the bus")
	env.Devices = with(gpu(0), gpu(1, func(d *health.Device) { d.Up, d.Reset = false, true }))
	expect(t, env, "gpu.answers", Critical, "until the device is reset")
	// Another job's GPU does not fail this job's prolog.
	env.Mine = func(s *device.Sample) bool { return s.ID.Index == 0 }
	expect(t, env, "gpu.answers", OK, "1 devices")
}

// Every rule's finding is reported by exactly one check, for the devices in question.
// Informational findings are reported by none.
func TestFindings(t *testing.T) {
	owners := map[string]string{
		"gpu.ecc.uncorrected": "gpu.ecc", "gpu.ecc.sram": "gpu.ecc", "gpu.row_remap.pending": "gpu.remap", "gpu.page_retirement.failed": "gpu.remap",
		"gpu.pcie.replays": "gpu.pcie", "gpu.interconnect.errors": "gpu.links", "gpu.fabric.unhealthy": "gpu.links", "gpu.memory.orphaned": "gpu.zombie",
		"gpu.xid": "gpu.xid", "gpu.recovery": "gpu.health", "gpu.throttled": "gpu.health", "gpu.rule.of.tomorrow": "gpu.health",
	}
	for rule, id := range owners {
		for severity, want := range map[health.Severity]Status{health.Info: OK, health.Warning: Warning, health.Critical: Critical} {
			env := node(t, nil)
			m := Machine{Devices: []health.Device{gpu(0), gpu(1)}, Drivers: []Driver{{"nvidia", "open", ""}}}
			m.Findings = []health.Finding{{Rule: rule, Severity: severity, Device: m.Devices[1].ID, Reason: "found 7 of them", Action: "act"}}
			env.Devices = func(context.Context) (Machine, error) { return m, nil }
			for _, r := range Run(t.Context(), env, All(), 5*time.Second) {
				if wants := (r.ID == id); wants && r.Status != want || !wants && (r.Status == Warning || r.Status == Critical) {
					t.Errorf("%s %s: %s is %s (%s)", severity, rule, r.ID, r.Status, r.Reason)
				}
			}
			env.Mine = func(s *device.Sample) bool { return s.ID.Index == 0 }
			expect(t, env, id, OK)
		}
	}
}

func TestPCIe(t *testing.T) {
	f := func(gen, genMax, width, widthMax, util float64, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, nil)
		env.Manifest = manifest
		env.Devices = with(gpu(3, func(d *health.Device) {
			d.PCIe = device.PCIe{Generation: device.Of(gen), GenerationMax: device.Of(genMax), Width: device.Of(width), WidthMax: device.Of(widthMax)}
			d.Utilization.Compute = device.Of(util)
		}))
		expect(t, env, "gpu.pcie", want, words...)
	}
	// An idle GPU slows its link down to save power.
	f(1, 5, 16, 16, 0, nil, OK)
	f(1, 5, 16, 16, 0.49, nil, OK)
	f(4, 5, 16, 16, 0.5, nil, Warning, "generation 4 at a load of 50 %, capable of 5")
	f(5, 5, 16, 16, 1, nil, OK)
	f(1, 5, 8, 16, 0, nil, Warning, "8 of 16 lanes")
	// A board in an eight-lane slot matches its manifest.
	f(1, 5, 8, 16, 0, &Manifest{GPUs: GPUs{Width: 8}}, OK)
	f(1, 5, 4, 16, 0, &Manifest{GPUs: GPUs{Width: 8}}, Critical, "4 lanes, the manifest says 8")
	f(1, 4, 16, 16, 0, &Manifest{GPUs: GPUs{Generation: 5}}, Critical, "at most generation 4")
	f(1, 5, 16, 16, 0, &Manifest{GPUs: GPUs{Generation: 5}}, OK)
}

func TestLinks(t *testing.T) {
	f := func(uptime string, up []float64, kind string, state float64, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, files{"proc/uptime": uptime})
		env.Manifest = manifest
		env.Devices = with(gpu(0, func(d *health.Device) {
			var links []device.Link
			for i, v := range up {
				links = append(links, device.Link{Index: i, Up: device.Of(v)})
			}
			d.Interconnects = []device.Interconnect{{Type: kind, Links: links}}
			d.Fabric.State = device.Of(state)
		}))
		expect(t, env, "gpu.links", want, words...)
	}
	const old, young = "1000.0 1", "299.0 1"
	f(old, []float64{1, 1}, "nvlink", 3, nil, OK, "2 links")
	f(old, []float64{1, 0}, "nvlink", 3, nil, Critical, "1 links to other devices are down (1), 1 are up")
	// A board without a bridge has links, but none is up.
	f(old, []float64{0, 0}, "nvlink", 3, nil, Skipped)
	f(old, []float64{0, 0}, "nvlink", 3, &Manifest{GPUs: GPUs{Links: 2}}, Critical, "0 links")
	// A port without a cable has not failed.
	f(old, []float64{1, 0}, "ethernet", 3, nil, Skipped)
	// Links train after boot.
	f(young, []float64{1, 0}, "nvlink", 3, nil, Warning)
	f(young, []float64{1, 1}, "nvlink", 2, nil, Warning)
	f(old, []float64{1, 1}, "nvlink", 2, nil, Critical, "not joined")
}

func TestZombie(t *testing.T) {
	f := func(want Status, change func(*health.Device)) {
		t.Helper()
		env := node(t, nil)
		env.Devices = with(gpu(0), gpu(1, change))
		expect(t, env, "gpu.zombie", want)
	}
	f(OK, func(d *health.Device) { d.Memory.Used = device.Of(1<<30 - 1) }) // the driver's own share
	f(Warning, func(d *health.Device) { d.Memory.Used = device.Of(1 << 30) })
	f(OK, func(d *health.Device) {
		d.Memory.Used, d.Processes = device.Of(1<<34), []device.Process{{PID: 7}}
	})
	f(OK, func(d *health.Device) { d.Memory.Used, d.Utilization.Compute = device.Of(1<<34), device.Of(0.1) }) // processes of a container that is not visible
	f(OK, func(d *health.Device) { d.Memory.Used, d.Modes.MIG = device.Of(1<<34), device.Of(1) })             // processes are listed on the partitions
	f(OK, func(d *health.Device) { d.Memory.Used, d.ID.Vendor = device.Of(1<<34), "gaudi" })                  // Gaudi lists no processes
}

func TestPersistence(t *testing.T) {
	f := func(v device.Value, want Status) {
		t.Helper()
		env := node(t, nil)
		env.Devices = with(gpu(0, func(d *health.Device) { d.Modes.Persistence = v }))
		expect(t, env, "gpu.persistence", want)
	}
	f(device.Of(1), OK)
	f(device.Of(0), Warning)
	f(device.Value{}, Skipped) // other vendors have no such mode
}

func TestFabricManager(t *testing.T) {
	const pci = "sys/bus/pci/devices/0000:0%d:00.0/"
	nvswitch := files{}
	for i := range 4 {
		nvswitch[fmt.Sprintf(pci+"vendor", i)], nvswitch[fmt.Sprintf(pci+"class", i)] = "0x10de\n", "0x068000\n"
	}
	f := func(more files, want Status, words ...string) {
		t.Helper()
		expect(t, node(t, more), "gpu.fabricmanager", want, words...)
	}
	f(nil, Skipped)
	f(files{fmt.Sprintf(pci+"vendor", 1): "0x10de", fmt.Sprintf(pci+"class", 1): "0x030200"}, Skipped) // a GPU, not a switch
	f(nvswitch, Critical, "4 NVSwitches")
	nvswitch["proc/77/comm"] = "nv-fabricmanager\n"[:15] + "\n"
	f(nvswitch, OK)
}

func TestXID(t *testing.T) {
	const up = 864000
	line := func(ago, code int) string {
		return fmt.Sprintf("4,%d,%d000000,-;NVRM: Xid (PCI:0000:11:00): %d, pid=610, name=python3, more\n", ago, up-ago, code)
	}
	f := func(log string, change func(*health.Device), want Status, words ...string) {
		t.Helper()
		env := node(t, files{"dev/kmsg": log})
		env.Devices = with(gpu(0), gpu(1, change))
		expect(t, env, "gpu.xid", want, words...)
	}
	same := func(*health.Device) {}
	f("", same, OK)
	// An application error says nothing about the GPU.
	f(line(5, 31)+line(5, 13)+line(4, 43), same, OK, "3 application errors")
	f(line(60, 79)+line(30, 79), same, Critical, "GPU 1", "XID 79", "2 times", "30 s ago")
	// An error that requires a reset persists until it is marked as repaired.
	f(line(5*3600, 79), same, Critical)
	f(line(5*3600, 79)+"12,9,863000000000,-;gpumeter: repaired\n"+line(60, 31), same, OK, "1 application errors")
	f(line(15*60, 54), same, Warning, "XID 54")
	f(line(15*60+1, 54), same, OK) // outside the window, without recurrence
	// A GPU that was reset is not drained again for earlier errors.
	f(line(60, 79), func(d *health.Device) { d.RecoveryAction = device.Of(0) }, Warning, "needs no recovery")
	f(line(15*60+1, 79), func(d *health.Device) { d.RecoveryAction = device.Of(0) }, OK)
	f(line(60, 79), func(d *health.Device) { d.RecoveryAction = device.Of(1) }, Critical)
	f("4,1,863990000000,-;NVRM: GPU 0000:11:00.0: GPU has fallen off the bus.\n", same, Critical, "XID 79")
	f("4,1,863990000000,-;NVRM: GPU 11:00.0: GPU has fallen off the bus.\n", same, Critical, "GPU 1", "XID 79")
	f("4,1,863990000000,-;NVRM: The NVIDIA GPU 0000:11:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.\\x0a\n", same, Critical, "GPU 1", "XID 79")
	f("4,1,863990000000,-;NVRM: Xid (PCI:0000:11:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n", same, Critical, "reboot")
	// A lost GPU is no longer listed; a GPU of another job is not this job's problem.
	f("4,1,863990000000,-;NVRM: Xid (PCI:0000:99:00): 79, pid=1\n", same, Critical, "GPU at 0000:99:00", "no longer lists the GPU")
	f("4,1,863990000000,-;NVRM: Xid (PCI:0000:99:00): 31, pid=1\n", same, OK)
	env := node(t, files{"dev/kmsg": line(60, 79)})
	env.Devices, env.Mine = with(gpu(0), gpu(1)), func(s *device.Sample) bool { return s.ID.Index == 0 }
	expect(t, env, "gpu.xid", OK)
	env.Mine, env.Devices = nil, with()
	expect(t, env, "gpu.xid", Critical, "GPU at 0000:11:00") // the only GPU is gone
	expect(t, node(t, nil), "gpu.xid", Skipped)
	f("12,1,863990000000,-;NVRM: Xid (PCI:0000:11:00): 79, written by a user\n", same, OK) // a user may write to the log
	f("4,1,863990000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30\n", same, Critical, "SXid 20034")
	f("4,1,863990000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 30\n", same, OK)
	f("-", same, Skipped)
}

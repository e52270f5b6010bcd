//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/check/nvme"
)

func TestStuck(t *testing.T) {
	stat := func(state, flags string) string {
		return "77 (my (odd) name) " + state + " 1 77 77 0 -1 " + flags + " 0 0 0 0 0 0 0 0 20 0 1 0 1000 0 0\n"
	}
	const status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n"
	const hung = "3,9,863990000000,-;INFO: task python3:77 blocked for more than 120 seconds.\n"
	f := func(more files, open string, want Status, words ...string) {
		t.Helper()
		env := node(t, more)
		if open != "" {
			if err := os.MkdirAll(filepath.Join(env.Root, "proc/77/fd"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(open, filepath.Join(env.Root, "proc/77/fd/3")); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, env, "process.stuck", want, words...)
	}
	f(files{"proc/77/stat": stat("S", "0"), "proc/77/status": status}, "/dev/nvidia0", OK)
	f(files{"proc/77/stat": stat("D", "0"), "proc/77/status": status}, "", Warning, "process 77 (my (odd) name)")
	f(files{"proc/77/stat": stat("D", "0"), "proc/77/status": status}, "/dev/nvidia0", Warning, "/dev/nvidia0 open")
	f(files{"proc/77/stat": stat("D", "0"), "proc/77/status": status, "dev/kmsg": hung}, "/dev/nvidia0", Critical, "more than 120 s")
	// A file server that is slow is not the GPU's fault.
	f(files{"proc/77/stat": stat("D", "0"), "proc/77/status": status, "dev/kmsg": hung}, "/home/data", Warning)
	f(files{"proc/77/stat": stat("D", "2097152"), "proc/77/status": status}, "", OK) // a thread of the kernel
	f(files{"proc/77/stat": stat("D", "0"), "proc/77/status": status, "proc/77/wchan": "__refrigerator"}, "", OK)

	// A process that reads a disk is in this state each time one looks, and moves.
	env := node(t, files{"proc/77/stat": stat("D", "0"), "proc/77/status": status})
	list, err := Select(Periodic, []string{"process.stuck"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(env.StuckFor/2, func() { put(t, env.Root, "proc/77/status", strings.Replace(status, "5", "6", 1)) })
		if r := Run(t.Context(), env, list, 10*time.Second)[0]; r.Status != OK || !strings.Contains(r.Reason, "1 processes wait, and move") {
			t.Errorf("%s: %s", r.Status, r.Reason)
		}
	})
}

func ib(device, state, phys, rate string, counters ...string) files {
	dir := "sys/class/infiniband/" + device + "/ports/1/"
	out := files{dir + "state": state + "\n", dir + "phys_state": phys + "\n", dir + "rate": rate + "\n", dir + "link_layer": "InfiniBand\n"}
	for _, c := range counters {
		name, value, _ := strings.Cut(c, "=")
		out[dir+"counters/"+name] = value + "\n"
	}
	return out
}

const (
	active, linkUp = "4: ACTIVE", "5: LinkUp"
	down, polling  = "1: DOWN", "2: Polling"
	ndr            = "400 Gb/sec (4X NDR)"
)

func TestIBPorts(t *testing.T) {
	f := func(more files, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, more)
		env.Manifest = manifest
		expect(t, env, "ib.ports", want, words...)
	}
	want := &Manifest{InfiniBand: []Port{{"mlx5_0", 1, "InfiniBand", 400}}}
	f(nil, nil, Skipped)
	f(nil, want, Critical, "mlx5_0 port 1: it is not there")
	f(ib("mlx5_0", active, linkUp, ndr), want, OK)
	f(ib("mlx5_0", active, linkUp, "200 Gb/sec (2X NDR)"), want, Critical, "200 Gbit/s, the manifest says 400")
	f(ib("mlx5_0", active, linkUp, "800 Gb/sec (4X XDR)"), want, OK)
	f(ib("mlx5_0", down, polling, "10 Gb/sec (4X SDR)"), want, Critical, "it is down")
	f(ib("mlx5_0", "2: INIT", linkUp, ndr), want, Critical, "subnet manager")
	f(ib("mlx5_0", "nonsense", linkUp, ndr), want, Unknown)
	f(ib("mlx5_0", active, linkUp, ndr), &Manifest{InfiniBand: []Port{{"mlx5_0", 1, "Ethernet", 0}}}, Critical, "link layer")
	// Nobody said that there should be a cable.
	f(ib("mlx5_0", down, polling, "10 Gb/sec (4X SDR)", "link_downed=0"), nil, OK, "0 of 1")
	f(ib("mlx5_0", down, polling, "10 Gb/sec (4X SDR)", "link_downed=1"), nil, Warning, "was up")
	f(ib("mlx5_0", down, "3: Disabled", "10 Gb/sec (4X SDR)", "link_downed=1"), nil, OK) // somebody turned it off
	f(ib("mlx5_0", "2: INIT", linkUp, ndr), nil, Warning, "INIT")
}

func TestIBErrors(t *testing.T) {
	f := func(uptime time.Duration, manifest *Manifest, want Status, counters ...string) {
		t.Helper()
		more := ib("mlx5_0", active, linkUp, ndr, counters...)
		more["proc/uptime"] = fmt.Sprintf("%.1f 1", uptime.Seconds())
		env := node(t, more)
		env.Manifest = manifest
		expect(t, env, "ib.errors", want)
	}
	f(10*time.Hour, nil, OK, "symbol_error=1200")
	f(10*time.Hour, nil, Warning, "symbol_error=1201")
	f(time.Minute, nil, OK, "symbol_error=120") // the first minutes have those of training
	f(100*day, nil, OK, "symbol_error=287999")  // an old machine has large numbers
	f(100*day, nil, OK, "port_xmit_discards=1000000000", "VL15_dropped=99999")
	f(10*day, nil, OK, "link_downed=240")
	f(10*day, nil, Warning, "link_downed=241")
	f(10*time.Hour, &Manifest{IBErrors: LinkRates{"symbol_error": 200}}, OK, "symbol_error=2000")
	f(10*time.Hour, &Manifest{IBErrors: LinkRates{"symbol_error": 0}}, Warning, "symbol_error=1")
}

func TestNetLinks(t *testing.T) {
	f := func(state, speed string, manifest *Manifest, want Status) {
		t.Helper()
		more := files{}
		if state != "" {
			more["sys/class/net/eth0/operstate"], more["sys/class/net/eth0/speed"] = state, speed
		}
		env := node(t, more)
		env.Manifest = manifest
		expect(t, env, "net.links", want)
	}
	m := &Manifest{Network: []NIC{{"eth0", 100000}}}
	f("up", "100000", nil, Skipped)
	f("up", "100000", m, OK)
	f("up", "25000", m, Warning)
	f("up", "-1", m, OK) // a virtual machine does not know
	f("down", "-1", m, Critical)
	f("", "", m, Critical)
}

func TestDiskSpace(t *testing.T) {
	f := func(path string, st unix.Statfs_t, want Status, words ...string) {
		t.Helper()
		env := node(t, files{"proc/1/mountinfo": "22 1 8:1 / " + path + " rw - xfs /dev/sda1 rw\n"})
		env.Statfs = func(string) (unix.Statfs_t, error) { return st, nil }
		expect(t, env, "disk.space", want, words...)
	}
	f("/", space(89, 50), OK)
	f("/", space(90, 50), Warning, "90.0 %", "10.0 GiB")
	f("/", space(96, 50), Warning)
	f("/", space(97, 50), Critical)
	f("/", space(50, 89), OK)
	f("/", space(50, 90), Warning, "inodes", "100 are left")
	f("/", space(50, 98), Critical)
	f("/boot", space(97, 98), Warning) // no job writes there
	// A twentieth of a large disk is plenty.
	f("/", unix.Statfs_t{Bsize: 1 << 30, Blocks: 30000, Bfree: 1000, Bavail: 1000}, OK)
	// btrfs makes inodes as it goes.
	f("/", unix.Statfs_t{Bsize: 1 << 30, Blocks: 100, Bfree: 50, Bavail: 50}, OK)

	// What is full by design, or everybody's, is not looked at.
	env := node(t, files{"proc/1/mountinfo": "1 1 7:1 / /snap/x ro - squashfs /dev/loop0 ro\n2 1 0:5 / /home rw - nfs4 server:/home rw\n" +
		"3 1 8:1 / /ro ro - ext4 /dev/sda1 rw\n5 1 8:5 / /var/lib/kubelet/pods/x/volumes/y rw - ext4 /dev/sde rw\n4 1 8:2 / /var/x rw - ext4 /dev/sda2 rw\n"})
	env.Statfs = func(path string) (unix.Statfs_t, error) {
		if !strings.HasSuffix(path, "/var/x") {
			return space(100, 100), nil
		}
		return space(10, 10), nil
	}
	expect(t, env, "disk.space", OK, "1 file systems")
}

func TestMounts(t *testing.T) {
	f := func(mounts, fstab string, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, files{"proc/1/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts, "etc/fstab": fstab})
		env.Manifest = manifest
		expect(t, env, "disk.mounts", want, words...)
	}
	const home = "30 22 0:50 / /home rw - nfs4 server:/home rw\n"
	f(home, "server:/home /home nfs4 _netdev 0 0\n", nil, OK)
	f("", "server:/home /home nfs4 _netdev 0 0\n", nil, Critical, "/home: it is not mounted")
	f("", "server:/home /home nfs4 nofail 0 0\n", nil, Warning)
	f("", "server:/home /home nfs4 noauto 0 0\n#x /y z w\n/dev/sdb none swap sw 0 0\n", nil, Skipped)
	f("", "", &Manifest{Mounts: []string{"/scratch/"}}, Critical, "/scratch")
	f(`31 22 0:51 / /with\040blank rw - ext4 /dev/sdb rw`+"\n", `/dev/sdb /with\040blank ext4 rw 0 0`+"\n", nil, OK)

	// A file server that is gone keeps whoever asks; the rest of the run does not wait.
	env := node(t, nil)
	list, err := Select(Periodic, []string{"disk."}, nil)
	if err != nil {
		t.Fatal(err)
	}
	results := hanging(t, 5*time.Second, func(ctx context.Context, hang func()) []Result {
		env.Statfs = func(path string) (unix.Statfs_t, error) {
			if strings.HasSuffix(path, "/home") {
				hang()
			}
			return space(1, 1), nil
		}
		return Run(ctx, env, list, 10*time.Second)
	})
	for _, r := range results {
		if r.ID == "disk.mounts" && (r.Status != Unknown || !strings.Contains(r.Reason, "/home: it has not answered")) || r.ID == "disk.space" && r.Status != OK {
			t.Errorf("%s is %s: %s", r.ID, r.Status, r.Reason)
		}
	}
	env.Statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ESTALE }
	expect(t, env, "disk.mounts", Unknown, "stale")
}

func TestSMART(t *testing.T) {
	f := func(h nvme.Health, err error, state string, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, files{"sys/class/nvme/nvme0/state": state})
		env.Manifest = manifest
		env.NVMe = func(string) (nvme.Health, error) { return h, err }
		expect(t, env, "disk.smart", want, words...)
	}
	good := nvme.Health{Celsius: 40, Spare: 100, SpareThreshold: 10}
	f(good, nil, "live", nil, OK)
	f(nvme.Health{Used: 99, MediaErrors: 3}, nil, "live", nil, OK) // numbers without a history
	f(nvme.Health{Used: 100}, nil, "live", nil, Warning, "100 %")
	f(nvme.Health{Warning: nvme.SpareLow, Spare: 9, SpareThreshold: 10}, nil, "live", nil, Warning, "9 %")
	f(nvme.Health{Warning: nvme.Unreliable}, nil, "live", nil, Critical)
	f(nvme.Health{Warning: nvme.ReadOnly}, nil, "live", nil, Critical)
	f(good, unix.EACCES, "live", nil, Skipped, "none could be asked") // as another user
	f(good, unix.EACCES, "dead", nil, Critical, "given it up")
	f(good, nil, "live", &Manifest{NVMe: 1}, OK)
	f(good, nil, "live", &Manifest{NVMe: 2}, Critical, "has 1 NVMe disks, the manifest says 2")
}

func TestMemory(t *testing.T) {
	f := func(total, free int, manifest *Manifest, want Status) {
		t.Helper()
		env := node(t, files{"proc/meminfo": fmt.Sprintf("MemTotal: %d kB\nMemAvailable: %d kB\n", total, free)})
		env.Manifest = manifest
		expect(t, env, "memory", want)
	}
	m := &Manifest{MemoryBytes: 1000 << 20}
	f(1000<<10, 500<<10, nil, OK)
	f(970<<10, 500<<10, m, OK) // another kernel keeps more for itself
	f(969<<10, 500<<10, m, Critical)
	f(1000<<10, 20<<10, nil, OK)
	f(1000<<10, 20<<10-1, nil, Warning) // a job may use it: never critical
}

func TestGovernor(t *testing.T) {
	f := func(driver string, manifest *Manifest, want Status, governors ...string) {
		t.Helper()
		more := files{"sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": driver}
		for i, g := range governors {
			more[fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", i)] = g + "\n"
		}
		env := node(t, more)
		env.Manifest = manifest
		expect(t, env, "cpu.governor", want)
	}
	f("acpi-cpufreq", nil, Skipped)
	f("acpi-cpufreq", nil, OK, "performance", "performance")
	f("acpi-cpufreq", nil, OK, "schedutil", "schedutil")
	f("acpi-cpufreq", nil, Warning, "performance", "powersave")
	f("intel_pstate", nil, OK, "powersave", "powersave") // which raises the clock by itself
	f("intel_pstate", &Manifest{Governor: "performance"}, Warning, "powersave", "powersave")
	f("intel_pstate", &Manifest{Governor: "performance"}, Warning, "performance", "powersave")
	f("intel_pstate", &Manifest{Governor: "performance"}, OK, "performance", "performance")
}

func TestClock(t *testing.T) {
	source := func(text string, manifest *Manifest, want Status) {
		t.Helper()
		env := node(t, files{"sys/devices/system/clocksource/clocksource0/current_clocksource": text})
		env.Manifest = manifest
		expect(t, env, "clock.source", want)
	}
	source("tsc", nil, OK)
	source("kvm-clock", nil, OK) // of a virtual machine
	source("hpet", nil, Warning)
	source("kvm-clock", &Manifest{ClockSource: "tsc"}, Warning)
	source("-", nil, Skipped)

	clock := func(state int, tx unix.Timex, err error, want Status) {
		t.Helper()
		env := node(t, nil)
		env.Clock = func() (int, unix.Timex, error) { return state, tx, err }
		expect(t, env, "clock.sync", want)
	}
	clock(unix.TIME_OK, unix.Timex{Maxerror: 1_000_000}, nil, OK)
	clock(unix.TIME_OK, unix.Timex{Maxerror: 1_000_001}, nil, Warning)
	clock(unix.TIME_INS, unix.Timex{}, nil, OK) // a leap second is announced
	clock(unix.TIME_ERROR, unix.Timex{}, nil, Warning)
	clock(unix.TIME_OK, unix.Timex{Status: unix.STA_UNSYNC}, nil, Warning)
	clock(0, unix.Timex{}, errors.New("not permitted"), Skipped)
}

func TestSensors(t *testing.T) {
	const mc, hw = "sys/devices/system/edac/mc/mc0/", "sys/class/hwmon/hwmon0/"
	f := func(more files, want Status) {
		t.Helper()
		expect(t, node(t, more), "sensors", want)
	}
	f(nil, Skipped)
	f(files{mc + "ue_count": "0", mc + "ce_count": "10000"}, OK) // over ten days
	f(files{mc + "ue_count": "0", mc + "ce_count": "10001"}, Warning)
	f(files{mc + "ue_count": "1", mc + "ce_count": "0"}, Warning)
	f(files{hw + "temp1_crit_alarm": "0", hw + "fan1_alarm": "1", hw + "in0_alarm": "1"}, OK) // which boards report of fans that are not there
	f(files{hw + "temp1_crit_alarm": "1"}, Warning)
	f(files{hw + "fan2_fault": "1"}, Warning)
}

func TestServices(t *testing.T) {
	f := func(more files, manifest *Manifest, want Status, words ...string) {
		t.Helper()
		env := node(t, more)
		env.Manifest = manifest
		expect(t, env, "services", want, words...)
	}
	m := &Manifest{Services: []string{"slurmd", "munge.service"}}
	const cg = "sys/fs/cgroup/system.slice/"
	f(nil, nil, Skipped)
	f(nil, m, Skipped) // a machine without systemd
	f(files{cg + "slurmd.service/cgroup.events": "populated 1\nfrozen 0\n", cg + "munge.service/cgroup.procs": "55\n"}, m, OK)
	f(files{cg + "slurmd.service/cgroup.events": "populated 0\nfrozen 0\n", cg + "munge.service/cgroup.procs": "55\n"}, m, Critical, "slurmd.service")
	f(files{cg + "slurmd.service/cgroup.procs": "1\n"}, m, Critical, "munge.service")
}

func TestKernelLog(t *testing.T) {
	f := func(want Status, words string, lines ...string) {
		t.Helper()
		var log strings.Builder
		for i, l := range lines {
			fmt.Fprintf(&log, "3,%d,%d000000,-;%s\n", i, 863_900+i, l)
		}
		expect(t, node(t, files{"dev/kmsg": log.String()}), "kernel.log", want, words)
	}
	many := func(n int, line string) (out []string) {
		for range n {
			out = append(out, line)
		}
		return out
	}
	f(OK, "nothing in 0 lines")
	f(Critical, "once", "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: Uncorrected error")
	f(OK, "", "mce: [Hardware Error]: Machine check events logged") // said of corrected ones, too
	f(Critical, "", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0")
	f(OK, "", many(99, "EDAC MC0: 1 CE memory read error")...)
	f(Warning, "100 times", many(100, "EDAC MC0: 1 CE memory read error")...)
	f(Critical, "", "nvme nvme0: controller is down; will reset: CSTS=0xffffffff")
	f(Warning, "", "nvme nvme0: I/O 12 QID 3 timeout, aborting")
	f(Warning, "", "blk_update_request: I/O error, dev nvme0n1, sector 5")
	f(OK, "", "I/O error, dev sr0, sector 0", "I/O error, dev fd0, sector 0") // drives without a disk
	f(Warning, "NFS server fs1", "nfs: server fs1 not responding, still trying")
	f(OK, "", "nfs: server fs1 not responding, still trying", "nfs: server fs1 OK")
	f(OK, "2 processes were ended for want of memory", "Memory cgroup out of memory: Killed process 5 (a)", "Out of memory: Killed process 6 (b)") // a job that asked for too little
	f(OK, "", many(2, "mlx5_core 0000:1a:00.0 ib0: Link down")...)                                                                                 // somebody moved a cable
	f(Warning, "3 times", many(3, "mlx5_core 0000:1a:00.0 ib0: Link down")...)
	f(Critical, "", "EXT4-fs error (device sda1): bad inode")
	f(OK, "", "EXT4-fs error (device loop3): bad inode", "EXT4-fs (loop3): Remounting filesystem read-only", "XFS (loop1): Corruption detected") // an image that a job mounted
	f(Warning, "", "pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error received: 0000:01:00.0", "INFO: task a:5 blocked for more than 120 seconds.")
	f(Critical, "", "pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error received: 0000:01:00.0")
	f(OK, "", many(500, "pcieport 0000:00:01.0: AER: Corrected error received")...)

	// What passes counts within the window, what stays broken longer; neither if a user wrote it.
	at := func(priority, ago int, line string) string {
		return fmt.Sprintf("%d,1,%d000000,-;%s\n", priority, 864_000-ago, line)
	}
	whole := func(want Status, log string) {
		t.Helper()
		expect(t, node(t, files{"dev/kmsg": log}), "kernel.log", want)
	}
	const stays, passes = "EXT4-fs error (device sda1): bad inode", "nvme nvme0: I/O 12 QID 3 timeout, aborting"
	whole(Warning, at(3, 15*60, passes))
	whole(OK, at(3, 15*60+1, passes))
	whole(Critical, at(3, 24*3600, stays))
	whole(OK, at(3, 24*3600, stays)+at(12, 3600, "gpumeter: repaired by me"))
	whole(Critical, at(12, 3600, "gpumeter: repaired")+at(3, 1800, stays))
	whole(OK, at(11, 60, stays))
	expect(t, node(t, files{"dev/kmsg": "-"}), "kernel.log", Skipped)
}

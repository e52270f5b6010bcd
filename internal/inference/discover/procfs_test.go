package discover

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var addresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// Catches a process whose name has parentheses and spaces, and one that is a zombie.
func TestParseStat(t *testing.T) {
	const rest = " 7 7 9 34816 -1 4194560 1 2 3 4 5 6 7 8 20 0 12 0 5521 0 0\n"
	type result struct {
		stat
		failed bool
	}
	for text, want := range map[string]result{
		"9 (VLLM::Engine) S (x) S" + rest: {stat: stat{name: "VLLM::Engine) S (x", parent: 7, session: 9, terminal: true, start: 5521}},
		"9 (a) Z" + rest:                  {stat: stat{name: "a", parent: 7, session: 9, terminal: true, start: 5521, ended: true}},
		"9 (a) S 7 7 9 0":                 {failed: true},
		"9 a S" + rest:                    {failed: true},
		"":                                {failed: true},
	} {
		s, err := parseStat([]byte(text))
		if diff := cmp.Diff(want, result{s, err != nil}, cmp.AllowUnexported(result{}, stat{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

// Catches an address in the wrong byte order, sockets that do not listen, and a row that is cut off.
func TestParseListeners(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the rows are of a little-endian machine")
	}
	const tail = " 00000000:00000000 00:00000000 00000000     0        0 "
	const end = " 1 0000000000000000 100 0 0 10 0\n"
	list, bad := parseListeners([]byte("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:1F40 00000000:0000 0A" + tail + "11" + end +
		"   1: 00000000:0050 00000000:0000 0A" + tail + "12" + end +
		"   2: 0100007F:1F40 0100007F:0051 01" + tail + "13" + end +
		"   3: 00000000000000000000000001000000:1F41 00000000000000000000000000000000:0000 0A" + tail + "14" + end +
		"   4: 0000000000000000FFFF00000100007F:1F42 00000000000000000000000000000000:0000 0A" + tail + "15" + end +
		"   5: 0100007:1F40 00000000:0000 0A" + tail + "16" + end +
		"   6: 0100007F:1F40 00000000:0000 0A" + tail + "x" + end +
		"   7: 0100007F:1F40 00000000:0000 0A" + tail + "17"))
	type row struct {
		Address string
		Inode   uint64
	}
	var got []row
	for _, l := range list {
		got = append(got, row{l.address.String(), l.inode})
	}
	want := []row{{"127.0.0.1:8000", 11}, {"0.0.0.0:80", 12}, {"[::1]:8001", 14}, {"127.0.0.1:8002", 15}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if bad != 2 {
		t.Errorf("%d rows are bad, want 2", bad)
	}
}

// Catches an address of another machine, or of loopback, that is taken for the namespace's own.
func TestParseTrie(t *testing.T) {
	const file = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     +-- 10.1.2.0/24 2 0 2
           |-- 10.1.2.0
              /24 link UNICAST
           |-- 10.1.2.3
              /32 host LOCAL
Local:
           |-- 10.1.2.3
              /32 host LOCAL
           |-- nonsense
              /32 host LOCAL
`
	if diff := cmp.Diff([]netip.Addr{netip.MustParseAddr("10.1.2.3")}, parseTrie([]byte(file)), addresses); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a link-local address, or one that another machine has, that is dialed.
func TestParseInet6(t *testing.T) {
	const file = `fe8000000000000000fc00fffe000001 04 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000002 04 40 00 82     eth0
fd000000000000000000000000000003 04 40 00 48     eth0
short
`
	if diff := cmp.Diff([]netip.Addr{netip.MustParseAddr("fd00::2")}, parseInet6([]byte(file)), addresses); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a boot time or a range of ports that is misread.
func TestParseSmall(t *testing.T) {
	if at, err := parseBoot([]byte("cpu 1\nbtime 1790000000\nprocesses 7\n")); at != 1790000000 || err != nil {
		t.Errorf("booted at %d, %v", at, err)
	}
	if _, err := parseBoot([]byte("cpu 1\n")); err == nil {
		t.Error("no error without a boot time")
	}
	if a, b, err := parseRange([]byte("32768\t60999\n")); a != 32768 || b != 60999 || err != nil {
		t.Errorf("range %d to %d, %v", a, b, err)
	}
	for _, text := range []string{"", "1 2 3", "1 70000"} {
		if _, _, err := parseRange([]byte(text)); err == nil {
			t.Errorf("no error for the range %q", text)
		}
	}
}

// Catches processes of different people that are put together because of their control group, and those of one
// container, service or job that are not.
func TestParseGroup(t *testing.T) {
	for _, tt := range []struct{ file, want string }{
		{"0::/\n", ""},
		{"", ""},
		{"0::/init.scope\n", ""},
		{"0::/user.slice/user-1000.slice/session-3.scope\n", ""},
		{"0::/user.slice/user-1000.slice/user@1000.service\n", ""},
		{"0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", ""},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-terminal-7.scope\n", ""},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.kde.konsole@7.service\n", ""},
		{"0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-7.scope\n", ""},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service\n", "/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service"},
		{"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-abc.scope\n", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-abc.scope"},
		{"0::/system.slice/ssh.service\n", ""},
		{"0::/system.slice/slurmd.service\n", ""},
		{"0::/system.slice/vllm.service\n", "/system.slice/vllm.service"},
		{"0::/system.slice/docker-abc.scope (deleted)\n", "/system.slice/docker-abc.scope"},
		{"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope\n", "/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope"},
		{"0::/kubepods.slice/kubepods-pod1.slice\n", ""},
		{"0::/../cri-containerd-abc.scope\n", "/cri-containerd-abc.scope"},
		{"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n", "/system.slice/slurmstepd.scope/job_7/step_0"},
		{"9:name=systemd:/docker/abc\n4:memory:/docker/abc\n0::/\n", "/docker/abc"},
		{"9:name=systemd:/\n4:memory:/slurm/uid_7/job_7/step_0/task_0\n1:cpu,cpuacct:/x\n", "/slurm/uid_7/job_7/step_0"},
		{"4:cpuset:/other\nnonsense\n", ""},
	} {
		if got := parseGroup([]byte(tt.file)); got != tt.want {
			t.Errorf("%q is of %q, want %q", tt.file, got, tt.want)
		}
	}
}

// Catches a file of the kernel that ends the agent.
func FuzzParse(f *testing.F) {
	f.Add([]byte("  sl\n   0: 0100007F:1F40 00000000:0000 0A 0:0 0:0 0 0 0 11 1\n"))
	f.Add([]byte("0::/system.slice/slurmstepd.scope/job_7/step_0\n1:cpu:/..\n"))
	f.Add([]byte("  |-- 10.1.2.3\n     /32 host LOCAL\n"))
	f.Add([]byte("fd000000000000000000000000000002 04 40 00 82     eth0\n"))
	f.Add([]byte("9 (a) S 7 7 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 12 0 5521 0 0\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		list, _ := parseListeners(file)
		for _, l := range list {
			if !l.address.IsValid() || l.inode == 0 {
				t.Errorf("socket %v", l)
			}
		}
		for _, a := range parseTrie(file) {
			if !a.Is4() || a.IsLoopback() {
				t.Errorf("address %v", a)
			}
		}
		for _, a := range parseInet6(file) {
			if !a.Is6() {
				t.Errorf("address %v", a)
			}
		}
		if group := parseGroup(file); group != "" && group[0] != '/' || group == "/" {
			t.Errorf("control group %q", group)
		}
		_, _ = parseStat(file) // any outcome but a panic is right
		_, _ = parseBoot(file)
		_, _, _ = parseRange(file)
	})
}

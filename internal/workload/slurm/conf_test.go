package slurm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

func TestParseCluster(t *testing.T) {
	got := parseCluster(parseConf([]byte(`
# a comment
CLUSTERNAME=E2E  # Slurm writes it in lower case
SlurmctldHost=ctl(10.0.0.1)
SrunPortRange = 60001-63000
NodeName=DEFAULT Gres=gpu:h100:8,shard:32
NodeName=gn[1-2] NodeHostname=h[11-12] \
   CPUs=16 RealMemory=64000
NodeName=cpu1 Gres="gpu:a100:2" Comment="a b=c"
NodeName=v[1-2] NodeHostname=big Gres=gpu:2
PartitionName=gpu Nodes=gn[1-2]
`)))
	want := cluster{Name: "e2e", Nodes: []nodeConf{
		{Names: "gn[1-2]", Hosts: "h[11-12]", GRES: "gpu:h100:8,shard:32"},
		{Names: "cpu1", GRES: "gpu:a100:2"},
		{Names: "v[1-2]", Hosts: "big", GRES: "gpu:2"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A machine's name may differ from its node's.
	for host, want := range map[string][]string{
		"h12": {"gn2"}, "h12.example.org": {"gn2"}, "cpu1": {"cpu1"}, "big": {"v1", "v2"}, "login": nil, "gn2": nil,
	} {
		if diff := cmp.Diff(want, got.node(host)); diff != "" {
			t.Errorf("nodes of %s (-want +got):\n%s", host, diff)
		}
	}
}

func TestReadConfIncludes(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "slurm.conf"), "ClusterName=a\nInclude nodes.conf\nInclude gone.conf\nInclude slurm.conf\n")
	write(t, filepath.Join(dir, "nodes.conf"), "NodeName=gn1\n")
	lines, err := readConf(filepath.Join(dir, "slurm.conf"))
	if err == nil {
		t.Error("no error for a missing file and a file that includes itself")
	}
	if c := parseCluster(lines); c.Name != "a" || len(c.node("gn1")) == 0 {
		t.Errorf("%+v", c)
	}
}

// gpus creates the files of a driver with three GPUs, whose minor numbers are not in bus
// order, and the last of which has two partitions.
func gpus(t *testing.T) machine {
	root := t.TempDir()
	for address, minor := range map[string]string{"0000:1B:00.0": "2", "0000:3b:00.0": "0", "0000:86:00.0": "1"} {
		write(t, filepath.Join(root, "proc/driver/nvidia/gpus", address, "information"), "Model: \t\t NVIDIA H100\nDevice Minor: \t "+minor+"\n")
	}
	for gi, minor := range map[string]string{"gi2": "21", "gi10": "93"} {
		write(t, filepath.Join(root, "proc/driver/nvidia/capabilities/gpu1/mig", gi, "access"), "DeviceFileMinor: "+minor+"\nDeviceFileMode: 292\n")
		write(t, filepath.Join(root, "proc/driver/nvidia/capabilities/gpu1/mig", gi, "ci0/access"), "DeviceFileMinor: 1"+minor+"\n")
	}
	write(t, filepath.Join(root, "sys/devices/pci/0000:C1:00.0/x"), "")
	write(t, filepath.Join(root, "sys/class/drm/renderD128/x"), "")
	if err := os.Symlink("../../../devices/pci/0000:C1:00.0", filepath.Join(root, "sys/class/drm/renderD128/device")); err != nil {
		t.Fatal(err)
	}
	return machine{root: root}
}

// The number of a GPU in Slurm is its position in gres.conf, not its index in the driver; a
// partition is not its GPU.
func TestOrder(t *testing.T) {
	m := gpus(t)
	f := func(name, conf string, m machine, want ...device) {
		t.Helper()
		got := parseGresConf(parseConf([]byte(conf)), "gn2", nil).order(m)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// Observed on 22.05: IDX:3-4 of such a file opened nvidia0 and nvidia1.
	f("order of the file", "Name=gpu File=/dev/nvidia5\nName=gpu File=/dev/nvidia3\nName=gpu File=/dev/nvidia[0-1]\n", m,
		device{"nvidia5"}, device{"nvidia3"}, device{"nvidia0"}, device{"nvidia1"})
	f("of this node", "NodeName=gn1 Name=gpu File=/dev/nvidia7\nNodeName=gn[2-3] Name=gpu Type=a File=/d/nvidia[10-11]\nName=nic File=/dev/mlx0\n", m,
		device{"nvidia10"}, device{"nvidia11"})
	f("found by slurmd", "AutoDetect=nvml\n", m,
		device{"nvidia2", "0000:1b:00.0"}, device{"nvidia0", "0000:3b:00.0"}, device{"nvidia1/gi2"}, device{"nvidia1/gi10"})
	f("found by slurmd, some of them", "AutoDetect=nvml\nName=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia2\n", m,
		device{"nvidia2", "0000:1b:00.0"}, device{"nvidia0", "0000:3b:00.0"})
	f("not found on this node", "AutoDetect=nvml\nNodeName=gn2 AutoDetect=off Name=gpu File=/dev/nvidia[0-1]\n", m, device{"nvidia0"}, device{"nvidia1"})
	f("nothing is said", "", m,
		device{"nvidia2", "0000:1b:00.0"}, device{"nvidia0", "0000:3b:00.0"}, device{"nvidia1/gi2"}, device{"nvidia1/gi10"})
	f("nothing is known", "", machine{root: t.TempDir()})
	f("partitions", "Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap93,/dev/nvidia-caps/nvidia-cap193\n"+
		"Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap[21,121]\n"+
		"Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap7\n", m,
		device{"nvidia1/gi10"}, device{"nvidia1/gi2"}, nil)
	f("numbers in a directory", "Name=gpu File=/dev/tenstorrent/[0-1]\n", m, device{"tenstorrent/0"}, device{"tenstorrent/1"})
	f("AMD", "Name=gpu Type=mi300x File=/dev/dri/renderD128\nName=gpu File=/dev/dri/renderD129\n", m,
		device{"0000:c1:00.0", "renderD128"}, device{"renderD129"})
}

// Render nodes are numbered in bus order, separately for each vendor: an integrated GPU must
// not shift the numbers of the others.
func TestFound(t *testing.T) {
	root := t.TempDir()
	for node, d := range map[string]struct{ pci, driver string }{
		"renderD128": {"0000:00:02.0", "igpu"}, "renderD129": {"0000:c1:00.0", "amdgpu"}, "renderD130": {"0000:43:00.0", "amdgpu"},
	} {
		write(t, filepath.Join(root, "sys/devices/pci", d.pci, "x"), "")
		write(t, filepath.Join(root, "sys/class/drm", node, "x"), "")
		for link, to := range map[string]string{
			"sys/class/drm/" + node + "/device":    "../../../devices/pci/" + d.pci,
			"sys/devices/pci/" + d.pci + "/driver": "../../../bus/pci/drivers/" + d.driver,
		} {
			if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := machine{root, [][]string{{"none"}, {"amdgpu", "amdgpu2"}, {"igpu"}}}.found()
	if diff := cmp.Diff([]device{{"0000:43:00.0", "renderD130"}, {"0000:c1:00.0", "renderD129"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := (machine{root, nil}).found(); got != nil {
		t.Errorf("found without a driver: %v", got)
	}
}

// Without gres.conf an index is a minor number. Which vendor the device has is unknown, so it
// has a name for each.
func TestNumbered(t *testing.T) {
	if diff := cmp.Diff(device{"nvidia3", "tenstorrent/3"}, numbered([]string{"nvidia", "tenstorrent/"}, 3)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReplicas(t *testing.T) {
	f := func(conf, gres, name string, d device, want uint64) {
		t.Helper()
		sum, err := slurm.ParseGRES(gres)
		if err != nil {
			t.Fatal(err)
		}
		if got := parseGresConf(parseConf([]byte(conf)), "gn1", sum).replicas(name, d, 8); got != want {
			t.Errorf("%q and %q: %s of %v: %d, want %d", conf, gres, name, d, got, want)
		}
	}
	f("Name=shard Count=4 File=/dev/nvidia0\nName=shard Count=2 File=/dev/nvidia1\n", "shard:6", "shard", device{"nvidia1"}, 2)
	f("Name=shard Count=8 File=/dev/nvidia[0-1]\n", "", "shard", device{"nvidia1"}, 4)
	f("Name=shard Count=32\n", "", "shard", device{"nvidia1"}, 4)
	f("", "gpu:8,shard:32", "shard", device{"nvidia1"}, 4)
	f("Name=mps Count=200 File=/dev/nvidia0\n", "", "mps", device{"nvidia0", "0000:3b:00.0"}, 200)
	f("Name=mps Count=200 File=/dev/nvidia0\n", "", "mps", device{"nvidia1"}, 0)
	f("", "", "shard", device{"nvidia1"}, 0)
}

func FuzzParseConf(f *testing.F) {
	f.Add([]byte("NodeName=gn[1-2] Gres=\"gpu:8\" \\\n CPUs=1 # x\nName=shard Count=4 File=/dev/nvidia[0-7]\nInclude x\n"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		lines := parseConf(b)
		c := parseCluster(lines)
		c.node("gn1")
		parseGresConf(lines, "gn1", c.gres("gn1")).order(machine{root: "/nonexistent"})
	})
}

//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// The GPUs of each node. Only the last one is shared.
const (
	slurmGPUs = 8
	shards    = 4
)

// slurmMinor returns the minor number of a GPU. The driver of the second node counts in reverse.
func slurmMinor(node, gpu int) int {
	if node == 0 {
		return gpu
	}
	return slurmGPUs - 1 - gpu
}

// slurmUUID returns the UUID of the GPU with this driver index.
func slurmUUID(node, gpu int) string {
	return fmt.Sprintf("GPU-51000000-0000-4000-8%03d-%012d", node+1, gpu)
}

// configure writes Slurm's configuration and creates device files without a driver: opening one returns
// ENXIO where access is allowed, otherwise EPERM.
func (s *slurm) configure() {
	t := s.t
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s.host, _, _ = strings.Cut(host, ".")
	port := func() string {
		_, port, _ := net.SplitHostPort(freeAddress(t))
		return port
	}
	s.ports.controller, s.ports.database, s.ports.accounting = port(), port(), port()

	for _, dir := range []string{"etc", "log", "run", "state", "database", "out", "tmp"} {
		if err := os.MkdirAll(s.dir+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"out", "tmp", "run", "log"} { // writable by everybody
		if err := os.Chmod(s.dir+"/"+dir, 0o777|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
	}
	nodes, gres := "", ""
	for n, node := range slurmNodes {
		for _, dir := range []string{"dev", "spool"} {
			if err := os.MkdirAll(s.dir+"/"+dir+"/"+node, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for minor := range slurmGPUs {
			path := s.device(n, minor)
			if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, 195<<8|minor); err != nil { // major number of NVIDIA's driver
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		nodes += fmt.Sprintf("NodeName=%s NodeAddr=127.0.0.1 Port=%s CPUs=16 RealMemory=16000 Gres=gpu:h200:%d,shard:%d\n", node, port(), slurmGPUs, shards)
		files := s.device(n, 0)
		files = strings.TrimSuffix(files, "0")
		for _, list := range [][]string{{"[0-7]"}, {"[4-7]", "[0-3]"}}[n] {
			gres += fmt.Sprintf("NodeName=%s Name=gpu Type=h200 File=%s%s\n", node, files, list)
		}
		gres += fmt.Sprintf("NodeName=%s Name=shard Count=%d File=%s\n", node, shards, s.device(n, slurmMinor(n, sharedIndex(n))))
	}
	s.conf("gres.conf", gres, 0o644)
	s.conf("slurm.conf", fmt.Sprintf(slurmConf, slurmCluster, s.host, s.ports.controller, s.munge, s.dir, s.ports.accounting)+nodes+
		"PartitionName=gpu Nodes="+strings.Join(slurmNodes, ",")+" Default=YES MaxTime=10 State=UP\n", 0o644)
	s.conf("cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainDevices=yes\n", 0o644)
	s.conf("slurmdbd.conf", fmt.Sprintf(slurmdbdConf, s.munge, s.ports.accounting, s.dir, s.ports.database), 0o600) // contains a password
}

// sharedIndex is the driver's index of the shared GPU of a node.
func sharedIndex(node int) int { return slurmGPUs - 1 - node }

func (s *slurm) device(node, minor int) string {
	return s.dir + "/dev/" + slurmNodes[node] + "/nvidia" + strconv.Itoa(minor)
}

func (s *slurm) conf(name, text string, mode os.FileMode) {
	s.t.Helper()
	write(s.t, s.dir+"/etc/"+name, text)
	if err := os.Chmod(s.dir+"/etc/"+name, mode); err != nil {
		s.t.Fatal(err)
	}
}

// slurmConf has more processors than the machine, which config_overrides allows. All intervals are as short
// as possible.
const slurmConf = `ClusterName=%[1]s
SlurmctldHost=%[2]s(127.0.0.1)
SlurmctldPort=%[3]s
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=%[4]s
MpiDefault=none
StateSaveLocation=%[5]s/state
SlurmdSpoolDir=%[5]s/spool/%%n
SlurmctldPidFile=%[5]s/run/slurmctld.pid
SlurmdPidFile=%[5]s/run/slurmd-%%n.pid
SlurmdParameters=config_overrides
ReturnToService=2
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
PrologFlags=Alloc,Contain
LaunchParameters=use_interactive_step
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu,shard
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=%[6]s
AccountingStoragePass=%[4]s
AccountingStorageTRES=gres/gpu,gres/gpu:h200,gres/shard
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
PropagateResourceLimits=NONE
MessageTimeout=60
KillWait=1
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MinJobAge=300
`

const slurmdbdConf = `AuthType=auth/munge
AuthInfo=socket=%[1]s
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=%[2]s
SlurmUser=root
PidFile=%[3]s/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=%[4]s
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
`

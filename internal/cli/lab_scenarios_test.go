//go:build linux

package cli_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/workload/hami"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// Nothing happens: each pod has the joules of its GPU, at the agent and at the hub.
func TestLabSteady(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2)
	l.pod("a", 0)
	l.pod("b", 1)
	l.run(101, "a", 0, 90)
	l.start()
	for range 3 {
		l.use(0, 400)
		l.use(1, 70)
		l.settle()
	}
	l.wantJoules(0, map[string]float64{"a": 1200})
	l.wantJoules(1, map[string]float64{"b": 210})
}

// A sole holder is active when the device is. Its processes are read less often than the device: 20 s
// idle and 20 s busy in turn were 50 active seconds of 115.
func TestLabDutyCycle(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.run(101, "a", 0, 0)
	l.start()
	for i := range 12 {
		percent := i % 2 * 90
		l.busy(0, percent)
		l.run(101, "a", 0, percent)
		l.tick(2)
	}
	l.agent.stop()
	want := l.seconds(func(t *labTick) bool { v, _ := t.sum("gpu.utilization"); return v > 0 })
	if diff := cmp.Diff(want, l.last("gpu.workload.active.time", "k8s.pod.name", "a"), near); diff != "" {
		t.Errorf("active seconds (-want +got):\n%s", diff)
	}
}

// A kubelet that forgets a pod three times makes three stays. Each was recorded with the joules of all
// stays before it, and the last one without the joules since the last slow reading.
func TestLabStays(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.run(101, "a", 0, 90)
	l.start()
	for i := range 3 {
		l.use(0, 1000*float64(i+1))
		l.tick(1)
		devices := l.grants["a"]
		l.exit(101)
		delete(l.grants, "a")
		l.heard()
		l.settle()
		l.grants["a"] = devices
		l.run(101, "a", 0, 90)
		l.heard()
	}
	stays := l.stops("gpu.workload.energy")["a"]
	if diff := cmp.Diff([]float64{1000, 2000, 3000}, stays, near); diff != "" {
		t.Errorf("joules of the stays (-want +got):\n%s", diff)
	}
	l.wantJoules(0, map[string]float64{"a": 6000})
}

// The driver's counter falls by a millijoule, or answers a single 0. The pod got the whole counter.
func TestLabCounterStepsBack(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]float64{"one millijoule": -0.001, "zero": -5e6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 1)
			l.pod("a", 0)
			l.run(101, "a", 0, 90)
			l.start()
			l.use(0, 400)
			l.settle()
			l.use(0, wrong)
			l.tick(1)
			await.True(t, "a reading that is not believed", func() bool { return l.last("gpumeter.reader.rejected") > 0 })
			l.use(0, -wrong+300)
			l.settle()
			l.wantJoules(0, map[string]float64{"a": 700})
		})
	}
}

// The GPU hangs while pod a is replaced by b. All joules of the gap were b's.
func TestLabHungAtHandOver(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.run(101, "a", 0, 90)
	l.start()
	l.use(0, 400)
	l.settle()
	l.use(0, 500)
	l.extra = "gpu 0 hang nvmlDevice*\n"
	l.tick(2)
	l.leave("a")
	l.pod("b", 0)
	l.run(102, "b", 0, 90)
	l.heard()
	l.extra = ""
	l.settle()
	l.use(0, 300)
	l.settle()
	// Nobody can tell when in the gap the joules were used: both held the GPU in it, and both pay.
	books := l.by("gpu.workload.energy", 0)
	if a, b := books["a"], books["b"]; a <= 400 || b <= 300 || math.Abs(a+b-l.used(0)) > 1e-6 {
		t.Errorf("of %v J, 400 before the gap and 300 after it, the pods have %v", l.used(0), books)
	}
}

// A pod's team changes while it runs, and the agent restarts while the API server is away and a backend
// is slow. The hub billed the seconds before the change to both teams.
func TestLabRelabelled(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.run(101, "a", 0, 90)
	l.start()
	l.tick(5)
	l.label("a", "blue")
	await.True(t, "the new team", func() bool { return l.last("gpu.allocation", "gpu.workload.team", "blue") == 1 })
	l.tick(5)
	l.lag.Store(int64(4 * l.interval))
	l.tick(1)
	l.agent.stop()
	l.lag.Store(0)
	l.api.Fail("/", kubeapitest.Fault{Status: 503})
	l.start()
	l.tick(5)
	l.api.Heal()
	await.True(t, "the team", func() bool { return l.last("gpu.allocation", "gpu.workload.team", "blue") == 1 })
	l.tick(5)
	l.agent.stop()
	total := 0.0
	for team, seconds := range l.billed("team") {
		if team != "(unattributed)" { // what the process used before the kubelet's first answer
			total += seconds
		}
	}
	if diff := cmp.Diff(l.held("a")+l.between("a"), total, cmpopts.EquateApprox(0, 1e-3)); diff != "" { // each account is rounded to a microsecond
		t.Errorf("seconds held (-) and billed (+):\n%s", diff)
	}
}

// A pod's queue is named, and named differently, while it runs. Each second is billed to one queue.
func TestLabQueueChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.run(101, "a", 0, 90)
	l.start()
	l.tick(5)
	for _, queue := range []string{"gold", "iron"} {
		l.api.PutPod(kubeapitest.Pod("n1", "ns", "a", podUID("a"),
			kubeapitest.Object{"metadata": kubeapitest.Object{"labels": kubeapitest.Object{"kueue.x-k8s.io/queue-name": queue}}},
			kubeapitest.Containers("main", containerID("a"))))
		await.True(t, "the new queue", func() bool { return l.last("gpu.allocation", "gpu.workload.queue", queue) == 1 })
		l.tick(5)
	}
	l.agent.stop()
	billed, total := l.billed("queue"), 0.0
	for queue, seconds := range billed {
		if queue != "(unattributed)" {
			total += seconds
		}
	}
	if diff := cmp.Diff(l.held("a")+l.between("a"), total, cmpopts.EquateApprox(0, 1e-3)); diff != "" || billed["gold"] == 0 || billed["iron"] == 0 || billed["(none)"] == 0 {
		t.Errorf("%v: seconds held (-) and billed (+):\n%s", billed, diff)
	}
}

// A hub that starts long after the driver sees what was used since, not the counter of the driver's life.
func TestLabLateHub(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.start()
	l.tick(3)
	l.hub.kill()
	l.hub = startServer(t, "hub", "--data-dir", t.TempDir(), "--listen", strings.TrimPrefix(l.hub.url, "http://"), "--listen-grpc", "localhost:0")
	for range 5 {
		l.use(0, 100)
		l.settle()
	}
	await.True(t, "the hub's first ticks", func() bool {
		return l.ask(`gpu_energy_joules_total`, "gpu_index")["0"] == l.gpus[0].energy
	})
	for name, joules := range l.ask(`increase(gpu_energy_joules_total[10m])`, "gpu_index") {
		if joules > 2*l.used(0) {
			t.Errorf("GPU %s used %v J in ten minutes according to the hub, %v according to the driver", name, joules, l.used(0))
		}
	}
}

// One of two pods that share a GPU starts a new process for every tick. None of its joules were its own.
func TestLabShortProcesses(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.interval, l.slow = 600*time.Millisecond, 1800*time.Millisecond // the driver samples processes twice a second
	uuid := fmt.Sprintf(fakeUUID, 0)
	l.pod("a", uuid+"::0")
	l.pod("b", uuid+"::1")
	l.busy(0, 90)
	l.run(100, "a", 0, 45)
	l.run(200, "b", 0, 45)
	l.start()
	for i := range 8 {
		l.exit(100 + i)
		l.run(101+i, "a", 0, 45)
		l.use(0, 500)
		l.tick(1)
	}
	l.settle()
	books := l.by("gpu.workload.energy", 0)
	if got := books["a"] / books["b"]; got < 0.9 || got > 1.1 || books["unattributed"] > 0 {
		t.Errorf("two pods that do the same have %v", books)
	}
}

// A kubelet that takes longer to answer than the agent once waited is used all the same.
func TestLabSlowKubelet(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.kubelet.Delay(3 * time.Second)
	l.start()
	l.use(0, 400)
	l.settle()
	l.wantJoules(0, map[string]float64{"a": 400})
}

// A MIG instance that is made while the agent runs has its holder at once, not with the next
// discovery a minute later.
func TestLabInstanceMadeLater(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.start()
	l.extra = "mig 0 0 MIG-aaaa 1 0 3 3 71424 0\n"
	l.pod("a", "MIG-aaaa")
	l.heard()
	made := time.Now()
	await.True(t, "the holder of the instance", func() bool { return l.last("gpu.allocation", "k8s.pod.name", "a") > 0 })
	if all := l.ticks(); all[len(all)-1].time.Sub(made) > 45*time.Second {
		t.Errorf("the instance has a holder after %s", all[len(all)-1].time.Sub(made))
	}
}

// Pods that share a GPU have all of its memory in use, that of the driver included.
func TestLabMemoryAddsUp(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	uuid := fmt.Sprintf(fakeUUID, 0)
	l.pod("a", uuid+"::0")
	l.pod("b", uuid+"::1")
	l.run(101, "a", 0, 10)
	l.run(102, "b", 0, 20)
	l.extra = "gpu 0 memory[2] 5000000000\n"
	l.start()
	l.tick(3)
	l.agent.stop()
	if sum, used := l.last("gpu.workload.memory.used"), l.last("gpu.memory.used"); sum != used || used != 5e9 {
		t.Errorf("the workloads use %v bytes, the GPU %v", sum, used)
	}
}

// More workloads than max_series has room for are counted together. Their joules were cut.
func TestLabManyWorkloads(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.receiver = "max_series: 300"
	for i := range 60 {
		l.pod(fmt.Sprint("p", i), fmt.Sprintf(fakeUUID+"::%d", 0, i))
	}
	l.start()
	for range 3 {
		l.use(0, 400)
		l.settle()
	}
	books := l.by("gpu.workload.energy", 0)
	total := 0.0
	for _, joules := range books {
		total += joules
	}
	if diff := cmp.Diff(l.used(0), total, near); diff != "" || len(books) >= 60 {
		t.Errorf("%d accounts; the driver counted (-), the books say (+):\n%s", len(books), diff)
	}
}

// The clock is set back by an hour: the driver's samples are older than those it gave before. For an
// hour every process looked idle, and two pods had half of the GPU each.
func TestLabClockSetBack(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.interval, l.slow = 600*time.Millisecond, 1800*time.Millisecond // the driver samples processes twice a second
	uuid := fmt.Sprintf(fakeUUID, 0)
	l.pod("a", uuid+"::0")
	l.pod("b", uuid+"::1")
	l.busy(0, 90)
	l.run(101, "a", 0, 30)
	l.run(102, "b", 0, 60)
	l.extra = "clock 3600\n"
	l.start()
	l.tick(3)
	l.extra = ""
	l.tick(6)
	if diff := cmp.Diff(map[string]float64{"a": 0.3, "b": 0.6}, l.by("gpu.workload.utilization", 0), near); diff != "" {
		t.Errorf("utilization (-want +got):\n%s", diff)
	}
}

// A GPU that does not answer when the agent starts is held all the same.
func TestLabHungAtStart(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.extra = "gpu 0 hang nvmlDeviceGetUtilizationRates\n"
	l.start() // waits for the holder
	l.extra = ""
	l.tick(1)
	await.True(t, "the GPU", func() bool { return l.last("gpu.up", "gpu.index", int64(0)) == 1 })
	if diff := cmp.Diff(map[string]float64{"a": 1}, l.by("gpu.allocation", 0)); diff != "" {
		t.Errorf("allocation (-want +got):\n%s", diff)
	}
}

// Without the API server, and without the logs of pods, a process has its pod's UID only. The pod was there
// twice, once under its UID.
func TestLabNoAPI(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.api.Fail("/", kubeapitest.Fault{Status: 503})
	l.pod("a", 0)
	l.run(101, "a", 0, 90)
	l.start()
	l.tick(3)
	if diff := cmp.Diff(map[string]float64{"a": 1}, l.by("gpu.allocation", 0)); diff != "" {
		t.Errorf("allocation (-want +got):\n%s", diff)
	}
}

// Another container of the pod, such as an init container, works on the pod's GPU. It did not ask for it.
func TestLabInitContainer(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	l.pod("a", 0)
	l.run(101, "a/init", 0, 90)
	l.start()
	l.use(0, 400)
	l.settle()
	l.wantJoules(0, map[string]float64{"a": 400})
	if v := l.last("gpumeter.attribution.status", "gpumeter.attribution.reason", "not_requested"); !math.IsNaN(v) {
		t.Error("the pod is said to use a GPU that it did not ask for")
	}
}

// HAMi gave two pods slices of GPU 1; the replicas that the kubelet picked are of GPU 0. Then one pod says that it has all of the
// GPU: it gets no more than a replica, and the other loses nothing to it.
func TestLabSlices(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2)
	const all = 80 << 10 // MiB
	l.replicas, l.extra = 10, fmt.Sprintf("gpu 1 memory %d 0 0\n", all<<20)
	slice := func(name string, mib int) {
		text := fmt.Sprintf(fakeUUID+",NVIDIA,%d,0:;", 1, mib)
		l.api.PutPod(kubeapitest.Pod("n1", "ns", name, podUID(name), kubeapitest.Object{"metadata": kubeapitest.Object{
			"labels": kubeapitest.Object{"team": "red"}, "annotations": kubeapitest.Object{hami.Annotation: text},
		}}, kubeapitest.Containers("main", containerID(name))))
	}
	for i, name := range []string{"a", "b"} {
		l.pod(name, fmt.Sprintf(fakeUUID+"-%d", 0, i))
		l.run(101+i, name, 1, 0)
	}
	slice("a", all/2)
	slice("b", all/8)
	l.start()
	want := func(what string, parts, idle map[string]float64) {
		t.Helper()
		l.heard()
		if diff := cmp.Diff(parts, l.by("gpu.allocation", 1), near); diff != "" {
			t.Errorf("%s: allocation (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(idle, map[string]float64{"0": l.last("gpu.unallocated", "gpu.index", int64(0)), "1": l.last("gpu.unallocated", "gpu.index", int64(1))}, near); diff != "" {
			t.Errorf("%s: unallocated (-want +got):\n%s", what, diff)
		}
	}
	want("slices", map[string]float64{"a": 0.5, "b": 0.125}, map[string]float64{"0": 1, "1": 0.375})
	slice("b", all)
	await.True(t, "a status about the limits", func() bool {
		return !math.IsNaN(l.last("gpumeter.attribution.status", "gpumeter.attribution.source", "resolver", "gpumeter.attribution.reason", "failed"))
	})
	want("more than there is", map[string]float64{"a": 0.1, "b": 0.1}, map[string]float64{"0": 1, "1": 0.8})
}

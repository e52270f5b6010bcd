//go:build linux

package cli_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// First work counts once per pod in the histograms of the page and of the hub: over kill -9 and a restart of the agent, for pods that
// begin while it is away, and not for one that never works or that was there before the first agent.
func TestLabFirstWork(t *testing.T) {
	t.Parallel()
	l := newLab(t, 5)
	created, started := map[string]time.Time{}, map[string]time.Time{}
	run := func(name string, gpu int, at time.Time) {
		l.pod(name, gpu)
		created[name], started[name] = at.Add(-time.Minute).Truncate(time.Second), at.Truncate(time.Second)
		l.api.PutPod(kubeapitest.Pod("n1", "ns", name, podUID(name), kubeapitest.Containers("main", containerID(name)), kubeapitest.Object{
			"metadata": kubeapitest.Object{"creationTimestamp": created[name].UTC().Format(time.RFC3339)},
			"status": kubeapitest.Object{"containerStatuses": []kubeapitest.Object{{
				"name": "main", "containerID": "containerd://" + containerID(name),
				"state": kubeapitest.Object{"running": kubeapitest.Object{"startedAt": started[name].UTC().Format(time.RFC3339)}},
			}}},
		}))
	}
	run("old", 0, time.Now().Add(-time.Minute))
	l.busy(0, 90)
	l.start()
	next := time.Now().Truncate(time.Second).Add(time.Second) // times of the API are in seconds
	time.Sleep(time.Until(next))
	for gpu := 1; gpu < 5; gpu++ {
		run(fmt.Sprint("pod-", gpu), gpu, next)
	}
	l.heard()
	began := map[string]time.Time{}
	work := func(gpu int) {
		l.busy(gpu, 80)
		began[fmt.Sprint("pod-", gpu)] = time.Now()
		l.apply()
	}
	const phase = `scheduler_job_phase_duration_seconds_%s{scheduler_job_phase="warmup",scheduler_job_size="1",scheduler_cluster="lab",scheduler_type="kubernetes"}`
	wants := func(when string, count float64) {
		t.Helper()
		l.tick(3)
		await.NoError(t, func() error {
			for _, name := range []string{"scheduler_job_first_work_duration_seconds_count", fmt.Sprintf(phase, "count")} {
				got := 0.0
				for _, v := range l.ask("sum("+name+")", "") {
					got += v
				}
				if got != count {
					return fmt.Errorf("%s: %s is %v, want %v", when, name, got, count)
				}
			}
			return nil
		})
	}
	wants("nobody works but the old pod", 0)
	work(1)
	wants("one", 1)
	if err := l.agent.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-l.agent.ended
	work(2)
	l.start()
	wants("killed, and another began meanwhile", 2)
	l.agent.stop()
	l.start()
	work(3)
	wants("restarted", 3)

	// Each was seen at the next tick after it began, or once the agent was back.
	seen := time.Now()
	least, most := 0.0, 0.0
	for name, at := range began {
		least += at.Sub(started[name]).Seconds()
		most += seen.Sub(started[name]).Seconds()
	}
	for query, more := range map[string]float64{fmt.Sprintf(phase, "sum"): 0, "scheduler_job_first_work_duration_seconds_sum": 3 * 60} {
		for _, got := range l.ask("sum("+query+")", "") {
			if got < least+more || got > most+more {
				t.Errorf("%s is %v, want %v to %v", query, got, least+more, most+more)
			}
		}
	}
}

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"time"
)

// heldBy returns the query for the holders of whole GPUs and its expected answer.
func (k *kubeTest) heldBy(apps ...string) (query string, want answer) {
	want = answer{}
	pods := ""
	for _, app := range apps {
		for _, p := range k.on[app] {
			want.add(p.labels(), 1)
			pods += "|" + p.pod
		}
	}
	return of("gpu_allocation_ratio", fmt.Sprintf("k8s_pod_name=~%q, ", pods[1:]), "gpu_share_basis"), want
}

// Catches a tick or label lost when the kubelet is stopped, killed or restarted.
func (k *kubeTest) kubeletFaults() {
	k.watch(asAgent)
	query, want := k.heldBy("solo", "pair", "train", "serve")
	k.expect(query, want)
	k.expectStatus("kubelet", "ok")
	began := time.Now()

	k.t.Cleanup(func() { _ = k.kubelet.cmd.Process.Signal(syscall.SIGCONT) }) // for the next part, if this one fails
	k.signal(k.kubelet, syscall.SIGSTOP)
	k.expectStatus("kubelet", "stale")
	k.expect(query, want)
	k.signal(k.kubelet, syscall.SIGCONT)
	k.expectStatus("kubelet", "ok")

	k.signal(k.kubelet, syscall.SIGKILL)
	<-k.kubelet.done
	k.expectStatus("kubelet", "stale")
	k.expect(query, want)
	k.parent.kubelet = k.start.kubelet(k.parent.t)
	k.parent.offer(k.parent.t)
	k.expectStatus("kubelet", "ok")
	k.expect(query, want)
	k.checkTicks(began)
}

// Catches an agent without permissions or without an API server that loses the pods that the kubelet names,
// does not report what it lacks, or does not recover.
func (k *kubeTest) apiFaults() {
	k.watch(asNobody)
	k.expectReason("kubernetes_api", "permission_denied")
	pods := answer{}
	for _, app := range []string{"solo", "train", "serve"} {
		p := k.on[app][0]
		p.kind, p.owner = "pod", p.pod
		pods.add(p.labels(), 1)
	}
	query, want := k.heldBy("solo", "train", "serve")
	k.expect(query, pods)
	began := time.Now()

	k.bind(asNobody)
	k.expectStatus("kubernetes_api", "ok")
	k.expect(query, want)

	k.signal(k.apiserver, syscall.SIGKILL)
	<-k.apiserver.done
	k.expectReason("kubernetes_api", "stale")
	k.expect(query, want)
	k.parent.apiserver = k.start.apiserver(k.parent.t)
	// An owner that could not be queried is retried after a minute, so not everything is known at
	// once.
	k.expect(of("gpumeter_attribution_status", `gpumeter_attribution_source="kubernetes_api", gpumeter_attribution_reason="stale", `), answer{})
	k.expect(query, want)
	k.checkTicks(began)
}

func (k *kubeTest) signal(p *process, s syscall.Signal) {
	k.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		k.t.Fatal(err)
	}
}

// checkTicks fails the test if the agent was blocked since a time. Its requests have a deadline of two
// seconds.
func (k *kubeTest) checkTicks(since time.Time) {
	k.t.Helper()
	ticks, err := k.db.samples(strings.Replace(energy, "}", ", "+pushed+"}", 1))
	if err != nil {
		k.t.Fatal(err)
	}
	n := 0
	for _, s := range ticks {
		if s.at.After(since) {
			n++
		}
	}
	if want := int(0.8 * time.Since(since).Seconds() / kubeInterval.Seconds()); n < want {
		k.t.Errorf("%d ticks in %s, want at least %d", n, time.Since(since).Round(time.Second), want)
	}
}

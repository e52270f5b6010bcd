//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// enginePort is the port of each engine, in the network of its own pod.
const enginePort = "8000"

// podEngine is an inference engine in a pod. Only clients changes what it has as an engine.
type podEngine struct {
	*engine
	container
	id    string // of the container
	ranks []int  // PIDs of the processes on devices, in the order of the devices
	open  int    // requests without an answer, guarded by clients
}

// deployEngines starts a deployment whose pods run an engine on a number of GPUs each. A pod that is deleted
// waits in its preStop hook until the test lets it end.
func (c *cluster) deployEngines(namespace, name string, pods, gpus int, command ...string) {
	c.t.Helper()
	c.api.create("/apis/apps/v1/namespaces/"+namespace+"/deployments", fmt.Sprintf(
		`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {replicas: %[2]d, selector: {matchLabels: {app: %[1]s}},
strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}, template: {metadata: {labels: {app: %[1]s}}, spec: {terminationGracePeriodSeconds: 600,
containers: [{name: engine, image: %[3]q, imagePullPolicy: Never, command: %[4]s, resources: {limits: {%[5]q: %[6]d}},
startupProbe: {exec: {command: [/engine, get, "http://127.0.0.1:%[7]s/health"]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 600},
lifecycle: {preStop: {exec: {command: [/worker]}}}}]}}}}`,
		name, pods, enginesImage, marshal(c.t, command), wholeGPU, gpus, enginePort))
}

// engines waits until a number of pods of a deployment are ready and returns their engines, except those in old.
func (c *cluster) engines(namespace, app, model string, n int, old ...*podEngine) (found []*podEngine) {
	c.t.Helper()
	eventually(c.t, app+" is ready", func() error {
		list, err := c.pods(namespace, app)
		if err != nil {
			return err
		}
		found = nil
		for _, p := range list {
			ready := slices.ContainsFunc(p.Status.Conditions, func(c struct{ Type, Status, Message string }) bool { return c.Type == "Ready" && c.Status == "True" })
			if !ready || p.Metadata.DeletionTimestamp != "" || slices.ContainsFunc(old, func(e *podEngine) bool { return e.uid == p.Metadata.UID }) {
				continue
			}
			e := &podEngine{
				container: container{namespace: namespace, pod: p.Metadata.Name, uid: p.Metadata.UID, name: "engine", kind: "deployment", owner: app},
				id:        strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://"),
			}
			if err := e.look(); err != nil {
				return err
			}
			e.engine = &engine{t: c.t, provider: "vllm", model: model, port: enginePort, client: inPod(e.pid)}
			found = append(found, e)
		}
		if len(found) != n {
			return fmt.Errorf("%d of %d pods are ready: %+v", len(found), n, list)
		}
		return nil
	})
	return found
}

// look finds the processes of the container: the first is the server, and works on the device itself unless
// it has ranks.
func (e *podEngine) look() error {
	ranks := map[int]int{} // by PID in the container: in the order in which they were started
	for pid, line := range e.processes() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return err
		}
		m := regexp.MustCompile(`(?m)^NSpid:.*\t(\d+)$`).FindSubmatch(status)
		if m == nil {
			return fmt.Errorf("no NSpid in %s", status)
		}
		switch inside, _ := strconv.Atoi(string(m[1])); {
		case inside == 1:
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil {
				return err
			}
			_, rest, _ := strings.Cut("\x00"+string(environment), "\x00"+visibleDevices+"=")
			ids, _, _ := strings.Cut(rest, "\x00")
			e.pid, e.devices = pid, strings.Split(ids, ",")
		case strings.HasSuffix(line, "\x00rank\x00"):
			ranks[inside] = pid
		}
	}
	if e.pid == 0 {
		return fmt.Errorf("container %q has no process", e.id)
	}
	e.ranks = []int{e.pid}
	if len(ranks) > 0 {
		e.ranks = nil
		for _, inside := range sorted(ranks) {
			e.ranks = append(e.ranks, ranks[inside])
		}
	}
	if len(e.ranks) != len(e.devices) {
		return fmt.Errorf("%d processes for the devices %q", len(e.ranks), e.devices)
	}
	return nil
}

func sorted(m map[int]int) []int {
	var keys []int
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// page returns the metrics page of the engine.
func (e *podEngine) page() (string, error) {
	r, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, e.url("/metrics"), nil)
	if err != nil {
		return "", err
	}
	resp, err := e.client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// processes returns the command lines of the container's processes.
func (e *podEngine) processes() map[int]string {
	found := map[int]string{}
	for _, pid := range pids() {
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || e.id == "" || !bytes.Contains(group, []byte(e.id)) {
			continue
		}
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
			found[pid] = string(line)
		}
	}
	return found
}

// deleted waits until one of several engines is being deleted.
func (c *cluster) deleted(among ...*podEngine) (found *podEngine) {
	c.t.Helper()
	eventually(c.t, "a pod is deleted", func() error {
		for _, e := range among {
			var p pod
			if err := c.api.get(e.path(), &p); err != nil {
				return err
			}
			if p.Metadata.DeletionTimestamp != "" {
				found = e
				return nil
			}
		}
		return errors.New("all are there")
	})
	return found
}

// release lets a pod that is being deleted end, and waits until it is gone.
func (c *cluster) release(e *podEngine) {
	c.t.Helper()
	eventually(c.t, "the hook of "+e.pod+" runs", func() error {
		for pid, line := range e.processes() {
			if line == "/worker\x00" {
				return syscall.Kill(pid, syscall.SIGTERM)
			}
		}
		return errors.New("it does not run")
	})
	eventually(c.t, e.pod+" is gone", func() error {
		err := c.api.get(e.path(), nil)
		if errors.Is(err, errNotFound) {
			return nil
		}
		return fmt.Errorf("it still exists (%w)", err)
	})
}

// inPod returns a client of what listens in the network of a process, as kubectl port-forward is.
func inPod(pid int) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		inside, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			return nil, err
		}
		defer inside.Close()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		outside, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return nil, err
		}
		defer outside.Close()
		if err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, err
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address) // on this thread, as it names no host
		// A thread that ends takes the programs that it has started with it, so it must be of use again.
		if back := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET); back != nil {
			panic(back)
		}
		return conn, err
	}}}
}

// clients send requests to engines in turn, as those of a Kubernetes service do.
type clients struct {
	t  *testing.T
	mu sync.Mutex

	engines []*podEngine // that get requests
	turn    int
	errs    []error
}

// begin sends requests, a few at a time, until the returned function is called.
func (c *clients) begin() (end func()) {
	var running sync.WaitGroup
	ending := make(chan struct{})
	const atATime = 3
	for range atATime {
		running.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ending:
					return
				default:
					c.send(1 + i%7)
				}
			}
		})
	}
	return func() {
		close(ending)
		running.Wait()
	}
}

// send sends a request to the next engine.
func (c *clients) send(words int) {
	c.mu.Lock()
	e := c.engines[c.turn%len(c.engines)]
	c.turn++
	e.open++
	c.mu.Unlock()
	u, err := e.ask(words)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.open--
	e.used.add(u)
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %w", e.pod, err))
	}
}

func (c *clients) add(e *podEngine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.engines = append(c.engines, e)
}

// drain sends an engine no more requests and waits for the answers to those it has.
func (c *clients) drain(e *podEngine) {
	c.t.Helper()
	c.mu.Lock()
	c.engines = slices.DeleteFunc(c.engines, func(other *podEngine) bool { return other == e })
	c.mu.Unlock()
	eventually(c.t, e.pod+" has answered", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.open > 0 {
			return fmt.Errorf("%d requests have no answer", e.open)
		}
		return nil
	})
}

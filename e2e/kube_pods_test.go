//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
)

// container is a running container according to the cluster, the kernel and the container itself,
// independently of the code under test.
type container struct {
	namespace, pod, uid, name string
	kind, owner               string   // creator of the pod: deployment, job, or the pod itself
	pid                       int      // host PID
	devices                   []string // IDs that the container received
}

// template returns a pod with a container named main that requests devices, as one-line YAML.
func template(app, resource string, n int) string {
	limits := ""
	if n > 0 {
		limits = fmt.Sprintf(`, resources: {limits: {%q: %d}}`, resource, n)
	}
	return fmt.Sprintf(`metadata: {name: %[1]s, labels: {app: %[1]s}}, spec: {hostNetwork: true, terminationGracePeriodSeconds: 1, `+
		`containers: [{name: main, image: %[2]q, imagePullPolicy: Never%[3]s}, {name: sidecar, image: %[2]q, imagePullPolicy: Never}], `+
		`restartPolicy: %%s}`, app, workerImage, limits)
}

// runPod starts a pod.
func (c *cluster) runPod(namespace, name, resource string, n int) {
	c.t.Helper()
	c.api.create("/api/v1/namespaces/"+namespace+"/pods", "{apiVersion: v1, kind: Pod, "+fmt.Sprintf(template(name, resource, n), "Never")+"}")
}

// runDeployment starts a deployment of one pod.
func (c *cluster) runDeployment(namespace, name, resource string, n int) {
	c.t.Helper()
	c.api.create("/apis/apps/v1/namespaces/"+namespace+"/deployments", fmt.Sprintf(
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {selector: {matchLabels: {app: %[1]s}}, template: {%[2]s}}}",
		name, fmt.Sprintf(template(name, resource, n), "Always")))
}

// runJob starts a job of one pod.
func (c *cluster) runJob(namespace, name, resource string, n int) {
	c.t.Helper()
	c.api.create("/apis/batch/v1/namespaces/"+namespace+"/jobs", fmt.Sprintf(
		"{apiVersion: batch/v1, kind: Job, metadata: {name: %s}, spec: {template: {%s}}}",
		name, fmt.Sprintf(template(name, resource, n), "Never")))
}

// pod has the fields of a pod that the tests need.
type pod struct {
	Metadata struct {
		Name, UID         string
		DeletionTimestamp string
		OwnerReferences   []struct{ Kind, Name string }
	}
	Status struct {
		Phase, Message    string
		Conditions        []struct{ Type, Status, Message string }
		ContainerStatuses []struct{ Name, ContainerID string }
	}
}

// pods returns the pods of an app, also those that are being deleted.
func (c *cluster) pods(namespace, app string) ([]pod, error) {
	var list struct{ Items []pod }
	query := url.Values{"labelSelector": {"app=" + app}}.Encode()
	err := c.api.get("/api/v1/namespaces/"+namespace+"/pods?"+query, &list)
	return list.Items, err
}

// running waits until the only pod of an app runs and returns its main container. It ignores pods that are
// being deleted and pods in old.
func (c *cluster) running(namespace, app string, old ...container) (found container) {
	c.t.Helper()
	eventually(c.t, app+" runs", func() error {
		list, err := c.pods(namespace, app)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p pod) bool {
			return p.Metadata.DeletionTimestamp != "" || slices.ContainsFunc(old, func(o container) bool { return o.uid == p.Metadata.UID })
		})
		if len(list) != 1 {
			return fmt.Errorf("the app has %d pods", len(list))
		}
		p := list[0]
		if p.Status.Phase != "Running" {
			return fmt.Errorf("its pod is %+v", p.Status)
		}
		found = container{namespace: namespace, pod: p.Metadata.Name, uid: p.Metadata.UID, name: "main", kind: "pod", owner: p.Metadata.Name}
		for _, o := range p.Metadata.OwnerReferences {
			found.kind, found.owner = strings.ToLower(o.Kind), app
			if o.Kind == "ReplicaSet" {
				found.kind = "deployment"
			}
		}
		for _, status := range p.Status.ContainerStatuses {
			if status.Name == found.name {
				return found.look(strings.TrimPrefix(status.ContainerID, "containerd://"))
			}
		}
		return fmt.Errorf("the pod has no container")
	})
	return found
}

// look finds the process of the container with this ID.
func (c *container) look(id string) error {
	for _, pid := range pids() {
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || id == "" || !bytes.Contains(group, []byte(id)) {
			continue
		}
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			return err
		}
		c.pid, c.devices = pid, nil
		for variable := range strings.SplitSeq(string(environment), "\x00") {
			if ids, ok := strings.CutPrefix(variable, visibleDevices+"="); ok {
				c.devices = strings.Split(ids, ",")
			}
		}
		return nil
	}
	return fmt.Errorf("container %q has no process", id)
}

// path is the API path of the container's pod.
func (c container) path() string { return "/api/v1/namespaces/" + c.namespace + "/pods/" + c.pod }

// in returns the cluster for a subtest.
func (c cluster) in(t *testing.T) *cluster {
	c.t, c.api.t = t, t
	return &c
}

//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// exampleDriver is the program of the DRA example driver.
const exampleDriver = "dra-example-kubeletplugin"

// draTest is a cluster whose kubelet has the DRA example driver, with two devices in the name of claimDriver.
type draTest struct {
	*queueTest
	uuids map[string]string // by the name of the device
}

// Catches claimed GPUs that the pods of one claim have twice or not at all, and pods that wait for a claim and are not seen. The driver, the
// scheduler and the kubelet are real; devices exist only by name.
func TestDRADriver(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath(exampleDriver); err != nil {
		skip(t, "dradriver", fmt.Errorf("tools/deps.sh dradriver did not build it: %w", err))
	}
	d := &draTest{queueTest: &queueTest{cluster: newCluster(t), binary: gpumeter(t)}}
	for _, namespace := range []string{red, blue, "gpumeter"} {
		d.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	d.permit(asAgent)
	d.api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", clusterRole(t))
	d.bind(asAgent)
	d.drive()

	holds := map[string]string{"left": "shared", "right": "shared", "single": "alone"}
	for _, claim := range []string{"shared", "alone", "late"} {
		d.claim(claim)
	}
	var on []gpuProcess
	for _, pod := range []string{"left", "right", "single"} {
		d.claimer(pod, holds[pod])
		on = append(on, gpuProcess{container: d.running(red, pod), gpu: 0, slot: -1})
	}
	d.claimer("waiting", "late")
	d.refused("waiting", "cannot allocate all claims")

	devices := d.allocated()
	if devices["shared"] == devices["alone"] || d.uuids[devices["shared"]] == "" || d.uuids[devices["alone"]] == "" || devices["late"] != "" {
		t.Fatalf("the claims have %q of %q", devices, d.uuids)
	}
	elected := d.agent("elected")
	d.shows(elected, map[string]float64{
		`scheduler_claim_count{state="allocated"}`:                     2,
		`scheduler_claim_count{state="pending"}`:                       1,
		`scheduler_claim_device_count{state="allocated",unit="whole"}`: 2,
		`scheduler_claim_device_count{state="pending",unit="whole"}`:   1,
		`scheduler_gpu_allocated{queue="team-red"}`:                    2, // of three pods
		`scheduler_gpu_pending{queue="team-red",reason="gpu"}`:         1,
		`scheduler_gpu_count{state="allocated"}`:                       2,
		`scheduler_gpu_count{state="free"}`:                            0,
		`scheduler_job_count{queue="team-red",state="running"}`:        3,
		`scheduler_job_count{queue="team-red",state="pending"}`:        1,
	})
	if out := command(t, ".", d.binary, "why", red+"/waiting", "--kubeconfig", d.api.kubeconfig(d.dir, asAdmin)); !strings.Contains(out, "Claims: late waits for 1 of "+claimDriver) {
		t.Errorf("why the pod waits:\n%s", out)
	}
	// The node sees whose processes are on which device.
	script := "gpus 2\ngpu * util 50 0\n"
	number := map[string]int{devices["shared"]: 0, devices["alone"]: 1}
	for name, i := range number {
		script += fmt.Sprintf("gpu %d uuid %s\n", i, d.uuids[name])
	}
	for _, p := range on {
		script += fmt.Sprintf("process %d %d compute %d 50\n", number[devices[holds[p.pod]]], p.pid, 1<<30)
	}
	node := d.nodeAgent(script)
	d.hold(node, map[string]float64{
		fmt.Sprintf("gpu_allocation_ratio{gpu=%q,pod=%q}", d.uuids[devices["shared"]], "left"):  0.5,
		fmt.Sprintf("gpu_allocation_ratio{gpu=%q,pod=%q}", d.uuids[devices["shared"]], "right"): 0.5,
		fmt.Sprintf("gpu_allocation_ratio{gpu=%q,pod=%q}", d.uuids[devices["alone"]], "single"): 1,
	})

	// The last pod of a claim leaves, and the device is for the one that waits.
	d.api.remove("/api/v1/namespaces/" + red + "/pods/left")
	d.api.remove("/api/v1/namespaces/" + red + "/pods/right")
	late := d.running(red, "waiting")
	d.shows(elected, map[string]float64{
		`scheduler_claim_count{state="allocated"}`:              2,
		`scheduler_claim_count{state="pending"}`:                1, // the one that the first two pods had
		`scheduler_gpu_allocated{queue="team-red"}`:             2,
		`scheduler_gpu_pending{queue="team-red",reason="gpu"}`:  absent,
		`scheduler_job_count{queue="team-red",state="running"}`: 2,
	})
	d.hold(node, map[string]float64{
		fmt.Sprintf("gpu_allocation_ratio{gpu=%q,pod=%q}", d.uuids[devices["shared"]], late.pod): 1,
		fmt.Sprintf("gpu_allocation_ratio{gpu=%q,pod=%q}", d.uuids[devices["alone"]], "single"):  1,
	})
}

// drive starts the driver and waits for its devices.
func (d *draTest) drive() {
	t, kubelet := d.t, filepath.Join(d.root, "var/lib/kubelet")
	d.daemon(exampleDriver, "--kubeconfig="+d.api.kubeconfig(d.dir, asAdmin), "--node-name="+nodeName, "--driver-name="+claimDriver, "--num-devices=2",
		"--cdi-root="+filepath.Join(d.dir, "cdi"), "--kubelet-registrar-directory-path="+filepath.Join(kubelet, "plugins_registry"), "--kubelet-plugins-directory-path="+filepath.Join(kubelet, "plugins"))
	d.api.create(resourceAPI+"/deviceclasses", fmt.Sprintf(`{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: %[1]s}, spec: {selectors: [{cel: {expression: "device.driver == '%[1]s'"}}]}}`, claimDriver))
	eventually(t, "the driver offers its devices", func() error {
		var list struct {
			Items []struct {
				Spec struct {
					Devices []struct {
						Name       string
						Attributes map[string]struct{ String string }
					}
				}
			}
		}
		if err := d.api.get(resourceAPI+"/resourceslices", &list); err != nil {
			return err
		}
		d.uuids = map[string]string{}
		for _, slice := range list.Items {
			for _, device := range slice.Spec.Devices {
				d.uuids[device.Name] = device.Attributes["uuid"].String
			}
		}
		if len(d.uuids) != 2 {
			return fmt.Errorf("its devices are %q", d.uuids)
		}
		return nil
	})
}

// claim creates a claim of one device.
func (d *draTest) claim(name string) {
	d.api.create(resourceAPI+"/namespaces/"+red+"/resourceclaims", fmt.Sprintf(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: %s},
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: %s}}]}}}`, name, claimDriver))
}

// claimer starts a pod with a claim.
func (d *draTest) claimer(name, claim string) {
	d.api.create("/api/v1/namespaces/"+red+"/pods", fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, labels: {app: %[1]s}}, spec: {hostNetwork: true, terminationGracePeriodSeconds: 1, restartPolicy: Never,
resourceClaims: [{name: gpu, resourceClaimName: %[2]s}], containers: [{name: main, image: %[3]q, imagePullPolicy: Never, resources: {claims: [{name: gpu}]}}]}}`, name, claim, workerImage))
}

// refused waits until the scheduler says about a pod that it has no place.
func (d *draTest) refused(name, message string) {
	d.t.Helper()
	eventually(d.t, "the scheduler refuses "+name, func() error {
		list, err := d.pods(red, name)
		if err != nil {
			return err
		}
		for _, p := range list {
			for _, c := range p.Status.Conditions {
				if c.Type == "PodScheduled" && c.Status == "False" && strings.Contains(c.Message, message) {
					return nil
				}
			}
		}
		return fmt.Errorf("its status is %+v", list)
	})
}

// allocated returns the devices of the claims.
func (d *draTest) allocated() map[string]string {
	d.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Allocation struct {
					Devices struct {
						Results []struct{ Device string }
					}
				}
			}
		}
	}
	if err := d.api.get(resourceAPI+"/resourceclaims", &list); err != nil {
		d.t.Fatal(err)
	}
	out := map[string]string{}
	for _, c := range list.Items {
		for _, r := range c.Status.Allocation.Devices.Results {
			out[c.Metadata.Name] += r.Device
		}
	}
	return out
}

// nodeAgent starts the agent of the node, whose GPUs are as a script says.
func (d *draTest) nodeAgent(script string) queueAgent {
	t := d.t
	t.Helper()
	p := start(t, d.binary, "agent", "--nvidia-library", nvmltest.New(t, script).Library, "--root", d.root, "--kubeconfig", d.api.kubeconfig(t.TempDir(), asAgent),
		"--interval", kubeInterval.String(), "--slow-interval", kubeInterval.String(), "--listen", "127.0.0.1:0", "--socket", "", "--state-dir", t.TempDir(), "--node-name", nodeName)
	p.name = "the node's agent"
	return queueAgent{p, p.find(t, pageAddress)}
}

// hold waits until exactly these pods hold GPUs, according to the node's agent.
func (d *draTest) hold(a queueAgent, want map[string]float64) {
	d.t.Helper()
	eventually(d.t, "the agent knows who holds the GPUs", func() error {
		text, err := get(d.t, "http://"+a.address+"/metrics")
		if err != nil {
			return err
		}
		page := samples(d.t, text, "gpu_allocation_ratio", map[string]string{"gpu_uuid": "gpu", "k8s_pod_name": "pod"})
		if len(page) != len(want) {
			return fmt.Errorf("they are %v, want %v", page, want)
		}
		return matches(page, want)
	})
}

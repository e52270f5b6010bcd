//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const (
	kueueAPI    = "/apis/kueue.x-k8s.io/v1beta2"
	webhooksAPI = "/apis/admissionregistration.k8s.io/v1/"
)

// kueueReplica is one of two Kueues, of which one is elected.
type kueueReplica struct {
	*process
	metrics, ca string // the URL of its page, and the certificate to expect there
}

// Catches numbers of queued pods that differ from what Kueue itself says. The elected agent, the page of the elected Kueue and the objects of the API
// server are compared: a gang that waits, a quota that is borrowed and exhausted, and pods that are evicted to give it back.
func TestKueue(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("kueue")
	if err != nil {
		skip(t, "kueue", fmt.Errorf("tools/deps.sh kueue did not build it: %w", err))
	}
	if os.Getuid() != 0 {
		skip(t, "kueue", "its certificate has a fixed path, which only root can give it without changing the machine")
	}
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "")
	k := q.kueue(folderOf(t, path))
	q.cohort()
	var pages []string
	token := filepath.Join(q.dir, "token")
	write(t, token, asAgent)
	for _, replica := range k {
		pages = append(pages, fmt.Sprintf("{url: %q, ca_file: %q, token_file: %q}", replica.metrics, replica.ca, token))
	}
	a := q.agent("agent", pages...)

	q.gang(red, "first", 4, 2, "kueue.x-k8s.io/priority-class: first") // of two that are admitted in the same second
	q.kueueShows(k, map[string]float64{`kueue_cluster_queue_resource_usage{queue="red"}`: 8})
	q.gang(red, "second", 4, 1)
	q.kueueShows(k, map[string]float64{`kueue_cluster_queue_resource_usage{queue="red"}`: 12, `kueue_cluster_queue_resource_usage{queue="blue"}`: 0})
	q.gang(blue, "third", 4, 2)
	q.kueueShows(k, map[string]float64{
		`kueue_cluster_queue_nominal_quota{queue="blue"}`:                     8,
		`kueue_cluster_queue_resource_pending{queue="blue"}`:                  8,
		`kueue_pending_workloads{queue="blue",status="inadmissible"}`:         1,
		`kueue_admitted_active_workloads{queue="red"}`:                        2,
		`kueue_cluster_queue_resource_usage{queue="blue"}`:                    0,
		`kueue_evicted_workloads_total{queue="red",reason="Preempted"}`:       absent,
		`kueue_cluster_queue_resource_reservation{queue="red"}`:               12,
		`kueue_admitted_workloads_total{queue="red"}`:                         2,
		`kueue_quota_reserved_wait_time_seconds_count{queue="red"}`:           2,
		`kueue_cluster_queue_status{queue="blue",status="active"}`:            1,
		`kueue_local_queue_resource_usage{name="gpus",namespace="team-red"}`:  12,
		`kueue_local_queue_resource_usage{name="gpus",namespace="team-blue"}`: 0,
	})
	q.usage(map[string]quotaUse{"red": {total: "12", borrowed: "4"}, "blue": {total: "0", borrowed: "0"}})
	q.shows(a, map[string]float64{
		`scheduler_up{}`: 1,
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:                                           12,
		`scheduler_gpu_count{state="free",type="H100"}`:                                                   4,
		`scheduler_job_count{queue="team-red",state="starting"}`:                                          8,
		`scheduler_job_count{queue="team-blue",state="held"}`:                                             4,
		`scheduler_gpu_pending{queue="team-blue",reason="quota",type="H100"}`:                             8,
		`scheduler_group_count{queue="team-red",state="placed",system="kueue"}`:                           2,
		`scheduler_group_count{queue="team-blue",state="waiting",system="kueue"}`:                         1,
		`scheduler_group_member_count{member="waiting",queue="team-blue",state="waiting",system="kueue"}`: 4,
		`scheduler_workload_admission_duration_seconds_count{queue="team-red"}`:                           2,
		`scheduler_workload_admission_duration_seconds_count{queue="team-blue"}`:                          absent,
	})
	q.compare(a)
	q.repeats(a, "kueue", map[string]float64{
		`scheduler_up{}`: 1,
		`scheduler_queue_gpu_nominal{queue="red",type="h100"}`:          8,
		`scheduler_queue_gpu_used{queue="red",type="h100"}`:             12,
		`scheduler_queue_gpu_borrowed{queue="red",type="h100"}`:         4,
		`scheduler_queue_gpu_used{queue="blue",type="h100"}`:            0,
		`scheduler_queue_gpu_borrowed{queue="blue",type="h100"}`:        0,
		`scheduler_queue_gpu_pending{queue="blue"}`:                     8,
		`scheduler_queue_gpu_limit{queue="red",type="h100"}`:            absent, // borrowing has no limit
		`scheduler_queue_job_count{queue="red",state="running"}`:        2,
		`scheduler_queue_job_count{queue="blue",state="pending"}`:       1,
		`scheduler_queue_wait_duration_seconds_count{queue="red"}`:      2,
		`scheduler_queue_evicted_total{queue="red",reason="preempted"}`: absent,
	})
	q.gated("third-0", "kueue.x-k8s.io/admission")
	q.says("third", "QuotaReserved", "False", "insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed")

	// What was lent is taken back.
	q.api.patch(kueueAPI+"/clusterqueues/blue", `{"spec": {"preemption": {"reclaimWithinCohort": "Any"}}}`)
	q.kueueShows(k, map[string]float64{
		`kueue_evicted_workloads_total{queue="red",reason="Preempted"}`: 1,
		`kueue_cluster_queue_resource_usage{queue="red"}`:               8,
		`kueue_cluster_queue_resource_usage{queue="blue"}`:              8,
	})
	q.usage(map[string]quotaUse{"red": {total: "8", borrowed: "0"}, "blue": {total: "8", borrowed: "0"}})
	q.repeats(a, "kueue", map[string]float64{
		`scheduler_queue_gpu_used{queue="red",type="h100"}`:             8,
		`scheduler_queue_gpu_borrowed{queue="red",type="h100"}`:         0,
		`scheduler_queue_gpu_used{queue="blue",type="h100"}`:            8,
		`scheduler_queue_gpu_pending{queue="red"}`:                      4,
		`scheduler_queue_evicted_total{queue="red",reason="preempted"}`: 1,
	})
	q.shows(a, map[string]float64{
		`scheduler_job_count{queue="team-red",state="stopping"}`:           4,
		`scheduler_job_evicted_total{queue="team-red",reason="preempted"}`: 4,
	})
	q.buried(red)
	q.shows(a, map[string]float64{
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:   8,
		`scheduler_gpu_allocated{queue="team-blue",type="H100"}`:  8,
		`scheduler_gpu_count{state="free",type="H100"}`:           0,
		`scheduler_job_count{queue="team-blue",state="starting"}`: 4,
	})
	q.compare(a)

	// Each Workload was admitted once, and each pod evicted once, for whoever is elected.
	once := q.admissions()
	once[`scheduler_job_evicted_total{queue="team-red",reason="preempted"}`] = 4
	q.shows(a, once)
	if code := a.stop(t); code != 0 {
		t.Errorf("the elected agent ended with %d", code)
	}
	q.shows(q.agent("next"), once)
}

// admissions returns the histograms of the waits of the Workloads, by their own times: of those that were never evicted, and of the
// one that was, which had been admitted as soon as it was created.
func (q *queueTest) admissions() map[string]float64 {
	q.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Namespace         string
				CreationTimestamp time.Time
			}
			Status struct {
				Conditions []struct {
					Type, Status       string
					LastTransitionTime time.Time
				}
			}
		}
	}
	if err := q.api.get(kueueAPI+"/workloads", &list); err != nil {
		q.t.Fatal(err)
	}
	const name = "scheduler_workload_admission_duration_seconds_"
	want := map[string]float64{}
	for _, w := range list.Items {
		queue := fmt.Sprintf("{queue=%q}", w.Metadata.Namespace)
		want[name+"count"+queue]++
		for _, c := range w.Status.Conditions {
			if c.Type == "Admitted" && c.Status == "True" && w.Metadata.Namespace == blue {
				want[name+"sum"+queue] += c.LastTransitionTime.Sub(w.Metadata.CreationTimestamp).Seconds()
			}
		}
	}
	return want
}

// kueue starts two Kueues, as its manifests say but for addresses, and returns the elected one first.
func (q *queueTest) kueue(folder string) []kueueReplica {
	t := q.t
	t.Helper()
	q.api.define(t, folder)
	q.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: kueue-system}}")
	dir := t.TempDir()
	certificate := selfSigned(t, dir)
	hooks := freeAddress(t)
	first := q.kueueReplica(dir, "first", hooks)
	q.hook(filepath.Join(folder, "webhook", "manifests.yaml"), "https://"+hooks, certificate, "", "batch", "kueue.x-k8s.io")
	eventually(t, "Kueue is elected", func() error {
		var lease struct {
			Spec struct{ HolderIdentity string }
		}
		if err := q.api.get("/apis/coordination.k8s.io/v1/namespaces/kueue-system/leases/kueue", &lease); err != nil || lease.Spec.HolderIdentity != "" {
			return err
		}
		return errors.New("nobody holds the lease")
	})
	return []kueueReplica{first, q.kueueReplica(dir, "second", freeAddress(t))}
}

// kueueReplica starts one Kueue. The folder of its certificates is fixed: it gets an /etc of its own.
func (q *queueTest) kueueReplica(dir, name, hooks string) kueueReplica {
	t := q.t
	t.Helper()
	host, port, _ := net.SplitHostPort(hooks)
	health, metrics := freeAddress(t), freeAddress(t)
	config := filepath.Join(dir, name+".yaml")
	write(t, config, fmt.Sprintf(`apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: %q}
metrics: {bindAddress: %q, enableClusterQueueResources: true}
webhook: {host: %q, port: %s, certDir: %q}
leaderElection: {leaderElect: true, resourceName: kueue, resourceNamespace: kueue-system}
internalCertManagement: {enable: false}
integrations: {frameworks: [pod, batch/job]}
`, health, metrics, host, port, dir))
	p := q.daemon("unshare", "--mount", "sh", "-c", `mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && ln -s "$1" /etc/kueue/metrics/certs && shift && exec "$@"`, "sh", dir,
		"kueue", "--config="+config, "--kubeconfig="+q.api.kubeconfig(dir, asAdmin), "--feature-gates=VisibilityOnDemand=false")
	p.name = "kueue " + name
	p.ready(t, "http://"+health+"/readyz")
	return kueueReplica{p, "https://" + metrics + "/metrics", filepath.Join(dir, "tls.crt")}
}

// selfSigned makes tls.crt and tls.key for 127.0.0.1 in a folder, and returns the certificate in PEM.
func selfSigned(t *testing.T, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, filepath.Join(dir, "tls.crt"), string(certificate))
	write(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
	return certificate
}

// hook creates the webhooks of a manifest for groups of resources, at a URL instead of a Service.
func (q *queueTest) hook(manifest, url string, certificate []byte, groups ...string) {
	t := q.t
	t.Helper()
	f, err := os.Open(manifest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	documents := yaml.NewDecoder(f)
	for _, kind := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		var c map[string]any
		if err := documents.Decode(&c); err != nil {
			t.Fatal(err)
		}
		c["webhooks"] = slices.DeleteFunc(c["webhooks"].([]any), func(w any) bool {
			hook := w.(map[string]any)
			client := hook["clientConfig"].(map[string]any)
			client["url"] = url + client["service"].(map[string]any)["path"].(string)
			client["caBundle"] = base64.StdEncoding.EncodeToString(certificate)
			delete(client, "service")
			return !slices.Contains(groups, hook["rules"].([]any)[0].(map[string]any)["apiGroups"].([]any)[0].(string))
		})
		text, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		q.api.create(webhooksAPI+kind, string(text))
	}
}

// cohort creates a queue of 8 GPUs for each team. Both lend what they do not use.
func (q *queueTest) cohort() {
	q.t.Helper()
	q.api.create(kueueAPI+"/resourceflavors", "{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: h100}}")
	q.api.create(kueueAPI+"/workloadpriorityclasses", "{apiVersion: kueue.x-k8s.io/v1beta2, kind: WorkloadPriorityClass, metadata: {name: first}, value: 100}")
	for team, namespace := range map[string]string{"red": red, "blue": blue} {
		q.api.create(kueueAPI+"/clusterqueues", fmt.Sprintf(`{apiVersion: kueue.x-k8s.io/v1beta2, kind: ClusterQueue, metadata: {name: %s}, spec: {
cohortName: all, namespaceSelector: {}, resourceGroups: [{coveredResources: [nvidia.com/gpu, cpu, memory], flavors: [{name: h100, resources: [
{name: nvidia.com/gpu, nominalQuota: 8}, {name: cpu, nominalQuota: 64}, {name: memory, nominalQuota: 500Gi}]}]}]}}`, team))
		q.api.create(kueueAPI+"/namespaces/"+namespace+"/localqueues", fmt.Sprintf("{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: gpus}, spec: {clusterQueue: %s}}", team))
	}
}

// gang creates pods that Kueue admits together, with more labels.
func (q *queueTest) gang(namespace, name string, pods, gpus int, labels ...string) {
	q.t.Helper()
	labels = append(labels, "kueue.x-k8s.io/queue-name: gpus", "kueue.x-k8s.io/pod-group-name: "+name)
	for i := range pods {
		q.podOf(namespace, fmt.Sprintf("{name: %s-%d, labels: {%s}, annotations: {kueue.x-k8s.io/pod-group-total-count: \"%d\"}}",
			name, i, strings.Join(labels, ", "), pods), gpus, "1", "")
	}
}

// kueueShows waits until the page of the elected Kueue has these values of its queues' GPUs.
func (q *queueTest) kueueShows(replicas []kueueReplica, want map[string]float64) {
	q.t.Helper()
	eventually(q.t, "Kueue shows its queues", func() error {
		text, err := fetch(q.t, replicas[0].metrics, replicas[0].ca, asAdmin)
		if err != nil {
			return err
		}
		page := samples(q.t, ofGPUs(text), "kueue_", map[string]string{
			"cluster_queue": "queue", "status": "status", "reason": "reason", "result": "result", "name": "name", "namespace": "namespace",
		})
		return matches(page, want)
	})
}

// ofGPUs returns the page of a queueing system without the samples of other resources, which could only be told apart by one more label.
func ofGPUs(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.Contains(line, `resource="`) || strings.Contains(line, `resource="nvidia.com/gpu"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// fetch returns a page that is served to the holder of a token, by a server with this certificate.
func fetch(t *testing.T, url, ca, token string) (string, error) {
	t.Helper()
	text, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// quotaUse is how much of the GPUs of a quota is used, and how much of that is borrowed.
type quotaUse struct{ total, borrowed string }

// usage waits until the status of the ClusterQueues is this.
func (q *queueTest) usage(want map[string]quotaUse) {
	q.t.Helper()
	eventually(q.t, "the status of the queues is current", func() error {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					FlavorsUsage []struct {
						Resources []struct{ Name, Total, Borrowed string }
					}
				}
			}
		}
		if err := q.api.get(kueueAPI+"/clusterqueues", &list); err != nil {
			return err
		}
		got := map[string]quotaUse{}
		for _, queue := range list.Items {
			for _, flavor := range queue.Status.FlavorsUsage {
				for _, r := range flavor.Resources {
					if r.Name == "nvidia.com/gpu" {
						got[queue.Metadata.Name] = quotaUse{r.Total, r.Borrowed}
					}
				}
			}
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(quotaUse{})); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// gated fails the test unless gpumeter why names the gate of a pod.
func (q *queueTest) gated(name, gate string) {
	q.t.Helper()
	out := command(q.t, ".", q.binary, "why", blue+"/"+name, "--kubeconfig", q.api.kubeconfig(q.dir, asAdmin))
	if !strings.Contains(out, gate) {
		q.t.Errorf("%s waits behind %s:\n%s", name, gate, out)
	}
}

// says waits until a Workload of the blue team has a condition with this message.
func (q *queueTest) says(name, condition, status, message string) {
	q.t.Helper()
	eventually(q.t, "Kueue says why "+name+" waits", func() error {
		var workload struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := q.api.get(kueueAPI+"/namespaces/"+blue+"/workloads/"+name, &workload); err != nil {
			return err
		}
		for _, c := range workload.Status.Conditions {
			if c.Type == condition && c.Status == status && strings.Contains(c.Message, message) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", workload.Status.Conditions)
	})
}

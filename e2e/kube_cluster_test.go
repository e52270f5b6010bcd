//go:build e2e

package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Tokens of the users of the API server.
const (
	asAdmin  = "admin"
	asAgent  = "gpumeter" // has the documented permissions
	asNobody = "nobody"   // has no permissions
)

// nodeName is the only node that has a kubelet.
const nodeName = "node-a"

// cluster is a single-node Kubernetes on this machine: the released programs, with containers in
// containerd. Pods use the host network, or one of their own that ends in the pod, so the machine's network is
// unchanged.
type cluster struct {
	t      *testing.T
	dir    string
	api    apiServer
	worker string // path of the program of workerImage
	root   string // root of the node as an agent in a container sees it: its own var, the machine's proc and sys

	apiserver, kubelet *process
	start              struct{ apiserver, kubelet func(t *testing.T) *process }
	plugins            []*devicePlugin
}

// newCluster starts a cluster whose node offers devices.
func newCluster(t *testing.T, plugins ...*devicePlugin) *cluster {
	t.Helper()
	requireKubernetes(t)
	c := &cluster{t: t, dir: t.TempDir(), plugins: plugins}
	occupy(t, c.dir)
	// Only now: another test may have run its own until then.
	if conn, err := net.Dial("unix", deviceplugin.KubeletSocket); err == nil {
		conn.Close()
		skip(t, "kubelet", "another kubelet runs on this machine, and the path for device plugins is fixed")
	}
	c.root = filepath.Join(c.dir, "node")
	for _, dir := range []string{c.root + "/var/lib/kubelet", c.root + "/var/log/pods", c.dir + "/cni", c.dir + "/log"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"/proc", "/sys", containerLogs} {
		if err := os.Symlink(dir, c.root+dir); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	c.startAPI()
	c.startContainerd()
	c.startKubelet()
	c.daemon("kube-controller-manager", "--kubeconfig="+c.api.kubeconfig(c.dir, asAdmin), "--leader-elect=false", "--secure-port=0",
		"--controllers=node-lifecycle-controller,deployment-controller,replicaset-controller,job-controller,resourceclaim-controller")
	c.daemon("kube-scheduler", "--kubeconfig="+c.api.kubeconfig(c.dir, asAdmin), "--leader-elect=false", "--secure-port=0")
	c.offer(t)
	t.Logf("the node was ready after %s", time.Since(began).Round(time.Millisecond))
	return c
}

// requireKubernetes skips the test if a cluster cannot run.
func requireKubernetes(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		skip(t, "kubelet", "running containers requires root")
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(name); err != nil {
			skip(t, "kubelet", fmt.Errorf("tools/deps.sh kubernetes etcd containerd did not install it: %w", err))
		}
	}
}

// daemon starts a program that logs to a file. If the test fails, it shows the last lines.
func (c *cluster) daemon(name string, args ...string) *process {
	c.t.Helper()
	return c.daemonOf(c.t, name, args...)
}

func (c *cluster) daemonOf(t *testing.T, name string, args ...string) *process {
	t.Helper()
	log := filepath.Join(c.dir, "log", name)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of %s:\n%s", name, lastLines(log, 10))
		}
	})
	p := start(t, "sh", append([]string{"-c", `exec "$@" >>"$0" 2>&1`, log, name}, args...)...)
	p.name = name
	return p
}

func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-n):]
	for i := range lines {
		lines[i] = lines[i][:min(len(lines[i]), 400)]
	}
	return strings.Join(lines, "\n")
}

// startAPI starts etcd and the API server.
func (c *cluster) startAPI() {
	t := c.t
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	accounts := filepath.Join(c.dir, "accounts.key")
	write(t, accounts, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	tokens := filepath.Join(c.dir, "tokens.csv") // token, user, uid, groups
	write(t, tokens, strings.Join([]string{
		asAdmin + `,admin,1,"system:masters"`,
		nodeName + `,system:node:` + nodeName + `,2,"system:nodes"`,
		asAgent + `,` + asAgent + `,3`,
		asNobody + `,` + asNobody + `,4`,
	}, "\n"))
	client, peer := "http://"+freeAddress(t), "http://"+freeAddress(t)
	c.daemon("etcd", "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)

	addr := freeAddress(t)
	_, port, _ := net.SplitHostPort(addr)
	certificates := filepath.Join(c.dir, "certificates")
	c.api = apiServer{t: t, url: "https://" + addr, ca: filepath.Join(certificates, "apiserver.crt")}
	c.start.apiserver = func(t *testing.T) *process {
		p := c.daemonOf(t, "kube-apiserver", "--etcd-servers="+client, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			"--secure-port="+port, "--cert-dir="+certificates, "--token-auth-file="+tokens, "--authorization-mode=Node,RBAC",
			"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none",
			"--service-account-issuer=https://e2e", "--service-account-key-file="+accounts, "--service-account-signing-key-file="+accounts,
			"--disable-admission-plugins=ServiceAccount") // our pods have none
		eventually(t, "the API server is ready", func() error {
			if c.api.client == nil {
				if err := c.api.trust(); err != nil {
					return err
				}
			}
			return c.api.get("/readyz", nil)
		})
		return p
	}
	c.apiserver = c.start.apiserver(t)
}

func (c *cluster) startContainerd() {
	t := c.t
	socket, config := c.containerd(), filepath.Join(c.dir, "containerd.toml")
	// Both networks of a pod, containerd's own for loopback and that for the rest, are our plugin's. Copies of
	// 1 MB need no overlay file system.
	plugin := program(t, "network")
	for _, name := range []string{"loopback", "pods"} {
		if err := os.Symlink(plugin, filepath.Join(c.dir, "cni", name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(c.dir, "cni", "pods.conflist"), `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "pods"}]}`)
	write(t, config, fmt.Sprintf(`version = 2
root = "%[1]s/images"
state = "%[1]s/run"
[grpc]
  address = %[2]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[3]q
  netns_mounts_under_state_dir = true # where sweep finds them
  restrict_oom_score_adj = true # a container may not have the capability for less
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "%[1]s/cni"
    bin_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
`, c.dir, socket, workerImage))
	c.daemon("containerd", "--config", config)
	c.worker = program(t, "worker")
	c.load(makeImage(t, workerImage, c.worker))
}

// load gives containerd an image.
func (c *cluster) load(image string) {
	c.t.Helper()
	eventually(c.t, "containerd accepts an image", func() error {
		out, err := tryCommand(c.t, ".", "ctr", "--address", c.containerd(), "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", image)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

func (c *cluster) containerd() string { return filepath.Join(c.dir, "containerd.sock") }

func (c *cluster) startKubelet() {
	_, port, _ := net.SplitHostPort(freeAddress(c.t))
	config := filepath.Join(c.dir, "kubelet.yaml")
	write(c.t, config, fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%s
podLogsDir: %s/var/log/pods
volumePluginDir: %s/plugins
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
address: 127.0.0.1
port: %s
healthzPort: 0
nodeStatusUpdateFrequency: 1s
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 0%%, nodefs.available: 0%%, imagefs.available: 0%%} # whatever the machine has left
imageGCHighThresholdPercent: 100
oomScoreAdj: 0
resolvConf: ""
`, c.containerd(), c.root, c.dir, port))
	kubeconfig := c.api.kubeconfig(c.dir, nodeName)
	c.start.kubelet = func(t *testing.T) *process {
		return c.daemonOf(t, "kubelet", "--config="+config, "--kubeconfig="+kubeconfig, "--hostname-override="+nodeName,
			"--root-dir="+filepath.Join(c.root, "var/lib/kubelet"), "--cert-dir="+filepath.Join(c.dir, "certificates/kubelet"))
	}
	c.kubelet = c.start.kubelet(c.t)
}

// offer waits for the kubelet, registers the plugins and waits until the kubelet allocates their devices.
func (c *cluster) offer(t *testing.T) {
	t.Helper()
	eventually(t, "the kubelet accepts device plugins", func() error {
		conn, err := net.Dial("unix", deviceplugin.KubeletSocket)
		if err == nil {
			conn.Close()
		}
		return err
	})
	for _, p := range c.plugins {
		p.offer(t)
	}
	eventually(t, "the node is ready and has devices", func() error {
		var node struct {
			Status struct {
				Allocatable map[string]string
				Conditions  []struct{ Type, Status, Message string }
			}
		}
		if err := c.api.get("/api/v1/nodes/"+nodeName, &node); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" && condition.Status != "True" {
				return errors.New(condition.Message)
			}
		}
		for _, p := range c.plugins {
			if got, want := node.Status.Allocatable[p.resource], fmt.Sprint(len(p.ids)); got != want {
				return fmt.Errorf("the node has %q of %s, want %s", got, p.resource, want)
			}
		}
		return nil
	})
}

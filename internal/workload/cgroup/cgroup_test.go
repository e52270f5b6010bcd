package cgroup

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The ids in testdata.
const (
	uid    = "3f1c9a52-7d4e-4b60-9c1a-52e8d07b6f11"
	hash   = "a81259cef8e959c624df1d456e5d3297"
	mainID = "0d6e4079e36703ebd37c00722f5891d28b0e2811dc114b129215123adcce3605"
	nodeID = "545ea538461003efdc8c81c244531b003f6f26cfccf6c0073b3239fdedf49446"
)

func TestParse(t *testing.T) {
	tested := map[string]bool{"README.md": true}
	f := func(name string, want Container) {
		t.Helper()
		tested[name] = true
		file, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		got, ok := Parse(file)
		if diff := cmp.Diff(want, got); diff != "" || ok != (want != Container{}) {
			t.Errorf("%s gives %v (-want +got):\n%s", name, ok, diff)
		}
	}
	none := Container{}

	f("containerd-cgroupfs-v1", Container{ID: mainID, PodUID: uid})
	f("containerd-systemd-v1-hybrid", Container{ID: mainID, Runtime: "containerd", PodUID: uid}) // version 2 has the wrong place
	f("containerd-systemd-v2", Container{ID: mainID, Runtime: "containerd", PodUID: uid})
	f("containerd-systemd-v2-guaranteed", Container{ID: mainID, Runtime: "containerd", PodUID: uid})
	f("containerd-systemd-v2-below", Container{ID: mainID, Runtime: "containerd", PodUID: uid}) // systemd in the container
	f("containerd-systemd-v2-deleted", Container{ID: mainID, Runtime: "containerd", PodUID: uid})
	f("containerd-mixed-drivers", Container{ID: mainID, Runtime: "containerd", PodUID: uid})
	f("containerd-static-pod", Container{ID: mainID, Runtime: "containerd", PodUID: hash})
	f("containerd-namespaced-reader-v2", Container{ID: mainID, Runtime: "containerd", PodUID: uid})
	f("containerd-namespaced-reader-same-pod-v2", Container{ID: mainID, Runtime: "containerd"})
	f("crio-systemd-v2", Container{ID: mainID, Runtime: "cri-o", PodUID: uid})
	f("crio-cgroupfs-v1", Container{ID: mainID, Runtime: "cri-o", PodUID: uid})
	f("crio-conmon-v2", none)
	f("k3s-cgroupfs-v1", Container{ID: mainID, PodUID: uid})
	f("k3s-v2", Container{ID: mainID, PodUID: uid})
	f("k3d-v1", Container{ID: mainID, PodUID: uid}) // the pod, not the container that is its node
	f("kind-cgroupfs-v1", Container{ID: mainID, PodUID: uid})
	f("kind-systemd-v2", Container{ID: mainID, Runtime: "containerd", PodUID: uid})
	f("kind-node-itself", Container{ID: nodeID, Runtime: "docker"})
	f("kind-in-a-pod", Container{ID: mainID, PodUID: uid})
	f("docker-in-a-pod", Container{ID: mainID, PodUID: uid}) // the kubelet does not know the inner container
	f("captured-docker-v1", Container{ID: "ad024336a8c5ef8bf3bc0c8b67a2067726f10f4d5cdd07c0ce214abfecb3fc3e", Runtime: "docker"})
	f("captured-podman-v1", Container{ID: "9e73204969457bec4b94625e9ae69dc11267dee62baa42dcb88b5a76b61628a5", Runtime: "podman"})
	f("docker-cgroupfs-v1", Container{ID: mainID, Runtime: "docker"})
	f("docker-systemd-v2", Container{ID: mainID, Runtime: "docker"})
	f("docker-systemd-kubernetes-v1", Container{ID: mainID, Runtime: "docker", PodUID: uid})
	f("docker-in-docker-v1", Container{ID: mainID, Runtime: "docker"}) // nor does the outer Docker
	f("podman-root-v2", Container{ID: mainID, Runtime: "podman"})
	f("podman-rootless-v2", Container{ID: mainID, Runtime: "podman", User: "1000"})
	f("podman-cgroupfs-v1", Container{ID: mainID, Runtime: "podman"})
	f("podman-quadlet-v2", Container{ID: mainID, Runtime: "podman"})
	f("podman-conmon-v2", none)
	f("kata-v1", Container{ID: mainID, PodUID: uid})
	f("host-systemd-v2", none)
	f("host-session-v2", none)
	f("host-slurm-v2", none)
	f("host-hash-v1", none) // a hash is not a container id
	f("pod-without-container-v2", none)

	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !tested[e.Name()] && !e.IsDir() {
			t.Errorf("testdata/%s is not tested", e.Name())
		}
	}
}

func TestParseTorn(t *testing.T) {
	f := func(file string) {
		t.Helper()
		if got, ok := Parse([]byte(file)); ok {
			t.Errorf("%q gives %v", file, got)
		}
	}
	f("")
	f("\n\n")
	f("0::")
	f("0::/")
	f("0:/docker/" + mainID)
	f("0::docker/" + mainID)                        // not a kernel path
	f("0::/docker/" + mainID[:63])                  // truncated
	f("0::/docker/" + strings.ToUpper(mainID))      // no runtime uses upper case
	f("0::/kubepods/pod" + uid + "/" + mainID[:12]) // the short form is for display only
	f("0::/kubepods-pod" + uid[:35] + ".slice/x")
	f("0::/foopods-burstable-pod" + hash + ".slice/x")
}

// A name that only resembles a pod must not become one: the UID is half of a workload's
// identity.
func TestParseNotAPod(t *testing.T) {
	f := func(parent string) {
		t.Helper()
		want := Container{ID: mainID}
		got, ok := Parse([]byte("0::/" + parent + "/" + mainID))
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%s gives %v (-want +got):\n%s", parent, ok, diff)
		}
	}
	f("podman")
	f("pod" + uid[:35])
	f("pod" + strings.ReplaceAll(uid, "-", "_"))
	f("pod" + strings.ReplaceAll(uid, "-", "")[:31])
	f("kubepods-pod" + uid + "x.slice")
	f("mypods-pod" + uid + ".slice")
	f("notkubepods-pod" + uid + ".slice")
}

// Hierarchies of version 1 may disagree: a nested runtime does not manage all of them.
func TestParseDeepest(t *testing.T) {
	f := func(lines ...string) {
		t.Helper()
		got, ok := Parse([]byte(strings.Join(lines, "\n")))
		if diff := cmp.Diff(Container{ID: mainID, PodUID: uid}, got); diff != "" || !ok {
			t.Errorf("%q gives %v (-want +got):\n%s", lines, ok, diff)
		}
	}
	outer := "/kubepods/pod" + hash + "/" + nodeID
	inner := outer + "/kubelet/kubepods/pod" + uid + "/" + mainID
	f("2:cpu:"+outer, "1:memory:"+inner)
	f("2:cpu:"+inner, "1:memory:"+outer)
	f("2:cpu:/kubepods/pod"+uid+"/"+mainID, "1:memory:/a/b/c/d/e/docker/"+nodeID) // deeper, but not a pod
	f("3:pids:/", "2:cpu:/docker/"+nodeID, "1:memory:"+inner)
}

// captures are real files that are not part of this repository.
const captures = "../../../../shared/fixtures/k8s-real/proc-cgroup-environ.txt"

func TestCapture(t *testing.T) {
	text, err := os.ReadFile(captures)
	if err != nil {
		t.Skipf("no capture of a real kubelet: %v", err)
	}
	pods := map[string]bool{}
	for i, part := range bytes.Split(text, []byte("### pid "))[1:] {
		c, ok := Parse(part)
		if !ok || !isUID(c.PodUID) || !isID(c.ID) {
			t.Errorf("process %d gives %v, %v", i, c, ok)
		}
		pods[c.PodUID] = true
	}
	if len(pods) < 3 {
		t.Errorf("%d pods found: %v", len(pods), pods)
	}
}

func FuzzParse(f *testing.F) {
	entries, err := filepath.Glob("testdata/*-*")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range entries {
		file, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		c, ok := Parse(file)
		switch {
		case ok != (c.ID != ""), c.ID == "" && c != Container{}:
			t.Fatalf("%v with %v", c, ok)
		case !ok:
			return
		case !isID(c.ID), !bytes.Contains(file, []byte(c.ID)):
			t.Errorf("id %q was invented", c.ID)
		case c.PodUID != "" && (!isUID(c.PodUID) || !bytes.Contains(bytes.ReplaceAll(file, []byte("_"), []byte("-")), []byte(c.PodUID))):
			t.Errorf("uid %q was invented", c.PodUID)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 2 0 0 20 0 1 0 24 0 0 18446744073709551615")
	f.Add("77 (a ) b() S 1 77 77 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 900 0")
	f.Add("1 () S")
	f.Fuzz(func(t *testing.T, s string) {
		st, err := parseStat(s)
		if err == nil && !strings.Contains(s, "("+st.Comm+")") {
			t.Errorf("name %q was invented", st.Comm)
		}
	})
}

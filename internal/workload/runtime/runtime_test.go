package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ workload.Source = (*Source)(nil)
	_ Containers      = (*cgroup.Reader)(nil)
)

// id returns the id of the container called name in testdata.
func id(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// processes are the processes of a machine and their containers.
type processes map[uint32]cgroup.Container

func (p processes) Container(pid uint32) (cgroup.Container, bool, error) {
	c, ok := p[pid]
	if !ok {
		return c, false, fs.ErrNotExist
	}
	return c, c.ID != "", nil
}

func newSource(root string, p processes) *Source {
	s := New(root, p)
	s.patience = time.Minute
	return s
}

func TestProcess(t *testing.T) {
	f := func(c cgroup.Container, name string, attributes map[string]string) {
		t.Helper()
		want := workload.Workload{ID: "container/" + c.ID, Kind: "container", Name: name, Attributes: attributes}
		want.Attributes["container.id"] = c.ID
		got, ok := newSource("testdata/root", processes{7: c}).Process(7)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("got %v (-want +got):\n%s", ok, diff)
		}
		if b, err := json.Marshal(got); err != nil || strings.Contains(string(b), "secret") {
			t.Errorf("a secret was exported: %s, %v", b, err)
		}
	}
	web := map[string]string{
		"container.name": "shop-web-1", "container.image.name": "registry.example.com:5000/shop/web",
		"docker.compose.project": "shop", "docker.compose.service": "web",
	}
	f(cgroup.Container{ID: id("shop-web-1"), Runtime: "docker"}, "web", web)
	f(cgroup.Container{ID: id("shop-web-1")}, "web", web) // the path does not name the runtime
	f(cgroup.Container{ID: id("gracious_noether"), Runtime: "docker"}, "gracious_noether",
		map[string]string{"container.name": "gracious_noether", "container.image.name": "vllm/vllm-openai"})
	train := map[string]string{"container.name": "train", "container.image.name": "docker.io/library/trainer"}
	f(cgroup.Container{ID: id("train"), Runtime: "podman"}, "train", train)
	f(cgroup.Container{ID: id("train")}, "train", train)
	f(cgroup.Container{ID: id("lab_notebook_1"), Runtime: "podman"}, "notebook", map[string]string{
		"container.name": "lab_notebook_1", "container.image.name": "quay.io/lab/notebook", "docker.compose.project": "lab", "docker.compose.service": "notebook",
	})
	f(cgroup.Container{ID: id("once"), Runtime: "podman"}, "once", map[string]string{"container.name": "once", "container.image.name": "localhost/once"})
	f(cgroup.Container{ID: id("rootless"), Runtime: "podman", User: "1000"}, "rootless",
		map[string]string{"container.name": "rootless", "container.image.name": "docker.io/library/trainer"})

	// A container without files is still a container.
	f(cgroup.Container{ID: id("rootless"), Runtime: "podman", User: "1001"}, id("rootless")[:12], map[string]string{})
	f(cgroup.Container{ID: id("torn"), Runtime: "docker"}, id("torn")[:12], map[string]string{})
	f(cgroup.Container{ID: id("none")}, id("none")[:12], map[string]string{})
}

// Files that the runtimes themselves wrote; see testdata/README.md.
func TestCaptured(t *testing.T) {
	const (
		docker = "ad024336a8c5ef8bf3bc0c8b67a2067726f10f4d5cdd07c0ce214abfecb3fc3e"
		podman = "9e73204969457bec4b94625e9ae69dc11267dee62baa42dcb88b5a76b61628a5"
	)
	s := newSource("testdata/captured", processes{1: {ID: docker, Runtime: "docker"}, 2: {ID: podman, Runtime: "podman"}})
	first, _ := s.Process(1)
	second, _ := s.Process(2)
	want := []workload.Workload{
		{ID: "container/" + docker, Kind: "container", Name: "web", Attributes: map[string]string{
			"container.id": docker, "container.name": "shop-web-1", "container.image.name": "test/sleeper",
			"docker.compose.project": "shop", "docker.compose.service": "web",
		}},
		{ID: "container/" + podman, Kind: "container", Name: "train2", Attributes: map[string]string{
			"container.id": podman, "container.name": "train2", "container.image.name": "localhost/sleeper", "docker.compose.project": "ann",
		}},
	}
	if diff := cmp.Diff(want, []workload.Workload{first, second}); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNotItsBusiness(t *testing.T) {
	s := newSource("testdata/root", processes{
		1: {},
		2: {ID: id("shop-web-1"), Runtime: "docker", PodUID: "3f1c9a52-7d4e-4b60-9c1a-52e8d07b6f11"},
	})
	for pid := range uint32(4) {
		if w, ok := s.Process(pid); ok {
			t.Errorf("process %d is of %v", pid, w)
		}
	}
	if got := s.Grants(); got != nil {
		t.Errorf("it gave %v", got)
	}
}

func TestDataRoot(t *testing.T) {
	root := t.TempDir()
	write(t, root, "etc/docker/daemon.json", `{"data-root": "/data/docker", "runtimes": {}}`)
	write(t, root, "data/docker/containers/"+id("x")+"/config.v2.json", `{"Name": "/elsewhere"}`)
	got, _ := newSource(root, processes{7: {ID: id("x"), Runtime: "docker"}}).Process(7)
	if got.Name != "elsewhere" {
		t.Errorf("got %+v", got)
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A container is renamed, its files appear late, and they disappear while it runs.
func TestAsksAgain(t *testing.T) {
	root := t.TempDir()
	s := newSource(root, processes{7: {ID: id("x"), Runtime: "docker"}})
	now := time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	f := func(later time.Duration, want string) {
		t.Helper()
		now = now.Add(later)
		if got, ok := s.Process(7); got.Name != want || !ok {
			t.Errorf("got %q, %v, want %q", got.Name, ok, want)
		}
	}
	file := "var/lib/docker/containers/" + id("x") + "/config.v2.json"
	f(0, id("x")[:12])
	write(t, root, file, `{"Name": "/a"}`)
	f(rememberNone-1, id("x")[:12])
	f(1, "a")
	write(t, root, file, `{"Name": "/b"}`)
	f(remember-1, "a")
	f(1, "b")
	write(t, root, file, `{`)
	f(remember, "b")
}

func TestStatuses(t *testing.T) {
	f := func(s *Source, want workload.Reason, detail string) {
		t.Helper()
		got := s.Statuses()
		if len(got) != 1 || got[0].Source != "container_runtime" || got[0].Reason != want || !strings.Contains(got[0].Detail, detail) || (detail == "") != (got[0].Detail == "") {
			t.Errorf("got %+v, want %s %q", got, want, detail)
		}
	}
	containers := processes{1: {ID: id("train")}, 2: {ID: id("none")}, 3: {ID: id("torn"), Runtime: "docker"}}
	f(newSource(t.TempDir(), containers), workload.Absent, "")
	s := newSource("testdata/root", containers)
	f(s, workload.OK, "")
	s.Process(1)
	f(s, workload.OK, "")
	s.Process(2)
	f(s, workload.Absent, "1 containers are named by their id")
	s.Process(3)
	f(s, workload.Failed, "2 containers are named by their id")
	s.known["x"] = entry{err: fmt.Errorf("docker: %w", fs.ErrPermission), until: time.Now().Add(time.Hour)}
	f(s, workload.PermissionDenied, "3 containers")
	now := time.Now().Add(time.Hour + remember)
	s.now = func() time.Time { return now }
	f(s, workload.OK, "") // they are no longer requested
}

// A home directory on a server that does not answer must neither block the agent nor delay
// every tick and container: it is waited for once.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		containers := processes{}
		for pid := range uint32(maxReading + 1) {
			containers[pid] = cgroup.Container{ID: id(fmt.Sprint(pid))}
		}
		s := New(t.TempDir(), containers)
		hang := make(chan struct{})
		s.describe = func(cgroup.Container) (description, error) {
			<-hang
			return description{name: "late"}, nil
		}
		start := time.Now()
		for range 2 {
			for pid := range uint32(maxReading + 1) {
				if got, ok := s.Process(pid); got.Name != id(fmt.Sprint(pid))[:12] || !ok {
					t.Errorf("got %+v, %v", got, ok)
				}
			}
		}
		if waited := time.Since(start); waited != patience {
			t.Errorf("waited %s", waited)
		}
		if len(s.reading) != maxReading {
			t.Errorf("%d files are read at once", len(s.reading))
		}
		if got := s.Statuses(); got[0].Reason != workload.Failed {
			t.Errorf("got %+v", got)
		}
		close(hang)
		synctest.Wait()
		for pid := range uint32(maxReading) {
			if got, _ := s.Process(pid); got.Name != "late" {
				t.Errorf("got %+v", got)
			}
		}
	})
}

func TestBounded(t *testing.T) {
	s := newSource("testdata/root", processes{1: {ID: id("train")}, 2: {ID: id("once")}})
	now := time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	for i := range maxKept {
		s.known[fmt.Sprint(i)] = entry{until: now.Add(time.Duration(i%2) * time.Hour)}
	}
	f := func(pid uint32, size int) {
		t.Helper()
		s.Process(pid)
		if len(s.known) != size {
			t.Errorf("%d remembered, want %d", len(s.known), size)
		}
	}
	f(1, maxKept/2+1) // the expired half makes room
	for i := range maxKept/2 - 1 {
		s.known[fmt.Sprint("more", i)] = entry{until: now.Add(time.Hour)}
	}
	f(2, 1)
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "long", strings.Repeat("x", maxFile+1))
	for _, name := range []string{"pipe", "long", "."} {
		if _, err := readFile(filepath.Join(dir, name)); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s gives %v", name, err)
		}
	}
}

// What a user writes into these files becomes a label.
func TestImplausible(t *testing.T) {
	f := func(bad string) {
		t.Helper()
		want := workload.Workload{ID: "container/" + id("x"), Kind: "container", Name: id("x")[:12], Attributes: map[string]string{"container.id": id("x")}}
		got := description{name: bad, image: bad, project: bad, service: bad}.workload(id("x"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%.20q gives (-want +got):\n%s", bad, diff)
		}
	}
	f("")
	f("a\xff")
	f(strings.Repeat("x", maxText+1))
}

func TestImageName(t *testing.T) {
	f := func(image, want string) {
		t.Helper()
		if got := imageName(image); got != want {
			t.Errorf("%q is %q, want %q", image, got, want)
		}
	}
	f("nginx", "nginx")
	f("nginx:1.25", "nginx")
	f("host:5000/nginx", "host:5000/nginx")
	f("host:5000/a/nginx:1@sha256:00", "host:5000/a/nginx")
	f("nginx@sha256:00", "nginx")
	f("sha256:00ff", "")
	f("", "")
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*/var/lib/*/containers/*/*.json", "testdata/*/var/lib/containers/storage/*/*.json", "testdata/root/etc/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		docker, _ := parseDocker(b)
		podman, _ := parsePodman(b, id("train"))
		podman.labels(parseAnnotations(b))
		for _, d := range []description{docker, podman} {
			w := d.workload(id("x"))
			if w.Name == "" || len(w.Attributes) > 5 {
				t.Errorf("got %+v", w)
			}
			for key, value := range w.Attributes {
				if value == "" || len(value) > maxText {
					t.Errorf("%s is %q", key, value)
				}
			}
		}
		if home := parseHome(string(b), "0"); home != "" && !filepath.IsAbs(home) {
			t.Errorf("home is %q", home)
		}
	})
}

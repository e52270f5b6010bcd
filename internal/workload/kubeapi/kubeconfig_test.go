package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// An ordinary kubeconfig must work, over a real network, without running any program.
func TestKubeconfig(t *testing.T) {
	s := withEverything()
	url, stop := s.Serve()
	defer stop()
	file, err := kubeapitest.Kubeconfig(t.TempDir(), url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Node: "node1", Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	await.NoError(t, func() error {
		if s := c.State(); !s.Synced {
			return fmt.Errorf("not synced: %+v", s)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := New(Config{Kubeconfig: file}); err == nil {
		t.Error("a client without a node would watch every pod of the cluster")
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := New(Config{Node: "n"}); !errors.Is(err, ErrNotInCluster) {
		t.Errorf("outside a cluster: %v, want ErrNotInCluster", err)
	}
	runs := filepath.Join(t.TempDir(), "exec")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"t","clusters":[{"name":"t","cluster":{"server":"https://x"}}],
		"contexts":[{"name":"t","context":{"cluster":"t","user":"t"}}],
		"users":[{"name":"t","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"aws","interactiveMode":"Never"}}}]}`
	if err := os.WriteFile(runs, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Node: "n", Kubeconfig: runs}); err == nil || !strings.Contains(err.Error(), "aws") {
		t.Errorf("a kubeconfig that runs a program: %v, want it refused", err)
	}
}

// The pods of a real cluster, as kubectl prints them.
func TestCapture(t *testing.T) {
	b, err := os.ReadFile("../../../../shared/fixtures/k8s-real/pods-nodes.json")
	if err != nil {
		t.Skip("no captures here: ", err)
	}
	var list struct {
		Items []object `json:"items"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		for _, i := range list.Items {
			if i["kind"] == "Pod" {
				i["spec"].(object)["nodeName"] = "node1"
				s.PutPod(i)
			}
		}
		c := start(t, s, Config{})
		p, _ := c.PodByContainer("7aa3298e6c87d3e9149507c6c9d693607fad2698bded8294e1641d6d12d3e9e1")
		if p.Name != "batchjob-gm768" || p.Owner != (Owner{"job", "batchjob"}) {
			t.Errorf("got %+v", p)
		}
		if p, _ := c.PodByName("default", "train-6f58d465bd-kvbqx"); p.Owner != (Owner{"deployment", "train"}) {
			t.Errorf("owner = %+v, want the deployment by the hash", p.Owner)
		}
	})
}

// Catches a file that kubectl would not use.
func TestKubeconfigChoice(t *testing.T) {
	home := t.TempDir()
	f := func(file, list, home, want string) {
		t.Helper()
		if got := Kubeconfig(file, list, home); got != want {
			t.Errorf("%q, %q and %q select %q, want %q", file, list, home, got, want)
		}
	}
	f("", "", "", "")
	f("", "", home, "")
	own := filepath.Join(home, ".kube", "config")
	if err := os.MkdirAll(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f("", "", home, own)
	f("", "/a:/b", home, "/a")
	f("/c", "/a:/b", home, "/c")
}

//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// workerImage is the image of all containers, including pod sandboxes.
const workerImage = "localhost/worker:1"

// makeImage builds the worker into an archive in the format of docker save: there is no registry to pull
// an image from.
func makeImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	binary, archive := filepath.Join(dir, "worker"), filepath.Join(dir, "worker.tar")
	command(t, "testdata/worker", "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, ".")
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	layer := pack(t, file{"worker", program, 0o755})
	config := marshal(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/worker"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	manifest := marshal(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{workerImage}, "Layers": []string{"layer.tar"}}})
	image := pack(t, file{"config.json", config, 0o644}, file{"layer.tar", layer, 0o644}, file{"manifest.json", manifest, 0o644})
	if err := os.WriteFile(archive, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return archive
}

type file struct {
	name string
	data []byte
	mode int64
}

func pack(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.data)), Mode: f.mode}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

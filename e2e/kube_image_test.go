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

// Images of containers: workerImage, also that of pod sandboxes, does nothing, and enginesImage has inference
// engines.
const (
	workerImage  = "localhost/worker:1"
	enginesImage = "localhost/engines:1"
)

// program builds a program of testdata and returns its path.
func program(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	command(t, filepath.Join("testdata", name), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, ".")
	return path
}

// makeImage packs programs into an archive in the format of docker save: there is no registry to pull an image
// from. A container runs the first if its command does not say otherwise.
func makeImage(t *testing.T, name string, programs ...string) string {
	t.Helper()
	var files []file
	for _, path := range programs {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{filepath.Base(path), data, 0o755})
	}
	layer := pack(t, files...)
	config := marshal(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + files[0].name}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	manifest := marshal(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	image := pack(t, file{"config.json", config, 0o644}, file{"layer.tar", layer, 0o644}, file{"manifest.json", manifest, 0o644})
	archive := filepath.Join(t.TempDir(), "image.tar")
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

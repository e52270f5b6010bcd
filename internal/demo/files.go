//go:build linux

package demo

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

var (
	//go:embed prices.yaml
	prices []byte
	//go:embed objectives.yaml
	objectives []byte
	//go:embed quotas.yaml
	quotas []byte
)

// Prices returns the content of a price file for the fleet. The prices are made up.
func Prices() []byte { return bytes.Clone(prices) }

// Objectives returns the content of a file of objectives for the inference engines of the fleet.
func Objectives() []byte { return bytes.Clone(objectives) }

// Files are the paths of what operators write for a hub.
type Files struct{ Prices, Objectives, Quotas string }

// WriteFiles writes the files of the demo into a folder.
func WriteFiles(dir string) (Files, error) {
	f := Files{filepath.Join(dir, "prices.yaml"), filepath.Join(dir, "objectives.yaml"), filepath.Join(dir, "quotas.yaml")}
	for path, text := range map[string][]byte{f.Prices: prices, f.Objectives: objectives, f.Quotas: quotas} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return Files{}, fmt.Errorf("cannot write a file of the demo: %w", err)
		}
	}
	return f, nil
}

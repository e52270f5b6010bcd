//go:build linux

package agent

import (
	"context"
	"fmt"
	"os"
)

// Validate resolves and validates a configuration file and builds its pipelines without
// starting them.
func Validate(ctx context.Context, version, file string) error {
	text, err := readConfig(file)
	if err != nil {
		return err
	}
	return validate(ctx, version, text)
}

func readConfig(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return text, nil
}

func validate(ctx context.Context, version string, text []byte) error {
	col, err := newCollector(version, fromText(text), idle())
	if err != nil {
		return err
	}
	return explained(col.DryRun(ctx))
}

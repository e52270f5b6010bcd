//go:build bench

package bill

import (
	"testing"
	"time"
)

func page(t *testing.T, dir string, from time.Time) {}

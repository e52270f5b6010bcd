package programtest_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpumeter/gpumeter/internal/programtest"
)

// Catches "text file busy": without the lock one of some hundred runs fails.
func TestWriteBesideForks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := "#!/bin/sh\nexit 0\n"
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 50 {
				path := filepath.Join(dir, fmt.Sprintf("%d-%d", worker, i))
				programtest.Write(t, path, script)
				if err := exec.Command(path).Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

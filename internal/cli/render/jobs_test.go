//go:build linux

package render

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/accounting"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// A table fits 100 columns: texts are cut, numbers never.
func TestJobsWidth(t *testing.T) {
	r := accounting.Record{Job: accounting.Job{
		Job: slurm.Job{
			ID: "12345678", User: "a-very-long-user", Account: "an-account-of-somebody", Partition: "gpu-h100-long", State: "OUT_OF_MEMORY",
			Start: time.Unix(1, 0), End: time.Unix(2, 0), GPUs: 1024, Name: strings.Repeat("é", 60),
		},
		UserID: "12345678_1234", Elapsed: 30 * time.Hour,
	}}
	r.Usage = accounting.Usage{Status: accounting.UsageOK, Allocated: 2, Active: device.Of(1)}
	for _, width := range []int{0, 100, 60} {
		var out bytes.Buffer
		if err := Jobs(&out, []accounting.Record{r}, nil, width, accounting.Query{}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			n := len([]rune(strings.TrimSpace(line)))
			if width == 100 && n > 110 || width == 0 && strings.Contains(line, "+") {
				t.Errorf("%d of %d: %s", n, width, line)
			}
		}
		if !strings.Contains(out.String(), "12345678_1234") || !strings.Contains(out.String(), "1-06:00:00") || !strings.Contains(out.String(), "30720") {
			t.Errorf("a number is cut:\n%s", out.String())
		}
	}
}

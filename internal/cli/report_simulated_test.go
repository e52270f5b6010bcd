//go:build linux

package cli

import (
	"encoding/csv"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches a report of simulated devices, in any format, that could pass for real, and unattributed
// use that is counted as a workload.
func TestReportOfSimulation(t *testing.T) {
	t.Parallel()
	list := reportFleet()
	unknown := map[string]string{"gpu_uuid": "g4", "gpu_model": "H100", "gpu_workload_kind": "unattributed", "host_name": "n1"}
	list = append(list, reportSeries{"gpu_workload_allocated_time_seconds_total", unknown, 1, reportStart})
	f := func(want string, simulated func(i int) bool, warning string) {
		t.Helper()
		all := make([]reportSeries, len(list))
		for i, s := range list {
			s.label = maps.Clone(s.label)
			if simulated(i) {
				s.label["gpumeter_simulated"] = "true"
			}
			all[i] = s
		}
		url := fakePrometheus(t, all)
		output := func(format string) string {
			text, err := reportOutput(t, "usage", "--url", url, "--from", "2026-10-14", "--to", "2026-10-15", "-o", format)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		table := output("table")
		if lines := strings.Split(table, "\n"); lines[1] != warning {
			t.Errorf("table: the line after the title is %q, want %q", lines[1], warning)
		}
		if page := output("html"); strings.Contains(page, `role="note"`) != (warning != "") || !strings.Contains(page, warning) {
			t.Errorf("html lacks or has a warning, want %q", warning)
		}
		var r struct {
			Simulated string
			Total     struct{ Workloads int }
		}
		if err := json.Unmarshal([]byte(output("json")), &r); err != nil || r.Simulated != want || r.Total.Workloads != 2 {
			t.Errorf("json: simulated %q, want %q; %d workloads, want 2 (%v)", r.Simulated, want, r.Total.Workloads, err)
		}
		rows, err := csv.NewReader(strings.NewReader(output("csv"))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, row := range rows {
			got[row[len(row)-1]] = true
		}
		cell := want
		if cell == "" {
			cell = "none"
		}
		if diff := cmp.Diff(map[string]bool{"simulated": true, cell: true}, got); diff != "" {
			t.Errorf("last column of the csv (-want +got):\n%s", diff)
		}
	}
	f("all", func(int) bool { return true }, "SIMULATED: none of these numbers are real.")
	f("some", func(i int) bool { return i < 3 }, "PARTLY SIMULATED: some of these numbers are not real.")
	f("", func(int) bool { return false }, "")
}

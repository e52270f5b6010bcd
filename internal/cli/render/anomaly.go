//go:build linux

package render

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
)

// Anomaly writes an anomaly as text: the process, the slowdown, the share of each cause, and
// the operations that changed. Times are in the local time zone.
func Anomaly(w io.Writer, a *anomaly.Anomaly) {
	when := a.Since.Local().Format("2006-01-02 15:04:05")
	switch a.State {
	case anomaly.Ended:
		when += " to " + a.Time.Local().Format(time.TimeOnly)
	case anomaly.Adopted:
		when += ", accepted as the new baseline at " + a.Time.Local().Format(time.TimeOnly)
	default:
		when += ", still ongoing at " + a.Time.Local().Format(time.TimeOnly)
	}
	fmt.Fprintln(w, when)
	who := fmt.Sprintf("  %s (pid %d", plain(a.Process), a.PID)
	if a.Workload != "" && a.Workload != "process "+a.Process {
		who += ", " + plain(a.Workload)
	}
	wrap(w, 80, "  ", fmt.Sprintf("%s) %s; %s of %s were lost.", who, slower(a), spanOf(a.Lost.Seconds()), spanOf(a.Over.Seconds())))
	share := func(part float64, words string) {
		if part >= 0.005 {
			wrap(w, 80, "          ", fmt.Sprintf("   %4s  %s", wholePercent(part), words))
		}
	}
	for _, e := range a.Explanations {
		share(e.Share, strings.ReplaceAll(string(e.Cause), "_", " ")+": "+e.Fact)
	}
	if a.Unexplained >= 0.005 {
		share(a.Unexplained, "unexplained: no known event at the same time accounts for it")
	}
	for i, x := range a.Changes {
		if i == 0 {
			fmt.Fprintln(w, "  Affected operations")
		}
		name := x.Op
		if name == "bubble" {
			name = "bubble (between calls)"
		}
		fmt.Fprintf(w, "   %-26s %9s instead of %s\n", plain(name), spanOf(x.Observed), spanOf(x.Baseline))
	}
	fmt.Fprintln(w)
}

// slower describes the slowdown of a process.
func slower(a *anomaly.Anomaly) string {
	switch a.Op {
	case anomaly.Step:
		if a.Observed <= 0 {
			return "launched less"
		}
		return "made " + wholePercent(1-a.Baseline/a.Observed) + " fewer launches per second"
	case anomaly.Sync:
		return "waited in a synchronization that did not return"
	case anomaly.Collective:
		return "waited for ranks that did not arrive"
	}
	return fmt.Sprintf("took %s instead of %s for %s", spanOf(a.Observed), spanOf(a.Baseline), a.Op)
}

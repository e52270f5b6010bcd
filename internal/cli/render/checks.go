//go:build linux

package render

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/check"
	"github.com/gpumeter/gpumeter/internal/check/worker"
)

// CheckList writes the table of all checks.
func CheckList(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ID\tPROFILES\tLIMIT\tPASSES IF")
	for _, c := range check.All() {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", c.ID, strings.Join(c.Profiles, " "), c.Limit, c.About)
	}
	return tw.Flush()
}

// CheckFormats returns the formats of Checks.
func CheckFormats() []string { return []string{"table", "json", "line", "nagios", "npd"} }

// Checks writes a report in one of CheckFormats: a table for people, JSON for programs, or
// the format that Slurm prologs, Nagios or node-problem-detector expects.
func Checks(w io.Writer, format string, r worker.Report) error {
	var err error
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	case "line":
		_, err = fmt.Fprintln(w, checkLine(r))
	case "npd":
		_, err = fmt.Fprintln(w, npdLine(r))
	case "nagios":
		_, err = io.WriteString(w, nagios(r))
	default:
		_, err = io.WriteString(w, checkTable(r))
	}
	return err
}

// failed returns the results that are neither ok nor skipped, the worst first.
func failed(r worker.Report) []check.Result {
	order := []check.Status{check.Critical, check.Warning, check.Unknown}
	out := slices.DeleteFunc(slices.Clone(r.Results), func(x check.Result) bool { return !slices.Contains(order, x.Status) })
	slices.SortStableFunc(out, func(a, b check.Result) int { return slices.Index(order, a.Status) - slices.Index(order, b.Status) })
	return out
}

func tally(r worker.Report) map[check.Status]int {
	n := map[check.Status]int{}
	for _, x := range r.Results {
		n[x.Status]++
	}
	return n
}

func summary(r worker.Report) string {
	n := tally(r)
	return fmt.Sprintf("%d checks ok, %d critical, %d warning, %d unknown, %d skipped, in %.1f s",
		n[check.OK], n[check.Critical], n[check.Warning], n[check.Unknown], n[check.Skipped], r.Seconds)
}

func checkTable(r worker.Report) string {
	var b strings.Builder
	if r.Simulated {
		fmt.Fprintln(&b, "SIMULATED devices: none of these numbers are real.")
	}
	width := 0
	for _, x := range r.Results {
		width = max(width, len(x.ID))
	}
	indent := strings.Repeat(" ", 10+width)
	for _, x := range r.Results {
		if len(x.Problems) == 0 {
			fmt.Fprintf(&b, "%-8s %-*s  %s\n", x.Status, width, x.ID, x.Reason)
		}
		for i, p := range x.Problems {
			id := x.ID
			if i > 0 {
				id = ""
			}
			fmt.Fprintf(&b, "%-8s %-*s  %s\n", p.Status, width, id, about(p))
			if p.Action != "" && (i == len(x.Problems)-1 || x.Problems[i+1].Action != p.Action) {
				fmt.Fprintf(&b, "%s -> %s\n", indent, p.Action)
			}
		}
	}
	fmt.Fprintf(&b, "%s: %s\n", strings.ToUpper(string(r.Status)), summary(r))
	return b.String()
}

func about(p check.Problem) string {
	if p.Subject == "" {
		return p.Reason
	}
	return p.Subject + ": " + p.Reason
}

// checkLine returns all problems on one line, the worst first.
func checkLine(r worker.Report) string {
	var parts []string
	for _, x := range failed(r) {
		parts = append(parts, fmt.Sprintf("%s %s: %s", x.Status, x.ID, x.Reason))
	}
	if len(parts) == 0 {
		parts = []string{summary(r)}
	}
	return strings.ToUpper(string(r.Status)) + ": " + oneText(strings.Join(parts, "; "))
}

func oneText(s string) string { return strings.Join(strings.Fields(s), " ") }

// nagios returns the output of a Nagios plugin: a line of text, performance data after a |,
// and long text on the following lines.
func nagios(r worker.Report) string {
	var b strings.Builder
	clean := strings.NewReplacer("|", "/")
	n := tally(r)
	fmt.Fprintf(&b, "GPUMETER %s | critical=%d warning=%d unknown=%d ok=%d time=%.3fs\n", clean.Replace(checkLine(r)),
		n[check.Critical], n[check.Warning], n[check.Unknown], n[check.OK], r.Seconds)
	for _, x := range failed(r) {
		for _, p := range x.Problems {
			fmt.Fprintf(&b, "%s %s: %s\n", p.Status, x.ID, clean.Replace(oneText(about(p))))
		}
	}
	return b.String()
}

// maxNPD is the number of bytes of a plugin's output that node-problem-detector keeps by
// default.
const maxNPD = 80

func npdLine(r worker.Report) string {
	list := failed(r)
	text := "ok: " + summary(r)
	if len(list) > 0 {
		text = list[0].ID + ": " + list[0].Reason
	}
	return cutText(oneText(text), maxNPD)
}

// cutText truncates s to at most n bytes without splitting a character.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const more = "..."
	n -= len(more)
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}

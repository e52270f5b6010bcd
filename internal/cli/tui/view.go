package tui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
)

// View implements tea.Model.
func (m Model) View() tea.View {
	v := tea.NewView(m.Frame())
	v.AltScreen = true
	v.WindowTitle = "gpumeter top"
	return v
}

// Frame returns the content of the screen, which fills its height and is never wider.
func (m Model) Frame() string {
	lines := m.top()
	body := m.body()
	for i := range m.room() {
		line := ""
		if i < len(body) {
			line = body[i]
		}
		lines = append(lines, line)
	}
	lines = append(lines, m.bottom())
	lines = lines[:min(len(lines), max(1, m.height))]
	for i, l := range lines {
		lines[i] = lipgloss.NewStyle().MaxWidth(max(1, m.width)).Render(l)
	}
	return strings.Join(lines, "\n")
}

// headLines is the number of lines above the scrolled part.
const headLines = 2

// room returns the number of lines between the top and the bottom.
func (m Model) room() int { return max(0, m.height-headLines-1) }

// top returns the title line and the line of totals.
func (m Model) top() []string {
	s := &m.shown
	t := s.totals()
	words := []string{m.style.bold("gpumeter top"), clean(s.From)}
	if !s.Time.IsZero() {
		words = append(words, s.Time.Format(time.TimeOnly))
	}
	if s.Simulated {
		words = append(words, m.style.paint("SIMULATED", yellow))
	}
	if m.paused {
		words = append(words, m.style.paint("PAUSED", yellow))
	}
	if m.problem != "" {
		words = append(words, m.style.paint("cannot read: "+clean(m.problem), red))
	}
	sum := []string{counted(t.devices, "GPU")}
	if t.silent > 0 {
		sum[0] = m.style.paint(fmt.Sprintf("%d of %s report", t.devices-t.silent, sum[0]), yellow)
	}
	if t.hosts > 1 {
		sum[0] += fmt.Sprintf(" on %d nodes", t.hosts)
	}
	sum = append(sum, fmt.Sprintf("%d held", t.held), m.style.level(fmt.Sprintf("%d idle", t.idle), float64(min(t.idle, 1)), t.idle > 0))
	if t.down > 0 {
		sum = append(sum, m.style.paint(fmt.Sprintf("%d down", t.down), red))
	}
	if watts, ok := t.watts.Get(); ok {
		sum = append(sum, power(watts))
	}
	if s.Currency != "" {
		sum = append(sum, fmt.Sprintf("%.2f %s/h, %.2f idle", t.cost, s.Currency, t.lost))
		if t.silent > 0 {
			sum = append(sum, fmt.Sprintf("%.2f silent", t.unseen))
		}
	}
	if s.Queue != "" {
		sum = append(sum, clean(s.Queue))
	}
	return []string{strings.Join(words, "  "), strings.Join(sum, ", ")}
}

// body returns the part of the screen between top and bottom.
func (m Model) body() []string {
	switch {
	case m.help:
		return helpLines
	case !m.ready && m.problem == "":
		return []string{"", "  Reading ..."}
	case !m.ready:
		return []string{"", "  No data yet."}
	case m.detailed || m.findings:
		page := m.page()
		return page[min(m.scroll, len(page)):]
	case len(m.shown.Devices) == 0:
		return append([]string{""}, indented(wrap(m.shown.Empty, m.width-4))...)
	case m.owners:
		return m.workloadTable()
	}
	return m.deviceTable()
}

func (m Model) deviceTable() []string {
	list := m.visible()
	cols := fit(m.width, &m.shown, m.shown.totals().hosts)
	lines := []string{header(m.style, cols, m.by, m.reversed)}
	if len(list) == 0 {
		return append(lines, "", "  Nothing matches "+m.filter+".")
	}
	below := m.findingLines(m.room())
	space := max(1, m.room()-1-len(below))
	_, at := m.current(list)
	first := window(at, len(list), space)
	for i := first; i < min(len(list), first+space); i++ {
		lines = append(lines, row(m.style, cols, list[i], i == at))
	}
	for len(lines) < m.room()-len(below) {
		lines = append(lines, "")
	}
	return append(lines, below...)
}

// window returns the first of n rows to show in space lines, so that row at is visible.
func window(at, n, space int) int {
	if n <= space || at < space/2 {
		return 0
	}
	return min(at-space/2, n-space)
}

// findingLines returns the worst findings, shown below the table in at most a third of room.
func (m Model) findingLines(room int) []string {
	var lines []string
	bad := slices.DeleteFunc(slices.Clone(m.shown.Findings), func(f Finding) bool { return f.Severity < Warning })
	most := min(len(bad), max(1, room/3-1), 8)
	if room < 8 || len(bad) == 0 {
		return nil
	}
	lines = append(lines, m.style.bold(counted(len(bad), "finding"))+m.style.dim("  f shows all"))
	for _, f := range bad[:most] {
		lines = append(lines, "  "+m.style.severity(left(f.Severity.String(), 9), f.Severity)+clean(f.of(m.shown.totals().hosts)+": "+f.Reason))
	}
	return lines
}

func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// of returns the subject of a finding, with the host if there are several.
func (f Finding) of(hosts int) string {
	if hosts > 1 {
		return f.Host + " " + f.Of
	}
	return f.Of
}

// workloadColumn is a column of the workload table. Narrow screens have fewer.
type workloadColumn struct {
	name  string
	width int
	wide  bool // only on wide screens
	text  func(h workloadRow) string
}

func (m Model) workloadColumns() []workloadColumn {
	list := []workloadColumn{
		{"GPUS", 5, false, func(h workloadRow) string { return fmt.Sprintf("%.3g", h.devices) }},
		{"ACTIVE", 6, true, func(h workloadRow) string {
			if h.known == 0 {
				return none
			}
			return fmt.Sprint(h.active)
		}},
		{"UTIL", 5, false, func(h workloadRow) string {
			if h.known == 0 {
				return none
			}
			return fmt.Sprintf("%.0f%%", 100*h.busy/h.known)
		}},
		{"GIB", 6, false, func(h workloadRow) string {
			if b, ok := h.memory.Get(); ok {
				return gibibytes(b)
			}
			return none
		}},
		{"WATTS", 6, true, func(h workloadRow) string {
			if w, ok := h.watts.Get(); ok {
				return fmt.Sprintf("%.0f", w)
			}
			return none
		}},
		{costColumn, 8, false, func(h workloadRow) string {
			if !h.priced {
				return none
			}
			return fmt.Sprintf("%.2f", h.cost)
		}},
	}
	return slices.DeleteFunc(list, func(c workloadColumn) bool {
		return c.wide && m.width < 100 || c.name == costColumn && m.shown.Currency == ""
	})
}

func (m Model) workloadTable() []string {
	const team, state = 11, 9
	cols := m.workloadColumns()
	width := m.width - 2 - 1 - team - 2 - state
	for _, c := range cols {
		width -= 1 + c.width
	}
	width = max(10, min(44, width))
	line := func(name, group string, cell func(workloadColumn) string, last string) string {
		text := left(name, width) + " " + left(group, team)
		for _, c := range cols {
			text += " " + right(cell(c), c.width)
		}
		return text + "  " + last
	}
	lines := []string{m.style.bold("  " + line("WORKLOAD", "TEAM", func(c workloadColumn) string { return c.name }, "STATE"))}
	list := m.holdings()
	if len(list) == 0 {
		return append(lines, "", "  No workloads, or none matches the filter.")
	}
	space := max(1, m.room()-1)
	at := min(m.cursor, len(list)-1)
	first := window(at, len(list), space)
	for i := first; i < min(len(list), first+space); i++ {
		h := list[i]
		text := line(clean(h.Label), clean(h.Team), func(c workloadColumn) string { return c.text(h) }, h.state())
		if i == at {
			lines = append(lines, m.style.reverse("> "+text))
		} else {
			lines = append(lines, "  "+text)
		}
	}
	return lines
}

// state returns the state of a workload in one or two words.
func (h workloadRow) state() string {
	switch {
	case h.uninvited:
		return "not given"
	case h.known > 0 && h.busy == 0:
		return "idle"
	}
	return h.severity.String()
}

// bottom returns the key hints, or the filter while it is being edited.
func (m Model) bottom() string {
	if m.typing {
		return "/" + clean(m.filter) + "_"
	}
	keys := "enter details  tab owners  / filter  s sort  f findings  p pause  ? help  q quit"
	switch {
	case m.help:
		keys = "any key goes back"
	case m.detailed || m.findings:
		keys = "esc back  up/down scroll  p pause  q quit"
	case m.owners:
		keys = "tab devices  / filter  s sort  p pause  ? help  q quit"
	}
	if m.filter != "" {
		keys = "filter: " + clean(m.filter) + " (esc clears)  " + keys
	}
	return m.style.dim(keys)
}

var helpLines = []string{
	"",
	"  up, down, j, k, pgup, pgdown, home, end   select a row",
	"  enter     details of a device         esc   back, or clear the filter",
	"  tab       workloads and the devices they hold",
	"  f         all findings with recommended actions",
	"  /         filter: words that a row must contain, !word to exclude:",
	"            host, model, owner, team, state, idle, free",
	"  s, S      sort by the next or previous column; r reverses the order",
	"  u m w t c o e n d   sort by utilization, memory, watts, temperature, cost,",
	"                      owner, state, node, or device order",
	"  p, space  pause: freeze the screen",
	"  q         quit",
	"",
	"  - is a value that the driver does not report. SHARE is the allocated part of a",
	"  device; (not given) marks a workload without an allocation.",
}

func indented(lines []string) []string {
	for i := range lines {
		lines[i] = "  " + lines[i]
	}
	return lines
}

// Text returns the whole snapshot as plain text of the given width, for a pipe or a log.
func (m Model) Text(s Snapshot, width int) string {
	m = m.take(s).Resized(width, headLines+2+len(s.Devices))
	lines := m.top()
	if len(s.Devices) == 0 {
		lines = append(lines, wrap(s.Empty, width)...)
	} else {
		cols := fit(width, &m.shown, m.shown.totals().hosts)
		lines = append(lines, header(m.style, cols, m.by, m.reversed))
		for _, d := range m.visible() {
			lines = append(lines, row(m.style, cols, d, false))
		}
	}
	if len(s.Findings) > 0 {
		lines = append(lines, m.allFindings(s.Findings)...)
	}
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}

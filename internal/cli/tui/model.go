package tui

import (
	"cmp"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
)

// Model is the state of the screen. Update and View are pure functions: snapshots arrive as
// messages, like keys.
type Model struct {
	style         style
	width, height int

	shown    Snapshot
	ready    bool // a snapshot has been shown
	waiting  Snapshot
	problem  string
	paused   bool
	owners   bool // show the workload table instead of the device table
	help     bool
	detailed bool
	findings bool // show the page of all findings

	by       string // sort column
	reversed bool
	filter   string
	typing   bool

	selected string // key of a device
	cursor   int    // row in the workload table
	scroll   int    // first line shown of a text page
}

// Options describes the capabilities of the terminal.
type Options struct {
	Plain bool // no escape sequences
	ASCII bool // no characters beyond ASCII
	// ShortModel returns the short name of a model; nil leaves names as they are.
	ShortModel func(model string) string
}

// New returns a Model without a snapshot.
func New(o Options) Model {
	return Model{style: style{plain: o.Plain, ascii: o.ASCII, short: o.ShortModel}, width: 80, height: 24}
}

// Resized returns m for another screen size.
func (m Model) Resized(width, height int) Model {
	m.width, m.height = width, height
	return m
}

// Init implements tea.Model.
func (Model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case Snapshot:
		return m.take(msg), nil
	case tea.WindowSizeMsg:
		return m.Resized(msg.Width, msg.Height), nil
	case tea.KeyPressMsg:
		return m.press(msg)
	}
	return m, nil
}

// take shows a snapshot, or keeps it until the pause ends.
func (m Model) take(s Snapshot) Model {
	m.problem = s.Problem
	switch {
	case s.Problem != "":
	case m.paused:
		m.waiting = s
	default:
		m.shown, m.ready = s, true
	}
	return m
}

// visible returns the devices that match the filter, sorted. Without a sort column,
// partitions follow their device.
func (m Model) visible() []*Device {
	var list []*Device
	for i := range m.shown.Devices {
		if d := &m.shown.Devices[i]; matches(d, m.filter) {
			list = append(list, d)
		}
	}
	at := slices.IndexFunc(columns(), func(c column) bool { return c.name == m.by })
	if at < 0 || columns()[at].order == nil {
		if m.reversed {
			slices.Reverse(list)
		}
		return list
	}
	order := columns()[at].order
	slices.SortStableFunc(list, func(a, b *Device) int {
		if m.reversed {
			return order(b, a)
		}
		return order(a, b)
	})
	return list
}

// current returns the selected device, or the first one if the selected device is gone, and
// its index; nil if list is empty.
func (m Model) current(list []*Device) (*Device, int) {
	for i, d := range list {
		if d.key() == m.selected {
			return d, i
		}
	}
	if len(list) == 0 {
		return nil, 0
	}
	return list[0], 0
}

// press handles a key.
func (m Model) press(key tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	name := key.String()
	if name == "ctrl+c" {
		return m, tea.Quit
	}
	if m.typing {
		return m.typed(key), nil
	}
	if m.help {
		m.help = false
		if name == "q" {
			return m, tea.Quit
		}
		return m, nil
	}
	switch name {
	case "q":
		return m, tea.Quit
	case "?", "h":
		m.help = true
	case "/":
		m.typing = true
	case "p", "space":
		m = m.pause()
	case "enter":
		m.detailed, m.scroll = !m.owners && !m.detailed, 0
	case "f":
		m.findings, m.detailed, m.scroll = !m.findings, false, 0
	case "tab":
		m.owners, m.detailed, m.findings, m.cursor = !m.owners, false, false, 0
	case "esc", "backspace", "left":
		m = m.back(name == "esc")
	case "s":
		m = m.sort(1)
	case "S":
		m = m.sort(-1)
	case "r":
		m.reversed = !m.reversed
	default:
		if by, ok := sortKeys[name]; ok {
			if m.by == by {
				m.reversed = !m.reversed
			} else {
				m.by, m.reversed = by, false
			}
			return m, nil
		}
		m = m.move(name)
	}
	return m, nil
}

// sortKeys maps keys to sort columns.
var sortKeys = map[string]string{
	"u": "UTIL", "m": "MEMORY GIB", "w": "WATTS", "t": "TEMP", "c": costColumn, "o": ownerColumn, "e": "STATE", "n": "HOST", "d": "",
}

// sort moves to the next or previous sortable column.
func (m Model) sort(step int) Model {
	names := []string{""}
	for _, c := range fit(m.width, &m.shown, m.shown.totals().hosts) {
		if c.order != nil {
			names = append(names, c.name)
		}
	}
	at := max(0, slices.Index(names, m.by))
	m.by, m.reversed = names[(at+step+len(names))%len(names)], false
	return m
}

func (m Model) pause() Model {
	m.paused = !m.paused
	if !m.paused && !m.waiting.Time.IsZero() {
		m.shown, m.waiting, m.ready = m.waiting, Snapshot{}, true
	}
	return m
}

// back closes the open page. If none is open, Esc clears the filter.
func (m Model) back(esc bool) Model {
	switch {
	case m.detailed || m.findings:
		m.detailed, m.findings, m.scroll = false, false, 0
	case esc:
		m.filter = ""
	}
	return m
}

// maxFilter is the maximum length of the filter in bytes: users paste text.
const maxFilter = 200

// typed edits the filter.
func (m Model) typed(key tea.KeyPressMsg) Model {
	switch key.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	case "ctrl+u":
		m.filter = ""
	default:
		if len(m.filter)+len(key.Text) <= maxFilter {
			m.filter += clean(key.Text)
		}
	}
	return m
}

// move selects another row, or scrolls a text page.
func (m Model) move(key string) Model {
	step, ok := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdown": 10, "ctrl+b": -10, "ctrl+f": 10,
		"home": -1 << 20, "g": -1 << 20, "end": 1 << 20, "G": 1 << 20,
	}[key]
	if !ok {
		return m
	}
	switch {
	case m.detailed || m.findings:
		m.scroll = max(0, m.scroll+step) // clamped below
		m.scroll = min(m.scroll, max(0, len(m.page())-m.room()))
	case m.owners:
		m.cursor = max(0, min(m.cursor+step, len(m.holdings())-1))
	default:
		list := m.visible()
		if len(list) == 0 {
			return m
		}
		_, at := m.current(list)
		m.selected = list[max(0, min(at+step, len(list)-1))].key()
	}
	return m
}

// holdings returns the workloads that match the filter, sorted.
func (m Model) holdings() []workloadRow {
	list := m.shown.workloads()
	list = slices.DeleteFunc(list, func(h workloadRow) bool {
		d := Device{Owners: []Owner{h.Owner}, Host: strings.Join(h.hosts, " "), State: h.severity.String(), Up: true}
		return !matches(&d, m.filter)
	})
	by := map[string]func(a, b workloadRow) int{
		"UTIL":       func(a, b workloadRow) int { return cmp.Compare(b.busy, a.busy) },
		"MEMORY GIB": func(a, b workloadRow) int { return down(a.memory, b.memory) },
		"WATTS":      func(a, b workloadRow) int { return down(a.watts, b.watts) },
		costColumn:   func(a, b workloadRow) int { return cmp.Compare(b.cost, a.cost) },
		ownerColumn:  func(a, b workloadRow) int { return cmp.Compare(a.Label, b.Label) },
		"STATE":      func(a, b workloadRow) int { return cmp.Compare(b.severity, a.severity) },
	}[m.by]
	if by != nil {
		slices.SortStableFunc(list, by)
	}
	if m.reversed {
		slices.Reverse(list)
	}
	return list
}

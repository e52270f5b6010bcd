package tui

import (
	"fmt"
	"time"
)

// page returns the lines of the open page: a device, or all findings.
func (m Model) page() []string {
	if m.findings {
		return m.allFindings(m.shown.Findings)
	}
	d, _ := m.current(m.visible())
	if d == nil {
		return []string{"", "  The device is gone."}
	}
	return m.device(d)
}

// device returns the details of a device.
func (m Model) device(d *Device) []string {
	lines := []string{"", "  " + m.style.bold(clean(fmt.Sprintf("%s %d on %s", d.Model, d.Index, d.Host)))}
	add := func(name, text string) {
		if text != "" && text != none {
			lines = append(lines, "  "+left(name, 13)+clean(text))
		}
	}
	add("uuid", d.UUID)
	add("partition", d.Profile)
	add("state", d.State)
	if d.silent() {
		add("last sample", d.Since.Local().Format(time.DateTime))
	}
	if d.Simulated {
		add("simulated", "none of these numbers are real")
	}
	wide := min(40, m.width-30)
	measure := func(name, text, bar string) {
		if text != none {
			lines = append(lines, "  "+left(name, 13)+left(text, 14)+bar)
		}
	}
	measure("utilization", percent(d.Utilization), m.style.bar(d.Utilization, wide))
	measure("sm active", percent(d.SM), m.style.bar(d.SM, wide))
	measure("memory GiB", bytesOf(d.Memory, d.MemoryTotal), m.style.bar(ratio(d), wide))
	measure("watts", watts(d.Power, d.PowerLimit), m.style.bar(d.Power.Ratio(d.PowerLimit), wide))
	add("temperature", celsius(d.Celsius))
	if cost := money(d.Cost); cost != none {
		add("cost", cost+" "+m.shown.Currency+"/h")
	}
	lines = append(lines, "", "  "+m.style.bold("Owners"))
	if len(d.Owners) == 0 {
		lines = append(lines, "  none")
	}
	for _, o := range d.Owners {
		lines = append(lines, "  "+clean(o.text()))
	}
	if len(d.More) > 0 {
		lines = append(lines, "")
		for _, l := range d.More {
			lines = append(lines, "  "+clean(l))
		}
	}
	var of []Finding
	for _, f := range m.shown.Findings {
		if f.Host == d.Host && f.UUID == d.UUID {
			of = append(of, f)
		}
	}
	if len(of) > 0 {
		lines = append(lines, m.allFindings(of)...)
	}
	return lines
}

// text describes an owner with its share and usage.
func (o Owner) text() string {
	text := o.Kind
	if o.Name != "" {
		text += " " + o.Label
	}
	if o.Team != "" {
		text += ", team " + o.Team
	}
	if o.Uninvited {
		text += ", no allocation"
	} else {
		text += fmt.Sprintf(", share %.0f%%", 100*o.Share)
	}
	if p := percent(o.Utilization); p != none {
		text += ", uses " + p
	}
	if x, ok := o.Memory.Get(); ok {
		text += ", " + gibibytes(x) + " GiB"
	}
	if x, ok := o.Power.Get(); ok {
		text += fmt.Sprintf(", %.0f W", x)
	}
	return text
}

// allFindings returns the findings with their reasons and actions.
func (m Model) allFindings(list []Finding) []string {
	lines := []string{"", "  " + m.style.bold("Findings")}
	if len(list) == 0 {
		return append(lines, "  Nothing is wrong.")
	}
	for _, f := range list {
		head := f.Severity.String() + "  " + f.of(m.shown.totals().hosts)
		if !f.Since.IsZero() {
			head += "  since " + f.Since.Local().Format(time.DateTime)
		}
		lines = append(lines, "  "+m.style.severity(clean(head), f.Severity))
		for _, text := range []string{f.Reason, f.Action} {
			for _, l := range wrap(clean(text), m.width-6) {
				lines = append(lines, "    "+l)
			}
		}
	}
	return lines
}

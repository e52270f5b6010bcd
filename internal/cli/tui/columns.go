package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// column is a column of the device table.
type column struct {
	name  string
	width int
	wide  int // width if there is room
	// need is the priority of the column: the lowest are dropped first on a narrow screen.
	need  int
	right bool
	text  func(s style, d *Device, width int) string // without color
	paint func(s style, text string, d *Device) string
	// order compares two devices, the most interesting first; nil: not sortable.
	order func(a, b *Device) int
}

func ratio(d *Device) device.Value { return d.Memory.Ratio(d.MemoryTotal) }

func down(a, b device.Value) int {
	x, ok := a.Get()
	y, too := b.Get()
	switch {
	case ok && too:
		return cmp.Compare(y, x)
	case ok:
		return -1
	case too:
		return 1
	}
	return 0
}

// columns returns all columns in order. The owner column takes the remaining width.
func columns() []column {
	value := func(of func(*Device) string) func(style, *Device, int) string {
		return func(_ style, d *Device, _ int) string { return of(d) }
	}
	return []column{
		{
			name: "HOST", width: 9, wide: 14, need: 8, text: value(func(d *Device) string { return d.Host }),
			order: func(a, b *Device) int { return cmp.Compare(a.Host, b.Host) },
		},
		{name: "GPU", width: 3, need: 10, right: true, text: value(gpuText)},
		{
			name: "MODEL", width: 10, wide: 22, need: 5, text: modelText,
			order: func(a, b *Device) int { return cmp.Compare(a.Model, b.Model) },
		},
		{
			name: "UTIL", width: 4, need: 10, right: true, text: value(func(d *Device) string { return percent(d.Utilization.Or(d.SM)) }),
			paint: func(s style, text string, d *Device) string {
				x, ok := d.Utilization.Or(d.SM).Get()
				return s.level(text, min(x, 0.9), ok)
			},
			order: func(a, b *Device) int { return down(a.Utilization.Or(a.SM), b.Utilization.Or(b.SM)) },
		},
		{name: "SM", width: 4, need: 1, right: true, text: value(func(d *Device) string { return percent(d.SM) })},
		{
			name: "MEMORY GIB", width: 11, wide: 19, need: 8, text: memoryText,
			paint: func(s style, text string, d *Device) string {
				x, ok := ratio(d).Get()
				return s.level(text, x, ok)
			},
			order: func(a, b *Device) int { return down(a.Memory, b.Memory) },
		},
		{
			name: "WATTS", width: 8, need: 6, right: true, text: value(func(d *Device) string { return watts(d.Power, d.PowerLimit) }),
			order: func(a, b *Device) int { return down(a.Power, b.Power) },
		},
		{
			name: "TEMP", width: 4, need: 4, right: true, text: value(func(d *Device) string { return celsius(d.Celsius) }),
			order: func(a, b *Device) int { return down(a.Celsius, b.Celsius) },
		},
		{
			name: costColumn, width: 6, need: 7, right: true, text: value(func(d *Device) string { return money(d.Cost) }),
			order: func(a, b *Device) int { return down(a.Cost, b.Cost) },
		},
		{
			name: ownerColumn, width: 19, need: 10,
			text: value(func(d *Device) string { return cmp.Or(d.owners(), none) }),
			paint: func(s style, text string, d *Device) string {
				if slices.ContainsFunc(d.Owners, func(o Owner) bool { return o.Uninvited }) {
					return s.paint(text, red)
				}
				return text
			},
			order: func(a, b *Device) int { return cmp.Compare(a.owners(), b.owners()) },
		},
		{name: "SHARE", width: 5, need: 2, right: true, text: value(shareText)},
		{
			name: "STATE", width: 11, need: 9, text: value(func(d *Device) string { return d.State }),
			paint: func(s style, text string, d *Device) string { return s.severity(text, d.Severity) },
			order: func(a, b *Device) int { return cmp.Compare(b.Severity, a.Severity) },
		},
	}
}

const (
	costColumn  = "COST/H"
	ownerColumn = "OWNER"
)

func gpuText(d *Device) string {
	if d.Profile != "" {
		return ""
	}
	return strconv.Itoa(d.Index)
}

func modelText(s style, d *Device, _ int) string {
	if d.Profile != "" {
		return " " + d.Profile
	}
	return s.model(d.Model)
}

// shareText returns the share of a device that all its owners hold together.
func shareText(d *Device) string {
	sum := 0.0
	for _, o := range d.Owners {
		sum += o.Share
	}
	if len(d.Owners) == 0 {
		return none
	}
	return fmt.Sprintf("%.0f%%", 100*sum)
}

// memoryText returns a bar and the numbers. The bar takes the width that the numbers leave.
func memoryText(s style, d *Device, width int) string {
	text := bytesOf(d.Memory, d.MemoryTotal)
	const digits = 7
	n := width - digits - 1
	return s.bar(ratio(d), n) + " " + right(text, digits)
}

// fit returns the columns that fit into width cells, with their widths set. HOST is omitted
// for a single host, COST/H without prices.
func fit(width int, s *Snapshot, hosts int) []column {
	list := columns()
	list = slices.DeleteFunc(list, func(c column) bool {
		return c.name == "HOST" && hosts < 2 || c.name == costColumn && s.Currency == ""
	})
	const mark = 2 // the marker of the selected row
	sum := func() int {
		n := mark
		for _, c := range list {
			n += c.width + 1
		}
		return n - 1
	}
	for sum() > width && len(list) > 1 {
		least := 0
		for i, c := range list {
			if c.need <= list[least].need {
				least = i
			}
		}
		list = slices.Delete(list, least, least+1)
	}
	for i := range list {
		if c := &list[i]; c.wide > c.width && sum()+c.wide-c.width <= width-16 { // reserve 16 for the owner
			c.width = c.wide
		}
	}
	for i := range list {
		if list[i].name == ownerColumn {
			list[i].width += max(0, min(60, width-sum()))
		}
	}
	return list
}

// header returns the column names, with the sort column marked.
func header(s style, list []column, by string, reversed bool) string {
	cells := make([]string, 0, len(list))
	for _, c := range list {
		name := c.name
		if name == by {
			name += map[bool]string{false: "<", true: ">"}[reversed]
		}
		if c.right {
			cells = append(cells, right(name, c.width))
		} else {
			cells = append(cells, left(name, c.width))
		}
	}
	return s.bold("  " + strings.Join(cells, " "))
}

// row returns the line of a device.
func row(s style, list []column, d *Device, selected bool) string {
	cells := make([]string, 0, len(list))
	for _, c := range list {
		text := clean(c.text(s, d, c.width))
		if c.right {
			text = right(text, c.width)
		} else {
			text = left(text, c.width)
		}
		switch {
		case selected:
		case d.silent():
			text = s.dim(text)
		case c.paint != nil:
			text = c.paint(s, text, d)
		}
		cells = append(cells, text)
	}
	line := strings.Join(cells, " ")
	if selected {
		return s.reverse("> " + line)
	}
	return "  " + line
}

// matches reports whether the text of d contains each word of filter, and no word after a !.
func matches(d *Device, filter string) bool {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s %s %s %s %s", d.Host, d.Vendor, d.Model, d.Profile, d.UUID, d.State, d.Severity)
	for _, o := range d.Owners {
		fmt.Fprintf(&text, " %s %s %s", o.Kind, o.Label, o.Team)
		if o.Uninvited {
			text.WriteString(" not given")
		}
	}
	if d.idle() {
		text.WriteString(" idle")
	}
	if !d.Held && d.Up {
		text.WriteString(" free")
	}
	all := strings.ToLower(text.String())
	for word := range strings.FieldsSeq(strings.ToLower(filter)) {
		not := strings.HasPrefix(word, "!")
		if word = strings.TrimPrefix(word, "!"); word != "" && strings.Contains(all, word) == not {
			return false
		}
	}
	return true
}

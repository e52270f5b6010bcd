package tui

import (
	"charm.land/lipgloss/v2"
)

// style is how text is marked. Colours only repeat what words say.
type style struct {
	plain bool // no escape sequences at all
	ascii bool // no characters beyond ASCII
	short func(model string) string
}

// model returns the short name of a model.
func (s style) model(name string) string {
	if s.short == nil {
		return name
	}
	return s.short(name)
}

// The colours are those of 256; a terminal with fewer gets the nearest it has.
const (
	red    = "203"
	yellow = "220"
	green  = "78"
	blue   = "75"
	grey   = "245"
)

func (s style) paint(text, colour string) string {
	if s.plain || text == "" {
		return text
	}
	return lipgloss.NewStyle().Foreground(lipgloss.Color(colour)).Render(text)
}

func (s style) bold(text string) string {
	if s.plain || text == "" {
		return text
	}
	return lipgloss.NewStyle().Bold(true).Render(text)
}

func (s style) reverse(text string) string {
	if s.plain || text == "" {
		return text
	}
	return lipgloss.NewStyle().Reverse(true).Render(text)
}

func (s style) dim(text string) string { return s.paint(text, grey) }

// severity paints text by how bad it is.
func (s style) severity(text string, how Severity) string {
	switch how {
	case Critical:
		return s.paint(text, red)
	case Warning:
		return s.paint(text, yellow)
	case Info:
		return s.paint(text, blue)
	}
	return text
}

// level paints text by a ratio: full is noteworthy.
func (s style) level(text string, ratio float64, ok bool) string {
	switch {
	case !ok:
		return text
	case ratio >= 0.97:
		return s.paint(text, yellow)
	case ratio >= 0.05:
		return s.paint(text, green)
	}
	return s.dim(text)
}

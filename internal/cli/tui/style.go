package tui

import (
	"charm.land/lipgloss/v2"
)

// style renders text for the terminal. Color never carries information alone.
type style struct {
	plain bool // no escape sequences at all
	ascii bool // no characters beyond ASCII
	short func(model string) string
}

// model returns the short name of a device model.
func (s style) model(name string) string {
	if s.short == nil {
		return name
	}
	return s.short(name)
}

// Colors of the 256-color palette. A terminal with fewer colors gets the nearest one.
const (
	red    = "203"
	yellow = "220"
	green  = "78"
	blue   = "75"
	gray   = "245"
)

func (s style) paint(text, color string) string {
	if s.plain || text == "" {
		return text
	}
	return lipgloss.NewStyle().Foreground(lipgloss.Color(color)).Render(text)
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

func (s style) dim(text string) string { return s.paint(text, gray) }

// severity paints text in the color of a severity.
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

// level paints text by a ratio: nearly full is highlighted.
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

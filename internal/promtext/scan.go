package promtext

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Sample is one value of a page.
type Sample struct {
	Name   string
	Labels []Label // in the order of the page
	Value  float64
}

// Get returns the value of a label, or "" if the sample does not have it.
func (s *Sample) Get(name string) string { return get(s.Labels, name) }

// Text is a page as it was written.
type Text struct {
	Samples []Sample
	// Types has what # TYPE lines say, by name of the family. Of several lines about one family the first
	// counts.
	Types map[string]string
	// Bad counts lines that could not be read, and Err says why the first could not.
	Bad int
	Err error
	// Whole is set if the page ends with a line break or an OpenMetrics end marker. Most programs write
	// one, so a page without it may have been cut off.
	Whole bool
}

// Scan reads a page as other programs write it, in the Prometheus text format or as OpenMetrics: each
// line counts for itself, so a line that cannot be read costs only itself. Time stamps and exemplars
// are left out. The memory that it takes is bounded by a multiple of the size of the page.
func Scan(page []byte) *Text {
	s := scanner{rest: string(page), Text: Text{Types: map[string]string{}}}
	// The shortest sample has four bytes, the shortest label five.
	s.Samples = make([]Sample, 0, min(strings.Count(s.rest, "\n")+1, len(page)/4))
	s.labels = make([]Label, 0, min(strings.Count(s.rest, `="`), len(page)/5))
	for s.rest != "" && !s.Whole {
		var found bool
		s.line, s.rest, found = strings.Cut(s.rest, "\n")
		s.number++
		s.Whole = found && s.rest == ""
		if err := s.read(); err != nil {
			if s.Bad++; s.Err == nil {
				s.Err = fmt.Errorf("line %d %w", s.number, err)
			}
		}
	}
	return &s.Text
}

type scanner struct {
	Text
	rest   string // of the page
	line   string // what is left of it
	number int
	labels []Label // of all samples, so that few slices are allocated
}

// read reads a line.
func (s *scanner) read() error {
	s.line = strings.TrimRight(s.line, " \t\r")
	s.blanks()
	switch {
	case s.line == "":
		return nil
	case s.line[0] == '#':
		s.comment()
		return nil
	}
	return s.sample()
}

// comment reads a line that begins with #.
func (s *scanner) comment() {
	if strings.HasPrefix(s.line, "# HELP ") { // half of the lines that begin with #
		return
	}
	words := strings.Fields(s.line)
	switch {
	case len(words) == 2 && words[1] == "EOF":
		s.Whole = true
	case len(words) >= 4 && words[1] == "TYPE":
		name := words[2]
		if text, ok := strings.CutPrefix(name, `"`); ok {
			name = strings.TrimSuffix(text, `"`)
		}
		if _, ok := s.Types[name]; !ok {
			s.Types[name] = strings.ToLower(words[3])
		}
	}
}

var (
	errName  = errors.New("has no metric name")
	errLabel = errors.New("has malformed labels")
	errValue = errors.New("has no number for a value")
)

// sample reads a line with a value.
func (s *scanner) sample() error {
	n := 0
	for n < len(s.line) && isName(s.line[n], n == 0) {
		n++
	}
	x := Sample{Name: s.line[:n]}
	s.line = s.line[n:]
	s.blanks()
	if s.take('{') {
		begin := len(s.labels)
		if err := s.readLabels(&x); err != nil {
			s.labels = s.labels[:begin]
			return err
		}
		x.Labels = s.labels[begin:len(s.labels):len(s.labels)]
	}
	if x.Name == "" {
		return errName
	}
	s.blanks()
	text, _, _ := strings.Cut(s.line, " ")
	text, _, _ = strings.Cut(text, "\t")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // a value beyond all bounds is infinite
		return errValue
	}
	x.Value = v
	s.Samples = append(s.Samples, x)
	return nil
}

// readLabels reads labels up to the closing brace. A name of the metric may be among them, in quotes.
func (s *scanner) readLabels(x *Sample) error {
	for {
		for s.blanks(); s.take(','); s.blanks() {
		}
		if s.take('}') {
			return nil
		}
		var name string
		if s.line != "" && s.line[0] == '"' {
			var err error
			if name, err = s.quoted(); err != nil {
				return err
			}
			if s.blanks(); x.Name == "" && (s.line == "" || s.line[0] != '=') {
				x.Name = name
				continue
			}
		} else {
			n := 0
			for n < len(s.line) && isName(s.line[n], n == 0) {
				n++
			}
			name, s.line = s.line[:n], s.line[n:]
		}
		if s.blanks(); name == "" || !s.take('=') {
			return errLabel
		}
		s.blanks()
		value, err := s.quoted()
		if err != nil {
			return err
		}
		s.labels = append(s.labels, Label{name, value})
	}
}

// quoted reads a text in quotes.
func (s *scanner) quoted() (string, error) {
	if !s.take('"') {
		return "", errLabel
	}
	n := strings.IndexAny(s.line, `"\`)
	if n < 0 {
		return "", errLabel
	}
	if s.line[n] == '"' { // most have no escapes
		text := s.line[:n]
		s.line = s.line[n+1:]
		return strings.ToValidUTF8(text, string(utf8.RuneError)), nil
	}
	var b strings.Builder
	for i := 0; i < len(s.line); i++ {
		switch c := s.line[i]; {
		case c == '"':
			s.line = s.line[i+1:]
			return strings.ToValidUTF8(b.String(), string(utf8.RuneError)), nil
		case c == '\\' && i+1 < len(s.line):
			i++
			switch s.line[i] {
			case 'n':
				b.WriteByte('\n')
			case '"', '\\':
				b.WriteByte(s.line[i])
			default: // not an escape
				b.WriteByte('\\')
				b.WriteByte(s.line[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", errLabel
}

// take removes the next byte if it is c.
func (s *scanner) take(c byte) bool {
	if s.line == "" || s.line[0] != c {
		return false
	}
	s.line = s.line[1:]
	return true
}

func (s *scanner) blanks() {
	if s.line != "" && s.line[0] <= ' ' { // seldom
		s.line = strings.TrimLeft(s.line, " \t")
	}
}

// isName reports whether a byte may be part of the name of a metric or a label. Dots and hyphens are in
// names that were never escaped.
func isName(c byte, first bool) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_', c == ':':
		return true
	case '0' <= c && c <= '9', c == '.', c == '-':
		return !first
	}
	return false
}

func get(labels []Label, name string) string {
	for i := range labels {
		if labels[i].Name == name {
			return labels[i].Value
		}
	}
	return ""
}

package devicetest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Source is one line of a vendor's sources.txt: where a field of its samples comes from, or
// why the field is absent.
type Source struct {
	Field  string
	Absent bool
	Text   string
}

// expected are the fields that users look for; "or" separates alternatives. A vendor that
// does not provide one must say why.
var expected = []string{
	"Utilization.Compute", "Memory.Used", "Memory.Total", "Temperatures.Value", "Powers.Instant or Powers.Average", "Energy", "Clocks.Frequency", "ECC.Count", "Processes.MemoryUsed",
	"Throttles",
}

// ReadSources parses a sources.txt:
//
//	# comment
//	Memory.Used: mem_info_vram_used
//	-Energy: the firmware has no counter
func ReadSources(path string) ([]Source, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []Source
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		field, text, ok := strings.Cut(line, ": ")
		field, absent := strings.CutPrefix(field, "-")
		if !ok || field == "" || text == "" {
			return nil, fmt.Errorf("cannot parse %s: %q is not \"field: text\"", path, line)
		}
		if slices.ContainsFunc(list, func(s Source) bool { return s.Field == field }) {
			return nil, fmt.Errorf("%s has %s twice", path, field)
		}
		list = append(list, Source{field, absent, text})
	}
	return list, nil
}

// CheckSources compares a vendor's sources.txt with the samples that its tests read. It
// returns one message for each value without a source, and for each source whose value no
// sample shows.
func CheckSources(path string, samples ...device.Sample) []string {
	list, err := ReadSources(path)
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	has := Fields(samples...)
	for _, field := range has {
		if !slices.ContainsFunc(list, func(s Source) bool { return s.Field == field && !s.Absent }) {
			wrong = append(wrong, field+" is read but has no source")
		}
	}
	for _, s := range list {
		if !s.Absent && !slices.Contains(has, s.Field) {
			wrong = append(wrong, s.Field+" has a source but no test reads it")
		}
	}
	for _, field := range expected {
		if !slices.ContainsFunc(list, func(s Source) bool { return slices.Contains(strings.Split(field, " or "), s.Field) }) {
			wrong = append(wrong, field+" is absent without a reason")
		}
	}
	return wrong
}

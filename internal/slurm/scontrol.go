package slurm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// freeText are the fields of a node whose text a person wrote and which may look like any
// other field. Lines that start with one are skipped.
var freeText = []string{"Comment=", "Extra=", "OS=", "Reason="}

// FreeText reports whether a person wrote what follows on a line of a node. Only
// administrators can, and ParseJobsText does not rely on it.
func FreeText(line string) bool {
	line = strings.TrimSpace(line)
	return slices.ContainsFunc(freeText, func(field string) bool { return strings.HasPrefix(line, field) })
}

// Records calls each with the lines of every record in the output of scontrol show nodes or
// partitions. A record begins with first. For jobs, see ParseJobsText.
func Records(r io.Reader, first string, each func(lines []string)) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 8<<20)
	var lines []string
	said := ""
	flush := func() {
		if len(lines) > 0 {
			each(lines)
		}
		lines = lines[:0]
	}
	seen := false
	for sc.Scan() {
		line := sc.Text()
		if said == "" {
			said = line
		}
		if strings.HasPrefix(line, first) {
			flush()
			seen = true
		}
		if seen && strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	flush()
	if err := sc.Err(); err != nil {
		return err
	}
	if said = strings.TrimSpace(said); !seen && said != "" && !strings.HasPrefix(said, "No ") { // as in "No partitions in the system"
		return errors.New("unexpected output of scontrol")
	}
	return nil
}

// Fields adds the Key=Value pairs of a line. The first occurrence of a key counts.
func Fields(fields map[string]string, line string) {
	for word := range strings.FieldsSeq(line) {
		if key, value, ok := strings.Cut(word, "="); ok {
			if _, twice := fields[key]; !twice {
				fields[key] = value
			}
		}
	}
}

// Count returns the number in 2, 1-2 (at least one) or 4K, otherwise 0.
func Count(s string) int64 {
	s, _, _ = strings.Cut(s, "-")
	n, err := ParseCount(s)
	if err != nil || n > 1<<53 || n == 0xfffffffe || n == 0xffffffff {
		return 0
	}
	return int64(n)
}

// clock parses 2026-11-15T02:17:02 in the local time zone: Slurm's tools write local time.
func clock(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.Local)
	if err != nil || t.Unix() <= 0 {
		return time.Time{}
	}
	return t
}

// ParseSpan parses [days-]hours:minutes:seconds, also with fewer parts or a fraction.
func ParseSpan(s string) (time.Duration, error) {
	switch s {
	case "", "INVALID", "Unknown", "Partition_Limit", "UNLIMITED":
		return 0, nil
	}
	days, clock, ok := strings.Cut(s, "-")
	if !ok {
		days, clock = "0", s
	}
	clock, _, _ = strings.Cut(clock, ".")
	d, err := strconv.ParseUint(days, 10, 16)
	total := time.Duration(0)
	parts := strings.Split(clock, ":")
	if len(parts) > 3 {
		return 0, fmt.Errorf("%.40q is no time span", s)
	}
	for _, part := range parts {
		n, bad := strconv.ParseUint(part, 10, 16)
		err = errors.Join(err, bad)
		total = total*60 + time.Duration(n)*time.Second
	}
	if err != nil {
		return 0, fmt.Errorf("%.40q is no time span", s)
	}
	return total + time.Duration(d)*24*time.Hour, nil
}

package growth

import (
	"errors"
	"regexp/syntax"
	"strings"
)

const (
	// maxRepeated bounds the size of the regular expressions of a request beyond their text.
	// The engine expands repetitions and matches in time proportional to the result: a{1000} is
	// 1,000 letters.
	maxRepeated = 10_000
	// maxClasses bounds Unicode classes, and classes that may ignore case: parsing one takes up
	// to milliseconds and many kilobytes.
	maxClasses = 100
)

// ErrRegexp is the error of regular expressions that are too large.
var ErrRegexp = errors.New("regular expressions repeat too much or have too many classes")

// Regexps checks the texts of a request that may be regular expressions, before they are
// compiled.
func Regexps(texts []string) error {
	classes, size, long := 0, 0, 0
	for _, t := range texts {
		classes += strings.Count(t, `\p`) + strings.Count(t, `\P`)
		if strings.Contains(t, "(?") {
			classes += strings.Count(t, "[")
		}
		if classes > maxClasses {
			return ErrRegexp
		}
		re, err := syntax.Parse(t, syntax.Perl|syntax.DotNL)
		if err != nil {
			continue // not a regular expression, or reported by the parser of the query
		}
		long += len(t)
		if size += expanded(re); size > 2*long+maxRepeated {
			return ErrRegexp
		}
	}
	return nil
}

// huge bounds the result of expanded.
const huge = 1 << 30

// expanded returns the approximate number of instructions of a regular expression.
func expanded(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n = min(huge, n+expanded(sub))
	}
	if re.Op == syntax.OpRepeat {
		n = min(huge, n*max(1, re.Min, re.Max))
	}
	return n
}

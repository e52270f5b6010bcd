package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxIndex bounds device numbers, well above any real node.
const MaxIndex = 1024

// ParseRanges parses a list of numbers as written by Slurm's bit_fmt: "0-3,7", optionally
// with a step as in "0-6:2".
func ParseRanges(s string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		span, by, stepped := strings.Cut(strings.TrimSpace(part), ":")
		low, high, ranged := strings.Cut(span, "-")
		from, err := ParseIndex(low)
		if err != nil {
			return nil, err
		}
		to, step := from, 1
		if ranged {
			if to, err = ParseIndex(high); err != nil {
				return nil, err
			}
		}
		if stepped {
			if step, err = ParseIndex(by); err != nil {
				return nil, err
			}
		}
		if to < from || step == 0 || len(out)+(to-from)/step+1 > MaxIndex {
			return nil, fmt.Errorf("%q is not a list of numbers", s)
		}
		for i := from; i <= to; i += step {
			out = append(out, i)
		}
	}
	return out, nil
}

// ParseIndex parses one device number.
func ParseIndex(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n >= MaxIndex {
		return 0, fmt.Errorf("%q is not a device number", s)
	}
	return int(n), nil
}

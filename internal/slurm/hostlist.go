package slurm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts bounds a host list; Slurm's own limit for one range is 65536.
const maxHosts = 1 << 17

// Hosts calls yield for each host of a Slurm host list, in list order, until yield returns
// false. "a[1-2,5]b[01-02]c,d" expands to a1b01c, a1b02c, a2b01c, ... and d. Leading zeros
// are kept.
func Hosts(list string, yield func(host string) bool) error {
	n := 0
	for one := range split(list) {
		one = strings.TrimSpace(one)
		if one == "" || one == "(null)" {
			continue
		}
		parts, err := brackets(one)
		if err != nil {
			return err
		}
		more, err := expand("", parts, func(host string) (bool, error) {
			if n++; n > maxHosts {
				return false, fmt.Errorf("host list %.100q is too long", list)
			}
			return yield(host), nil
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// HostIndex returns the position of host in the list, or -1 if the list does not have it.
func HostIndex(list, host string) int {
	at, found := 0, false
	err := Hosts(list, func(h string) bool {
		if found = h == host; !found {
			at++
		}
		return !found
	})
	if err != nil || !found {
		return -1
	}
	return at
}

// piece is literal text followed by a number from one of the spans. The last piece of a
// name has no spans.
type piece struct {
	text  string
	spans []span
}

type span struct{ low, high, width int }

// brackets parses one host name with any number of bracketed ranges.
func brackets(s string) ([]piece, error) {
	var out []piece
	for {
		before, rest, ok := strings.Cut(s, "[")
		if strings.Contains(before, "]") {
			return nil, fmt.Errorf("host list %.100q: closing bracket without an opening one", s)
		}
		if !ok {
			return append(out, piece{text: before}), nil
		}
		in, after, ok := strings.Cut(rest, "]")
		if !ok {
			return nil, fmt.Errorf("host list %.100q: opening bracket without a closing one", s)
		}
		p := piece{text: before}
		for part := range strings.SplitSeq(in, ",") {
			sp, err := parseSpan(strings.TrimSpace(part))
			if err != nil {
				return nil, fmt.Errorf("host list %.100q: %w", s, err)
			}
			p.spans = append(p.spans, sp)
		}
		out = append(out, p)
		if len(out) > 8 {
			return nil, fmt.Errorf("host list %.100q has too many brackets", s)
		}
		s = after
	}
}

func parseSpan(s string) (span, error) {
	low, high, ranged := strings.Cut(s, "-")
	if !ranged {
		high = low
	}
	from, err := strconv.ParseUint(low, 10, 31)
	if err != nil {
		return span{}, errors.New("range is not a number")
	}
	to, err := strconv.ParseUint(high, 10, 31)
	if err != nil || to < from || to-from > maxHosts || len(low) > 16 {
		return span{}, errors.New("range is reversed or too long")
	}
	return span{int(from), int(to), len(low)}, nil
}

func expand(prefix string, parts []piece, yield func(string) (bool, error)) (more bool, err error) {
	prefix += parts[0].text
	if parts[0].spans == nil {
		return yield(prefix)
	}
	for _, sp := range parts[0].spans {
		for i := sp.low; i <= sp.high; i++ {
			if more, err = expand(fmt.Sprintf("%s%0*d", prefix, sp.width, i), parts[1:], yield); err != nil || !more {
				return more, err
			}
		}
	}
	return true, nil
}

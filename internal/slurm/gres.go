package slurm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// GRES is one generic resource of a job on a node, or that a job asks for, or a node has.
type GRES struct {
	Name  string // gpu, shard, mps, nic, ...
	Type  string // h100, a100_1g.10gb, ...; may be empty
	Count uint64
	// Index are the devices, by their place in gres.conf, all types of a name together.
	// Empty where Slurm only counts.
	Index []int
	// Parts are how much of each device is held, of a resource that shares devices: one
	// for each device of the node.
	Parts []Part
}

// Part is what is held of a shared device.
type Part struct{ Held, Of uint64 }

const maxGRES = 256 // in one string

// ParseGRES parses what Slurm says of the generic resources of a job or a node, as in
// _foreach_job_build_details of its source, gres.conf(5) and sbatch(1):
//
//	gpu:h100:2(IDX:0-1),gpu:a100:1(IDX:4)
//	shard:2(0/4,2/4)                one pair for each device; newer than 22.05
//	shard:2(IDX:4)                  22.05
//	gpu:8(CNT:2), gpu(CNT:2)        devices without files
//	gpu:h100:8(S:0-1), gpu:8(null)  of a node, with its sockets
//	gres/gpu:a100=2, gres:gpu:2     as trackable and as requested resources
//	(null), N/A, none               nothing
//
// What can be read is returned beside the error for the rest.
func ParseGRES(s string) ([]GRES, error) {
	var out []GRES
	var errs []error
	for one := range split(s) {
		g, ok, err := parseOne(one)
		if err != nil {
			errs = append(errs, err)
		}
		if ok {
			out = append(out, g)
		}
		if len(out)+len(errs) >= maxGRES {
			errs = append(errs, errors.New("the GRES are too many"))
			break
		}
	}
	return out, errors.Join(errs...)
}

// split cuts at commas outside of parentheses and brackets.
func split(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		depth, start := 0, 0
		for i := range len(s) {
			switch s[i] {
			case '(', '[':
				depth++
			case ')', ']':
				depth = max(0, depth-1)
			case ',':
				if depth == 0 {
					if !yield(s[start:i]) {
						return
					}
					start = i + 1
				}
			}
		}
		yield(s[start:])
	}
}

func parseOne(s string) (g GRES, ok bool, err error) {
	s = strings.TrimSpace(s)
	switch s {
	case "", "(null)", "N/A", "none", "NONE":
		return GRES{}, false, nil
	}
	bad := func(why string) error { return fmt.Errorf("GRES %.100q: %s", s, why) }
	head, detail, _ := strings.Cut(s, "(")
	head, trackable := strings.CutPrefix(head, "gres/")
	head = strings.TrimPrefix(head, "gres:")
	counted := false
	if trackable || strings.Contains(head, "=") {
		var count string
		if head, count, counted = strings.Cut(head, "="); counted {
			if g.Count, err = ParseCount(count); err != nil {
				return GRES{}, false, bad(err.Error())
			}
		}
	}
	fields := strings.Split(head, ":")
	// no_consume is a flag of gres.conf that newer versions write between type and count.
	kept := fields[:0]
	for _, f := range fields {
		if f != "no_consume" {
			kept = append(kept, f)
		}
	}
	fields = kept
	if len(fields) == 0 || fields[0] == "" {
		return GRES{}, false, bad("no name")
	}
	g.Name = fields[0]
	fields = fields[1:]
	if len(fields) > 0 && !counted {
		if n, err := ParseCount(fields[len(fields)-1]); err == nil {
			g.Count, counted = n, true
			fields = fields[:len(fields)-1]
		}
	}
	switch len(fields) {
	case 0:
	case 1:
		g.Type = fields[0]
	default:
		return GRES{}, false, bad("too many colons")
	}
	if err := g.details(detail); err != nil {
		return GRES{}, false, bad(err.Error())
	}
	if !counted && g.Count == 0 {
		g.Count = max(1, uint64(len(g.Index))) // "gpu" means one
	}
	return g, true, nil
}

// details parses what comes in parentheses, each list in its own or several in one:
// IDX:0-1, CNT:2, S:0-1, 2/4,0/4, null.
func (g *GRES) details(s string) error {
	for group := range strings.SplitSeq(s, "(") {
		group, _, _ = strings.Cut(group, ")")
		group = strings.TrimSpace(group)
		kind, list, _ := strings.Cut(group, ":")
		switch {
		case group == "" || group == "null" || group == "N/A" || kind == "S":
		case kind == "IDX" || kind == "IDX_LIST":
			if list == "" || list == "N/A" { // nothing of it is in use
				continue
			}
			index, err := ParseRanges(list)
			if err != nil {
				return err
			}
			if g.Index = append(g.Index, index...); len(g.Index) > MaxIndex {
				return errors.New("the devices are too many")
			}
		case kind == "CNT":
			n, err := ParseCount(list)
			if err != nil {
				return err
			}
			g.Count = n
		case strings.Contains(group, "/"):
			for pair := range strings.SplitSeq(group, ",") {
				held, of, _ := strings.Cut(pair, "/")
				h, err := strconv.ParseUint(strings.TrimSpace(held), 10, 32)
				if err != nil {
					return errors.New("a part is no number")
				}
				o, err := strconv.ParseUint(strings.TrimSpace(of), 10, 32)
				if err != nil || len(g.Parts) >= MaxIndex {
					return errors.New("a part is no number")
				}
				g.Parts = append(g.Parts, Part{h, o})
			}
		default:
			return errors.New("unknown detail")
		}
	}
	return nil
}

// ParseCount parses 2, 4K and 1M; Slurm counts in powers of two.
func ParseCount(s string) (uint64, error) {
	unit := uint64(1)
	if s != "" {
		if i := strings.IndexByte("KMGTP", s[len(s)-1]&^0x20); i >= 0 {
			unit = 1 << (10 * (i + 1))
			s = s[:len(s)-1]
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > 1<<62/unit {
		return 0, errors.New("the count is no number")
	}
	return n * unit, nil
}

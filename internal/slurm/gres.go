package slurm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// GRES is one generic resource that a job holds on a node, that a job requests, or that a
// node provides.
type GRES struct {
	Name  string // gpu, shard, mps, nic, and so on
	Type  string // h100 or a100_1g.10gb, for example; may be empty
	Count uint64
	// Index lists the devices by their position in gres.conf, counted across all types of
	// one name. It is empty where Slurm reports only a count.
	Index []int
	// Parts says how much of each device is held, for a resource that shares devices such
	// as shard or mps: one entry per device of the node.
	Parts []Part
}

// Part is the amount held of a shared device, and the device's total. Held is 0 for a device
// that was allocated as a whole and has nothing left to share.
type Part struct{ Held, Of uint64 }

const maxGRES = 256 // per string

// ParseGRES parses the generic resources of a job or a node. The grammar follows
// _foreach_job_build_details in Slurm's source, gres.conf(5) and sbatch(1):
//
//	gpu:h100:2(IDX:0-1),gpu:a100:1(IDX:4)
//	shard:2(0/4,2/4)                one pair per device; newer than 22.05
//	shard:2(-/4,2/4)                26.05: a dash for a device that is allocated as a whole
//	shard:2(IDX:4)                  22.05
//	gpu:8(CNT:2), gpu(CNT:2)        devices without device files
//	gpu:h100:8(S:0-1), gpu:8(null)  resources of a node, with its sockets
//	gres/gpu:a100=2, gres:gpu:2     trackable and requested resources
//	(null), N/A, none               no resources
//
// ParseGRES returns every resource it could parse together with the error for the rest.
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
			errs = append(errs, errors.New("too many GRES"))
			break
		}
	}
	return out, errors.Join(errs...)
}

// split yields the parts of s between commas that are outside parentheses and brackets.
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
	// no_consume is a flag from gres.conf that newer versions write between type and count.
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
		g.Count = max(1, uint64(len(g.Index))) // a bare "gpu" means one device
	}
	return g, true, nil
}

// details parses the parenthesized lists, whether each has its own parentheses or several
// share one pair: IDX:0-1, CNT:2, S:0-1, 2/4,0/4, null.
func (g *GRES) details(s string) error {
	for group := range strings.SplitSeq(s, "(") {
		group, _, _ = strings.Cut(group, ")")
		group = strings.TrimSpace(group)
		kind, list, _ := strings.Cut(group, ":")
		switch {
		case group == "" || group == "null" || group == "N/A" || kind == "S":
		case kind == "IDX" || kind == "IDX_LIST":
			if list == "" || list == "N/A" { // no device is in use
				continue
			}
			index, err := ParseRanges(list)
			if err != nil {
				return err
			}
			if g.Index = append(g.Index, index...); len(g.Index) > MaxIndex {
				return errors.New("too many devices")
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
				if held = strings.TrimSpace(held); held == "-" {
					held = "0"
				}
				h, err := strconv.ParseUint(held, 10, 32)
				if err != nil {
					return errors.New("part is not a number")
				}
				o, err := strconv.ParseUint(strings.TrimSpace(of), 10, 32)
				if err != nil || len(g.Parts) >= MaxIndex {
					return errors.New("part is not a number")
				}
				g.Parts = append(g.Parts, Part{h, o})
			}
		default:
			return errors.New("unknown detail")
		}
	}
	return nil
}

// ParseCount parses a count with an optional suffix, as in 2, 4K and 1M. Slurm's suffixes
// are powers of 1024.
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
		return 0, errors.New("count is not a number")
	}
	return n * unit, nil
}

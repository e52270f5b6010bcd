package slurmctl

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Node is a compute node of the cluster.
type Node struct {
	Name       string
	State      string // one word; see nodeState
	Partitions []string
	// CPUs are those available to jobs. Memory is in MiB, Slurm's unit.
	CPUs, CPUsAllocated     int64
	Memory, MemoryAllocated int64
	GPUs                    []GPUs
	Reason                  string
}

// GPUs counts the GPUs of one type in a node.
type GPUs struct {
	Type string // h100; may be empty
	// Allocated GPUs are held by jobs, as a whole or through shards.
	Total, Allocated int64
}

// Usable reports whether the node accepts new jobs. A reserved node accepts only jobs of
// the reservation; a powered-down node is powered up for a job.
func (n *Node) Usable() bool {
	switch n.State {
	case "idle", "mixed", "allocated", "planned", "completing", "powered_down", "powering_up":
		return true
	}
	return false
}

// rest returns the state of the resources that no job holds: idle, down or drained. A
// future node has no resources.
func (n *Node) rest() string {
	switch n.State {
	case "future":
		return ""
	case "down", "fail", "not_responding", "invalid", "unknown", "error", "blocked":
		return "down"
	case "drained", "draining", "maint", "rebooting", "powering_down":
		return "drained"
	}
	return "idle"
}

// marks are the suffixes that the tools append to a state; see sinfo(1).
var marks = map[byte]string{
	'*': "not_responding", '~': "powered_down", '#': "powering_up", '!': "power_down", '%': "powering_down",
	'$': "maint", '@': "reboot_issued", '^': "reboot_requested", '-': "planned",
}

// synonyms maps names of states and flags that differ by version and tool.
var synonyms = map[string]string{
	"alloc": "allocated", "mix": "mixed", "drng": "draining", "resv": "reserved", "plnd": "planned", "comp": "completing",
	"maintenance": "maint", "unk": "unknown", "failing": "fail", "invalid_reg": "invalid", "inval": "invalid",
	"no_respond": "not_responding", "futr": "future", "pow_dn": "power_down", "pow_up": "powering_up", "power_up": "powering_up", "boot": "reboot_issued",
}

// nodeState reduces all words that Slurm reports for a node, such as IDLE+DRAIN, down* or a
// list, to one state. The state that keeps the node from running jobs takes precedence.
func nodeState(words ...string) string {
	flags := map[string]bool{}
	base := ""
	for _, w := range words {
		for w := range strings.SplitSeq(strings.ToLower(w), "+") {
			for w = strings.TrimSpace(w); w != "" && marks[w[len(w)-1]] != ""; w = w[:len(w)-1] {
				flags[marks[w[len(w)-1]]] = true
			}
			if s := synonyms[w]; s != "" {
				w = s
			}
			if w == "" {
				continue
			}
			switch flags[w] = true; w {
			case "allocated", "mixed", "idle", "down", "future", "unknown", "error":
				if base == "" {
					base = w
				}
			}
		}
	}
	busy := base == "allocated" || base == "mixed" || flags["completing"]
	switch {
	case base == "down" || base == "future" || base == "error":
		return base
	case flags["fail"]:
		return "fail"
	case flags["draining"] || flags["drain"] && busy:
		return "draining"
	case flags["drained"] || flags["drain"]:
		return "drained"
	case flags["maint"]:
		return "maint"
	case flags["reboot_issued"], flags["reboot_requested"] && !busy:
		return "rebooting"
	case flags["powered_down"]:
		return "powered_down"
	case flags["powering_down"], flags["power_down"] && !busy:
		return "powering_down"
	case flags["powering_up"]:
		return "powering_up"
	case flags["not_responding"]:
		return "not_responding"
	case flags["invalid"]:
		return "invalid"
	case flags["blocked"] && !busy:
		return "blocked"
	case flags["reserved"] && !busy:
		return "reserved"
	case flags["planned"] && !busy:
		return "planned"
	case flags["completing"] && base != "allocated" && base != "mixed":
		return "completing"
	case base != "":
		return base
	}
	return "unknown"
}

// gpusOn returns the GPUs of a node by type. has is the configured GRES, used the allocated
// GRES, and tres the allocated total for versions that do not report used. If part of the GRES
// cannot be parsed, gpusOn returns the counts of the rest and an error.
func gpusOn(has, used, tres string) ([]GPUs, error) {
	list, odd := slurm.ParseGRES(has)
	var out []GPUs
	at := func(kind string) *GPUs {
		for i := range out {
			if out[i].Type == kind {
				return &out[i]
			}
		}
		return nil
	}
	for _, g := range list {
		if g.Name != "gpu" {
			continue
		}
		if have := at(g.Type); have != nil {
			have.Total += int64(min(g.Count, 1<<20))
		} else {
			out = append(out, GPUs{Type: g.Type, Total: int64(min(g.Count, 1<<20))})
		}
	}
	if len(out) == 0 {
		return nil, odd
	}
	held, known := map[int]bool{}, false
	busy, err := slurm.ParseGRES(used)
	odd = errors.Join(odd, err)
	for _, g := range busy {
		if g.Name != "gpu" {
			continue
		}
		known = true
		of := at(g.Type)
		if of == nil {
			of = &out[0]
		}
		of.Allocated += int64(min(g.Count, 1<<20))
		for _, i := range g.Index {
			held[i] = true
		}
	}
	for _, g := range busy { // a GPU with an allocated shard cannot be allocated as a whole
		if g.Name != "shard" && g.Name != "mps" || g.Count == 0 {
			continue
		}
		for i, p := range g.Parts {
			if p.Held > 0 && !held[i] {
				held[i] = true
				ownerOf(out, i).Allocated++
			}
		}
		for _, i := range g.Index {
			if !held[i] {
				held[i] = true
				ownerOf(out, i).Allocated++
			}
		}
	}
	if n, ok := slurm.CountGPUs(tres); ok && !known {
		for i := range out { // the types are unknown: assume the first ones
			part := min(n, out[i].Total)
			out[i].Allocated, n = part, n-part
		}
	}
	for i := range out {
		out[i].Allocated = min(out[i].Allocated, out[i].Total)
	}
	return out, odd
}

// ownerOf returns the type of the device with an index: devices are numbered in order.
func ownerOf(list []GPUs, index int) *GPUs {
	for i := range list {
		if index -= int(list[i].Total); index < 0 {
			return &list[i]
		}
	}
	return &list[len(list)-1]
}

type nodeList struct {
	list []Node
	odd  error // the first node whose GRES cannot be parsed
}

// gpus returns the GPUs of the node of that name.
func (l *nodeList) gpus(node, has, used, tres string) []GPUs {
	list, err := gpusOn(has, used, tres)
	if err != nil && l.odd == nil {
		l.odd = fmt.Errorf("node %s: %w", node, err)
	}
	return list
}

type jsonNode struct {
	Name       slurm.Line   `json:"name"`
	State      slurm.Words  `json:"state"`
	Flags      slurm.Words  `json:"state_flags"` // up to 22.05
	Partitions slurm.Words  `json:"partitions"`
	CPUs       slurm.Number `json:"cpus"`
	Effective  slurm.Number `json:"effective_cpus"` // without the CPUs reserved for the system
	Alloc      slurm.Number `json:"alloc_cpus"`
	Memory     slurm.Number `json:"real_memory"`
	AllocMem   slurm.Number `json:"alloc_memory"`
	GRES       slurm.Line   `json:"gres"`
	GRESUsed   slurm.Line   `json:"gres_used"`
	TRESUsed   slurm.Line   `json:"tres_used"`
	Reason     slurm.Line   `json:"reason"`
}

func (l *nodeList) json(r io.Reader) error {
	l.list = []Node{}
	return slurm.DecodeList(r, "nodes", func(n jsonNode) error {
		cpus := n.Effective.Int()
		if cpus == 0 {
			cpus = n.CPUs.Int()
		}
		l.add(Node{
			Name: string(n.Name), State: nodeState(slices.Concat(n.State, n.Flags)...), Partitions: partitionsOf(n.Partitions...),
			CPUs: cpus, CPUsAllocated: n.Alloc.Int(), Memory: n.Memory.Int(), MemoryAllocated: n.AllocMem.Int(),
			GPUs: l.gpus(string(n.Name), string(n.GRES), string(n.GRESUsed), string(n.TRESUsed)), Reason: string(n.Reason),
		})
		return nil
	})
}

func (l *nodeList) text(r io.Reader) error {
	l.list = []Node{}
	return slurm.Records(r, "NodeName=", func(lines []string) {
		f, why := map[string]string{}, ""
		for _, line := range lines {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "Reason="); ok && why == "" {
				why = slurm.Text(text)
			}
			if !slurm.FreeText(line) {
				slurm.Fields(f, line)
			}
		}
		cpus := slurm.Count(f["CPUEfctv"])
		if cpus == 0 {
			cpus = slurm.Count(f["CPUTot"])
		}
		l.add(Node{
			Name: f["NodeName"], State: nodeState(f["State"]), Partitions: partitionsOf(f["Partitions"]),
			CPUs: cpus, CPUsAllocated: slurm.Count(f["CPUAlloc"]), Memory: slurm.Count(f["RealMemory"]), MemoryAllocated: slurm.Count(f["AllocMem"]),
			GPUs: l.gpus(f["NodeName"], f["Gres"], f["GresUsed"], f["AllocTRES"]), Reason: why,
		})
	})
}

// add appends a node once: some answers list a node for each of its partitions.
func (l *nodeList) add(n Node) {
	if n.Name == "" {
		return
	}
	if len(l.list) > 0 && l.list[len(l.list)-1].Name == n.Name {
		last := &l.list[len(l.list)-1]
		last.Partitions = partitionsOf(append(last.Partitions, n.Partitions...)...)
		return
	}
	l.list = append(l.list, n)
}

// partitionsOf returns the unique names in order of appearance.
func partitionsOf(words ...string) []string {
	var out []string
	for _, w := range words {
		for p := range strings.SplitSeq(w, ",") {
			if p = strings.TrimSuffix(slurm.Text(p), "*"); p != "" {
				out = append(out, p)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

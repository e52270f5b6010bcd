package kube

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Verdict is what the scheduler's message about a pod says.
type Verdict struct {
	Nodes  int     // that the scheduler knows; 0 if the message names no number
	Causes []Count // why nodes are excluded
	// Preemption is why evicting other pods would not help, empty if the message does not say.
	Preemption []Count
}

// Count is one cause and on how many nodes.
type Count struct {
	Nodes  int // 0: the message is not about nodes
	Reason scheduler.Reason
	Text   string // in the scheduler's words, without the number
}

var (
	headline = regexp.MustCompile(`^(\d+)/(\d+) nodes are (?:un)?available: ?`)
	counted  = regexp.MustCompile(`^(\d+) (.+)$`)
)

// maxCauses bounds the causes of one message.
const maxCauses = 50

// parseMessage reads the message of the condition PodScheduled. There is no promise about its form: what is not
// understood is one cause, in the scheduler's words.
//
//	0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {a: b}. preemption: 0/3 nodes are available: ...
func parseMessage(text string, v device.Vendors) Verdict {
	var out Verdict
	text, preemption, _ := strings.Cut(text, "preemption: ")
	out.Nodes, out.Causes = sentence(text, v)
	if preemption != "" {
		_, out.Preemption = sentence(preemption, v)
	}
	return out
}

// sentence reads a number of nodes and the causes that follow.
func sentence(text string, v device.Vendors) (nodes int, list []Count) {
	if m := headline.FindStringSubmatch(text); m != nil {
		nodes = number(m[2])
		text = text[len(m[0]):]
	}
	for _, clause := range clauses(text) {
		// After the last cause come remarks, such as "no new claims to deallocate".
		clause, _, _ = strings.Cut(clause, ". ")
		clause = strings.Trim(clause, ". \n")
		if clause == "" || len(list) == maxCauses {
			continue
		}
		c := Count{Text: clause}
		if m := counted.FindStringSubmatch(clause); m != nil {
			c.Nodes, c.Text = number(m[1]), m[2]
		}
		c.Reason = reasonOf(c.Text, v)
		list = append(list, c)
	}
	return nodes, list
}

// clauses splits at commas outside braces, which enclose a taint.
func clauses(text string) []string {
	var list []string
	depth, from := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '{':
			depth++
		case '}':
			depth = max(0, depth-1)
		case ',':
			if depth == 0 {
				list = append(list, text[from:i])
				from = i + 1
			}
		}
	}
	list = append(list, text[from:])
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// number parses digits; one that is too long counts as 0, not known.
func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// words are parts of the messages of kube-scheduler 1.20 to 1.34 and of schedulers that put theirs into the same
// condition. The first that is found decides.
var words = []struct {
	part   string
	reason scheduler.Reason
}{
	{"can possibly be assigned to", scheduler.Gang}, // Volcano, of a member with a place that others of the group lack
	{"too many pods", scheduler.Slots},
	{"untolerated taint", scheduler.Taint},
	{"that the pod didn't tolerate", scheduler.Taint}, // before 1.24
	{"were unschedulable", scheduler.Unavailable},
	{"were not ready", scheduler.Unavailable},
	{"no nodes available", scheduler.Unavailable},
	{"free ports", scheduler.Ports},
	{"persistentvolume", scheduler.Volume},
	{"persistent volume", scheduler.Volume},
	{"volume", scheduler.Volume},
	{"resourceclaim", scheduler.Claim},
	{"resource claim", scheduler.Claim},
	{"allocate all claims", scheduler.Claim},
	{"deviceclass", scheduler.Claim},
	{"node affinity", scheduler.Affinity},
	{"node selector", scheduler.Affinity},
	{"affinity", scheduler.Affinity},
	{"topology", scheduler.Affinity},
	{"quota", scheduler.Quota},
	{"gang", scheduler.Gang},
	{"pod group", scheduler.Gang},
	{"podgroup", scheduler.Gang},
	{"sibling pods", scheduler.Gang}, // the scheduler plugins
	{"coscheduling", scheduler.Gang},
	{"scheduling gate", scheduler.Gated},
}

// reasonOf returns the reason in the words of a scheduler.
func reasonOf(text string, v device.Vendors) scheduler.Reason {
	// Upper case: an "insufficient" in the middle of a sentence is some plugin's.
	if _, name, ok := strings.Cut(text, "Insufficient "); ok {
		name, _, _ = strings.Cut(name, " ")
		switch {
		case name == "cpu":
			return scheduler.CPU
		case name == "memory":
			return scheduler.Memory
		case name == "ephemeral-storage":
			return scheduler.Storage
		case name == "pods":
			return scheduler.Slots
		case accelerator(v, name):
			return scheduler.Device
		case strings.HasPrefix(name, "quota"):
			return scheduler.Quota
		}
		return scheduler.Resources
	}
	text = strings.ToLower(text)
	for _, w := range words {
		if strings.Contains(text, w.part) {
			return w.reason
		}
	}
	return scheduler.Other
}

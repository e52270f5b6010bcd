// Package gang reads the objects by which queueing systems say what a group of pods needs, and why it waits: the PodGroups
// of Volcano, KAI, the scheduler plugins and Kubernetes itself, and the Workloads of Kueue.
package gang

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
)

// PodGroup is a group of pods that are placed as a whole.
type PodGroup struct {
	Namespace, Name string
	Minimum         int    // how many of its pods must have a place before any may run; 0: it does not say
	Message         string // why it is not placed, in the words of its scheduler; empty: it says nothing, or it is placed
}

// Key returns NAMESPACE/NAME.
func (g *PodGroup) Key() string { return g.Namespace + "/" + g.Name }

const (
	// maxMembers bounds the size of a group.
	maxMembers = 1_000_000
	// maxMessage bounds a text that is kept.
	maxMessage = 1 << 10
)

// text returns a text in one line, without what a terminal takes for a command.
func text(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")), " ")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}

type metadata struct {
	UID               string    `json:"uid"`
	Namespace         string    `json:"namespace"`
	Name              string    `json:"name"`
	CreationTimestamp time.Time `json:"creationTimestamp"`
	OwnerReferences   []struct {
		UID string `json:"uid"`
	} `json:"ownerReferences"`
}

type condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"lastTransitionTime"`
	Reasons []struct {
		Message string `json:"message"`
	} `json:"reasons"` // KAI
}

// ParsePodGroup reads a PodGroup of any of the systems.
func ParsePodGroup(b []byte) (PodGroup, error) {
	var o struct {
		Metadata metadata `json:"metadata"`
		Spec     struct {
			MinMember int `json:"minMember"`
			Policy    struct {
				Gang struct {
					MinCount int `json:"minCount"`
				} `json:"gang"`
			} `json:"schedulingPolicy"` // Kubernetes
		} `json:"spec"`
		Status struct {
			Conditions []condition `json:"conditions"`
			Scheduling []condition `json:"schedulingConditions"` // KAI
		} `json:"status"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return PodGroup{}, fmt.Errorf("pod group cannot be parsed: %w", err)
	}
	g := PodGroup{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Minimum: cmp.Or(o.Spec.MinMember, o.Spec.Policy.Gang.MinCount)}
	if g.Name == "" {
		return PodGroup{}, errors.New("pod group cannot be parsed: no name")
	}
	if g.Minimum < 0 || g.Minimum > maxMembers {
		g.Minimum = 0
	}
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type == "Unschedulable" && c.Status == "True", c.Type == "PodGroupScheduled" && c.Status == "False":
			g.Message = text(c.Message)
		case c.Type == "Scheduled" && c.Status == "True": // Volcano keeps the older condition
			g.Message = ""
		}
	}
	for _, c := range o.Status.Scheduling {
		message := c.Message
		if len(c.Reasons) > 0 {
			message = c.Reasons[0].Message
		}
		g.Message = text(message) // the newest is last
	}
	return g, nil
}

// Workload is a Workload of Kueue: pods that get their quota as a whole.
type Workload struct {
	UID, Namespace, Name string
	Owners               []string // UIDs: a pod, or what creates the pods
	Resources            []string // that it has, sorted; empty: it has no quota
	Created              time.Time
	// Reserved says whether it has its quota, and Admitted whether its pods may run. ReservedAt and AdmittedAt are since when,
	// zero if that is not so or not known.
	Reserved, Admitted     bool
	ReservedAt, AdmittedAt time.Time
	// Reason and Message are Kueue's words on what it waits for, empty if it is admitted or nothing was said.
	Reason, Message string
	// Evicted is why it lost its quota, empty if it did not, or has it again, and EvictedAt since when. EvictedBefore says whether
	// it ever did.
	Evicted       string
	EvictedAt     time.Time
	EvictedBefore bool
}

// Key returns NAMESPACE/NAME.
func (w *Workload) Key() string { return w.Namespace + "/" + w.Name }

// maxOwners bounds the owners of a Workload: the pods of a group are owners, one by one.
const maxOwners = 10_000

// ParseWorkload reads a Workload.
func ParseWorkload(b []byte) (Workload, error) {
	var o struct {
		Metadata metadata `json:"metadata"`
		Status   struct {
			Conditions []condition `json:"conditions"`
			Admission  struct {
				PodSets []struct {
					Usage map[string]json.RawMessage `json:"resourceUsage"`
				} `json:"podSetAssignments"`
			} `json:"admission"`
		} `json:"status"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return Workload{}, fmt.Errorf("workload cannot be parsed: %w", err)
	}
	w := Workload{UID: o.Metadata.UID, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Created: o.Metadata.CreationTimestamp}
	if w.Name == "" {
		return Workload{}, errors.New("workload cannot be parsed: no name")
	}
	for _, r := range o.Metadata.OwnerReferences[:min(len(o.Metadata.OwnerReferences), maxOwners)] {
		w.Owners = append(w.Owners, r.UID)
	}
	for _, set := range o.Status.Admission.PodSets {
		w.Resources = slices.AppendSeq(w.Resources, maps.Keys(set.Usage))
	}
	slices.Sort(w.Resources)
	w.Resources = slices.Compact(w.Resources)
	var quota, admission condition
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case "QuotaReserved":
			if w.Reserved, quota = c.Status == "True", c; w.Reserved {
				w.ReservedAt = c.Since
			}
		case "Admitted":
			if w.Admitted, admission = c.Status == "True", c; w.Admitted {
				w.AdmittedAt = c.Since
			}
		case "Evicted":
			if w.EvictedBefore = true; c.Status == "True" {
				w.Evicted, w.EvictedAt = text(c.Reason), c.Since
			}
		}
	}
	switch {
	case w.Admitted:
	case w.Reserved:
		w.Reason, w.Message = text(admission.Reason), text(admission.Message)
	default:
		w.Reason, w.Message = text(quota.Reason), text(quota.Message)
	}
	return w, nil
}

package scheduler

import (
	"cmp"
	"slices"
	"time"
)

// Waiting is a job that waits for devices, or several with one record in their scheduler, such as the tasks of an array.
type Waiting struct {
	Group
	// ID is the UID of a pod or the ID of a Slurm job, and Name how people know it. Both are other for the jobs beyond a limit.
	ID, Name string
	Devices  int64     // that it asks for, all jobs together
	Since    time.Time // zero: not known
}

// Longest returns the limit jobs that have waited longest, and then one that stands for the others: it has their devices,
// and no time.
func Longest(list []Waiting, limit int) []Waiting {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Waiting) int {
		if a.Since.IsZero() != b.Since.IsZero() {
			return map[bool]int{true: 1, false: -1}[a.Since.IsZero()]
		}
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(b.Devices, a.Devices), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	if len(list) <= limit {
		return list
	}
	rest := Waiting{Group: Group{Queue: other, Team: other, Reason: Other}, ID: other, Name: other}
	for _, w := range list[limit:] {
		rest.Devices += w.Devices
	}
	return append(list[:limit:limit], rest)
}

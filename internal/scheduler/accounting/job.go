package accounting

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Job is one row of Slurm's accounting: a job, a task of an array, or a component of a
// heterogeneous job, from its start to its end. A job that was requeued or resized has
// several. A time that is zero is not known, or has not come.
type Job struct {
	// Job has what a queue has of it, too. ID is the number that series of the agent carry,
	// ArrayTaskID one number, or 1-3,7 for those that were cancelled while they waited. State
	// is one word, as COMPLETED; GPUs were allocated, each counted once.
	slurm.Job

	UserID    string // as its user knows it: 7, 4_2, 4_[1-3], 10+1
	HetOffset string

	Exit   int // the code the batch script returned
	Signal int // that ended it; 0 is none
	// ExitKnown is false where Slurm does not say how it ended: 22.05 writes 0 into JSON
	// for every job.
	ExitKnown bool

	// Elapsed is the time for which it ran; Slurm leaves out that for which it was suspended.
	Elapsed, Suspended time.Duration

	Requested int64 // the GPUs that it asked for
	GPUTypes  []string
	Shards    int64 // of GPUs
}

// terminal are the states of a row that has its last word. A row of a job that was
// requeued or resized ends too, and the job goes on in another.
var terminal = []string{
	"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
	"PREEMPTED", "TIMEOUT", "REQUEUED", "RESIZING", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL",
}

// good are the terminal states that nobody has to look into.
var good = []string{"COMPLETED", "REQUEUED", "RESIZING", "REVOKED"}

// Ended reports whether the row will not change any more.
func (j *Job) Ended() bool { return !j.End.IsZero() && slices.Contains(terminal, j.State) }

// whole reports whether slurmdbd has heard of the start of the job. Where it hears of the
// end of a short one first, it has a row without a partition and under the name
// allocation for a moment.
func (j *Job) whole() bool { return j.Partition != "" }

// Failed reports whether it ended in another way than it should: a job that somebody
// cancelled did too.
func (j *Job) Failed() bool { return j.Ended() && !slices.Contains(good, j.State) }

// UID names the row for ever: who reads a record twice sees that it is the same.
func (j *Job) UID() string {
	var start int64
	if !j.Start.IsZero() {
		start = j.Start.Unix()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d", j.Cluster, j.ID, start, j.End.Unix()))
	return hex.EncodeToString(sum[:16])
}

// GPUTime is what it is charged for: its GPUs times the time for which it ran.
func (j *Job) GPUTime() time.Duration { return time.Duration(j.GPUs) * j.Elapsed }

// Wait is how long it was ready and did not run; ok is false where that is not known. One
// that never started waited to its end.
func (j *Job) Wait() (wait time.Duration, ok bool) {
	until := cmp.Or(j.Start, j.End)
	from := cmp.Or(j.Eligible, j.Submit)
	if from.IsZero() || until.IsZero() {
		return 0, false
	}
	return max(0, until.Sub(from)), true // a job that was to begin later and was cancelled before did not wait
}

// devices takes the GPUs from trackable resources. Slurm has them with their type and
// without, for the same devices.
func (j *Job) devices(allocated, requested []slurm.GRES) {
	j.GPUs, j.GPUTypes, j.Shards = countGPUs(allocated)
	j.Requested, _, _ = countGPUs(requested)
}

func countGPUs(list []slurm.GRES) (gpus int64, types []string, shards int64) {
	var plain, typed uint64
	for _, g := range list {
		g.Count = min(g.Count, maxCount)
		switch {
		case g.Name == "shard" && g.Type == "":
			shards = int64(g.Count)
		case g.Name == "gpu" && g.Type == "":
			plain = g.Count
		case g.Name == "gpu" && g.Count > 0:
			typed += g.Count
			if t := slurm.Text(g.Type); !slices.Contains(types, t) {
				types = append(types, t)
			}
		}
	}
	slices.Sort(types)
	return int64(max(plain, typed)), types, shards
}

// maxCount bounds a number that is no sentinel of Slurm's: no job has so many of anything.
const maxCount = 1 << 30

// finish makes a row whole that was read from any answer.
func (j *Job) finish() bool {
	j.State, _, _ = strings.Cut(strings.ToUpper(j.State), " ") // CANCELLED by 1000
	j.State = strings.TrimSuffix(j.State, "+")                 // cut to the width of a column
	if !slurm.IsNumber(j.ID) || j.State == "" {
		return false
	}
	switch {
	case j.ArrayTaskID != "" && j.ArrayJobID != "":
		j.UserID = j.ArrayJobID + "_" + j.ArrayTaskID
		if strings.ContainsAny(j.ArrayTaskID, ",-:") {
			j.UserID = j.ArrayJobID + "_[" + j.ArrayTaskID + "]"
		}
	case j.HetJobID != "" && j.HetOffset != "":
		j.UserID = j.HetJobID + "+" + j.HetOffset
	default:
		j.UserID = j.ID
	}
	if strings.HasPrefix(j.NodeList, "None ") { // None assigned
		j.NodeList = ""
	}
	if j.Start.IsZero() { // what it would have had is no use of it
		j.Nodes, j.CPUs, j.Elapsed, j.NodeList = 0, 0, 0, ""
	}
	if !j.ExitKnown || j.State == "FAILED" && j.Exit == 0 && j.Signal == 0 {
		j.Exit, j.Signal, j.ExitKnown = 0, 0, false
	}
	return true
}

// fromUnix returns a time of Slurm's: 0, and NO_VAL and INFINITE of 32 and 64 bits, are none.
func fromUnix(s uint64) time.Time {
	if s == 0 || s >= 0xfffffffe {
		return time.Time{}
	}
	return time.Unix(int64(s), 0).UTC()
}

// fromBitmap returns the numbers of the bits that are set in 0x3FE as 1-9: that is how
// JSON has the tasks of an array that wait. Other text is returned as it is.
func fromBitmap(s string) string {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok || len(digits) > 1<<20 {
		return s
	}
	var out []string
	first, last := -1, -1
	flush := func() {
		switch {
		case first < 0:
		case first == last:
			out = append(out, strconv.Itoa(first))
		default:
			out = append(out, fmt.Sprintf("%d-%d", first, last))
		}
	}
	for i := range len(digits) {
		d, err := strconv.ParseUint(digits[len(digits)-1-i:len(digits)-i], 16, 8)
		if err != nil {
			return s
		}
		for b := range 4 {
			n := 4*i + b
			if d&(1<<b) == 0 {
				continue
			}
			if n != last+1 || first < 0 {
				flush()
				first = n
			}
			last = n
		}
	}
	flush()
	return strings.Join(out, ",")
}

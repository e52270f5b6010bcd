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
// heterogeneous job, from its start to its end. A requeued or resized job has several rows. A zero
// time is unknown or in the future.
type Job struct {
	// Job has the fields that the queue has too. ID is the number in the agent's series.
	// ArrayTaskID is one number, or a list such as 1-3,7 for tasks cancelled while pending.
	// State is one word such as COMPLETED. GPUs is the number of allocated devices, each
	// counted once.
	slurm.Job

	UserID    string // as users write it: 7, 4_2, 4_[1-3], 10+1
	HetOffset string

	Exit   int // exit code of the batch script
	Signal int // the signal that ended the job; 0: none
	// ExitKnown is false where Slurm does not report the exit: 22.05 writes 0 into the JSON of
	// every job.
	ExitKnown bool

	// Elapsed is the run time; Slurm excludes the time suspended.
	Elapsed, Suspended time.Duration

	Requested int64 // requested GPUs
	GPUTypes  []string
	Shards    int64 // GPU shards
}

// terminal are the final states of a row. The row of a requeued or resized job is final too; the
// job continues in another row.
var terminal = []string{
	"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
	"PREEMPTED", "TIMEOUT", "REQUEUED", "RESIZING", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL",
}

// good are the terminal states that need no investigation.
var good = []string{"COMPLETED", "REQUEUED", "RESIZING", "REVOKED"}

// Ended reports whether the row is final.
func (j *Job) Ended() bool { return !j.End.IsZero() && slices.Contains(terminal, j.State) }

// whole reports whether slurmdbd has received the start of the job. If the end of a short job
// arrives first, the row briefly has no partition and the name "allocation".
func (j *Job) whole() bool { return j.Partition != "" }

// Failed reports whether the job ended other than successfully, which includes cancelled jobs.
func (j *Job) Failed() bool { return j.Ended() && !slices.Contains(good, j.State) }

// UID identifies the row permanently, so that consumers can detect a duplicate record.
func (j *Job) UID() string {
	var start int64
	if !j.Start.IsZero() {
		start = j.Start.Unix()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d", j.Cluster, j.ID, start, j.End.Unix()))
	return hex.EncodeToString(sum[:16])
}

// GPUTime is the charged time: GPUs times run time.
func (j *Job) GPUTime() time.Duration { return time.Duration(j.GPUs) * j.Elapsed }

// Wait returns how long the job was eligible but not running; ok is false if that is unknown. A job
// that never started waited until its end.
func (j *Job) Wait() (wait time.Duration, ok bool) {
	until := cmp.Or(j.Start, j.End)
	from := cmp.Or(j.Eligible, j.Submit)
	if from.IsZero() || until.IsZero() {
		return 0, false
	}
	return max(0, until.Sub(from)), true // a job cancelled before its begin time did not wait
}

// devices sets the GPUs from trackable resources. Slurm lists the same devices both with and
// without their type.
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

// maxCount bounds a number to exclude Slurm's sentinels: no job has that many of anything.
const maxCount = 1 << 30

// finish normalizes a row of any source.
func (j *Job) finish() bool {
	j.State, _, _ = strings.Cut(strings.ToUpper(j.State), " ") // CANCELLED by 1000
	j.State = strings.TrimSuffix(j.State, "+")                 // truncated to the column width
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
	if j.Start.IsZero() { // resources it never received do not count
		j.Nodes, j.CPUs, j.Elapsed, j.NodeList = 0, 0, 0, ""
	}
	if !j.ExitKnown || j.State == "FAILED" && j.Exit == 0 && j.Signal == 0 {
		j.Exit, j.Signal, j.ExitKnown = 0, 0, false
	}
	return true
}

// fromUnix converts a Slurm time: 0, NO_VAL and INFINITE of 32 and 64 bits mean none.
func fromUnix(s uint64) time.Time {
	if s == 0 || s >= 0xfffffffe {
		return time.Time{}
	}
	return time.Unix(int64(s), 0).UTC()
}

// fromBitmap returns the bits set in 0x3FE as 1-9: the JSON encodes the pending tasks of an array
// as a bitmap. Other text is returned unchanged.
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

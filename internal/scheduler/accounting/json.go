package accounting

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// jsonJob is a job in slurmrestd's slurmdb and in sacct --json, 22.05 to 26.05. The jobs of the
// queue, which slurm.ParseJobsJSON reads, have a different format: here times, states, arrays, exit
// codes and resources are objects, and only the names are the same.
type jsonJob struct {
	ID        slurm.Number `json:"job_id"`
	Cluster   slurm.Line   `json:"cluster"`
	Name      slurm.Line   `json:"name"`
	User      slurm.Line   `json:"user"`
	Account   slurm.Line   `json:"account"`
	Partition slurm.Line   `json:"partition"`
	QOS       slurm.Line   `json:"qos"`
	Nodes     slurm.Line   `json:"nodes"`
	NodeCount slurm.Number `json:"allocation_nodes"`
	Array     struct {
		JobID  slurm.Number `json:"job_id"`
		TaskID slurm.Number `json:"task_id"`
		Tasks  slurm.Line   `json:"task"`
	} `json:"array"`
	Het struct {
		JobID  slurm.Number `json:"job_id"`
		Offset slurm.Number `json:"job_offset"`
	} `json:"het"`
	State struct {
		Current slurm.Words `json:"current"`
	} `json:"state"`
	Exit struct {
		Code   slurm.Number `json:"return_code"`
		Signal struct {
			ID    slurm.Number `json:"id"`
			Older slurm.Number `json:"signal_id"` // up to 23.11
		} `json:"signal"`
	} `json:"exit_code"`
	Time struct {
		Submit    slurm.Number `json:"submission"`
		Eligible  slurm.Number `json:"eligible"`
		Start     slurm.Number `json:"start"`
		End       slurm.Number `json:"end"`
		Elapsed   slurm.Number `json:"elapsed"`
		Suspended slurm.Number `json:"suspended"`
	} `json:"time"`
	TRES struct {
		Allocated []jsonTRES `json:"allocated"`
		Requested []jsonTRES `json:"requested"`
	} `json:"tres"`
}

type jsonTRES struct {
	Type  slurm.Line   `json:"type"`
	Name  slurm.Line   `json:"name"`
	Count slurm.Number `json:"count"`
}

// parseJSON parses a response and calls each with its jobs.
func parseJSON(r io.Reader, each func(Job) error) error {
	return slurm.DecodeList(r, "jobs", func(from jsonJob) error {
		j := from.job()
		if !j.finish() {
			return nil // a row without an ID has no identity
		}
		return each(j)
	})
}

func (from *jsonJob) job() Job {
	j := Job{
		Job: slurm.Job{
			ID: from.ID.Positive(), Cluster: string(from.Cluster), Name: string(from.Name), User: string(from.User),
			Account: string(from.Account), Partition: string(from.Partition), QOS: string(from.QOS), NodeList: string(from.Nodes),
			Submit: jsonTime(from.Time.Submit), Eligible: jsonTime(from.Time.Eligible),
			Start: jsonTime(from.Time.Start), End: jsonTime(from.Time.End), Nodes: jsonCount(from.NodeCount),
		},
		Elapsed: jsonSpan(from.Time.Elapsed), Suspended: jsonSpan(from.Time.Suspended),
	}
	if array := from.Array.JobID.Positive(); array != "" {
		j.ArrayJobID = array
		if j.ArrayTaskID = from.Array.TaskID.String(); j.ArrayTaskID == "" || from.Array.Tasks != "" {
			j.ArrayTaskID = fromBitmap(taskList(string(from.Array.Tasks)))
		}
	}
	if het := from.Het.JobID.Positive(); het != "" {
		j.HetJobID, j.HetOffset = het, from.Het.Offset.String()
	}
	for _, state := range from.State.Current { // a list may contain flags besides the state
		if j.State == "" || slices.Contains(terminal, state) && !slices.Contains(terminal, j.State) {
			j.State = slurm.Text(state)
		}
	}
	if code, ok := from.Exit.Code.Get(); ok {
		signal := max(jsonCount(from.Exit.Signal.ID), jsonCount(from.Exit.Signal.Older))
		j.Exit, j.Signal, j.ExitKnown = int(min(code, 1<<16)), int(signal), true
	}
	for _, t := range from.TRES.Allocated {
		if t.Type == "cpu" {
			j.CPUs = jsonCount(t.Count)
		}
	}
	j.devices(gresOf(from.TRES.Allocated), gresOf(from.TRES.Requested))
	return j
}

// taskList returns 1-9 for [1-9%1].
func taskList(s string) string {
	s = strings.Trim(s, "[]")
	s, _, _ = strings.Cut(s, "%")
	if !strings.HasPrefix(s, "0x") && strings.Trim(s, "0123456789-,:") != "" {
		return ""
	}
	return s
}

func gresOf(list []jsonTRES) []slurm.GRES {
	var out []slurm.GRES
	for _, t := range list {
		n, ok := t.Count.Get()
		if t.Type != "gres" || !ok || n > maxCount {
			continue
		}
		name, kind, _ := strings.Cut(string(t.Name), ":")
		out = append(out, slurm.GRES{Name: name, Type: kind, Count: n})
	}
	return out
}

func jsonTime(n slurm.Number) time.Time {
	s, _ := n.Get()
	return fromUnix(s)
}

// jsonCount returns a number, or 0 if it is unset, a sentinel or implausible.
func jsonCount(n slurm.Number) int64 {
	if v, ok := n.Get(); ok && v <= maxCount {
		return int64(v)
	}
	return 0
}

func jsonSpan(n slurm.Number) time.Duration { return time.Duration(jsonCount(n)) * time.Second }

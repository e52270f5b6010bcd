package slurm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const maxJobs = 4096 // on one node

// parseJSON reads what squeue --json, scontrol --json and slurmrestd write, and returns
// the jobs that hold something on a node. It keeps one job at a time: a job of a newer
// version has every core of every one of its nodes.
//
// Numbers are bare up to 22.05 and {"set":true,"number":7} since 23.02; job_state is a
// word and since 23.11 a list. gres_detail has an entry for each node, in the order of
// the list of nodes.
func parseJSON(r io.Reader, node string) (jobs []Job, err error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, notJSON(err)
	}
	var errs []error
	seen := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return jobs, notJSON(err)
		}
		switch key {
		case "jobs":
			seen = true
			if jobs, err = decodeJobs(d, node); err != nil {
				return jobs, err
			}
		case "errors":
			var list []struct {
				Error       oneLine `json:"error"`
				Description oneLine `json:"description"`
			}
			if err := d.Decode(&list); err != nil {
				errs = append(errs, notJSON(err))
			}
			for _, e := range list[:min(len(list), 4)] {
				errs = append(errs, fmt.Errorf("%.200s %.200s", string(e.Error), string(e.Description)))
			}
		default:
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return jobs, notJSON(err)
			}
		}
	}
	if _, err := d.Token(); err != nil {
		return jobs, notJSON(err)
	}
	if !seen && len(errs) == 0 {
		errs = append(errs, errors.New("the answer has no jobs"))
	}
	return jobs, errors.Join(errs...)
}

func notJSON(err error) error {
	if err == nil {
		err = errors.New("no object")
	}
	return fmt.Errorf("the answer is no JSON: %w", err)
}

func decodeJobs(d *json.Decoder, node string) ([]Job, error) {
	t, err := d.Token()
	if err != nil {
		return nil, notJSON(err)
	}
	if t == nil {
		return nil, nil
	}
	if t != json.Delim('[') {
		return nil, errors.New("the jobs are no list")
	}
	var jobs []Job
	for d.More() {
		var j jsonJob
		if err := d.Decode(&j); err != nil {
			if _, odd := errors.AsType[*json.UnmarshalTypeError](err); !odd { // of one field: the rest of the job is there
				return jobs, notJSON(err)
			}
		}
		if job, ok := j.job(node); ok {
			if len(jobs) >= maxJobs {
				return jobs, fmt.Errorf("more than %d jobs on a node", maxJobs)
			}
			jobs = append(jobs, job)
		}
	}
	_, err = d.Token()
	return jobs, err
}

// jsonJob is a part of job_info of Slurm's OpenAPI.
type jsonJob struct {
	ID         number   `json:"job_id"`
	ArrayJobID number   `json:"array_job_id"`
	ArrayTask  number   `json:"array_task_id"`
	HetJobID   number   `json:"het_job_id"`
	Name       oneLine  `json:"name"`
	User       oneLine  `json:"user_name"`
	Account    oneLine  `json:"account"`
	Partition  oneLine  `json:"partition"`
	QOS        oneLine  `json:"qos"`
	Cluster    oneLine  `json:"cluster"`
	State      words    `json:"job_state"`
	Nodes      oneLine  `json:"nodes"`
	GRES       []string `json:"gres_detail"`
	TRES       oneLine  `json:"tres_alloc_str"`
}

func (j jsonJob) job(node string) (Job, bool) {
	out := Job{
		ID: j.ID.String(), HetJobID: j.HetJobID.positive(), Name: string(j.Name), User: string(j.User), Account: string(j.Account),
		Partition: string(j.Partition), QOS: string(j.QOS), Cluster: string(j.Cluster), States: j.State,
	}
	if out.ArrayJobID = j.ArrayJobID.positive(); out.ArrayJobID != "" {
		out.ArrayTaskID = j.ArrayTask.String()
	}
	if out.ID == "" || !out.holds() {
		return Job{}, false
	}
	at := hostIndex(string(j.Nodes), node)
	if at < 0 {
		return Job{}, false
	}
	switch {
	case at < len(j.GRES):
		out.GRES, out.unreadable = ParseGRES(j.GRES[at])
	case len(j.GRES) == 0 && strings.Contains(string(j.TRES), "gres/"):
		out.unreadable = fmt.Errorf("job %s has %.100q and no detail of it", out.ID, string(j.TRES))
	}
	return out, true
}

// number is a number that may not be set.
type number struct {
	n   uint64
	set bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	*n = number{}
	if len(b) > 0 && b[0] == '{' {
		var o struct {
			Set, Infinite bool
			Number        json.Number
		}
		if err := json.Unmarshal(b, &o); err != nil {
			return nil //nolint:nilerr // a number that cannot be read is not set, and costs nothing else
		}
		if !o.Set || o.Infinite {
			return nil
		}
		b = []byte(o.Number)
	}
	v, err := strconv.ParseUint(string(bytes.Trim(b, `"`)), 10, 64)
	*n = number{v, err == nil}
	return nil
}

// String returns the number, or nothing.
func (n number) String() string {
	if !n.set {
		return ""
	}
	return strconv.FormatUint(n.n, 10)
}

// positive returns the number, or nothing: 0 is Slurm's word for none here.
func (n number) positive() string {
	if n.n == 0 {
		return ""
	}
	return n.String()
}

// words is a word, or a list of them.
type words []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *words) UnmarshalJSON(b []byte) error {
	*w = nil
	if len(b) > 0 && b[0] == '[' {
		var list []string
		if json.Unmarshal(b, &list) == nil {
			*w = list
		}
		return nil
	}
	var one string
	if json.Unmarshal(b, &one) == nil && one != "" {
		*w = words{one}
	}
	return nil
}

// oneLine is one line of text.
type oneLine string

// UnmarshalJSON implements json.Unmarshaler.
func (t *oneLine) UnmarshalJSON(b []byte) error {
	*t = ""
	var s string
	if json.Unmarshal(b, &s) == nil {
		if len(s) > maxNodes {
			s = s[:maxNodes]
		}
		*t = oneLine(text(s))
	}
	return nil
}

// maxNodes bounds a text of the controller; a list of nodes is the longest.
const maxNodes = 1 << 18

package slurmctl

import (
	"fmt"
	"io"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// jobList collects the jobs of an answer.
type jobList struct {
	list    []slurm.Job
	cluster string
	odd     error // the first job that is counted with an unknown state
}

func (l *jobList) json(r io.Reader) error {
	l.list = []slurm.Job{}
	return slurm.ParseJobsJSON(r, l.add)
}

func (l *jobList) text(r io.Reader) error {
	l.list = []slurm.Job{}
	return slurm.ParseJobsText(r, l.add)
}

func (l *jobList) add(j slurm.Job) error {
	if l.cluster == "" {
		l.cluster = j.Cluster
	}
	if j.Ambiguous && l.odd == nil {
		l.odd = fmt.Errorf("text of job %s imitates fields of Slurm: its state is unknown", j.ID)
	}
	j.States, j.Held, j.Undetailed = nil, nil, false // only a node needs them, and a queue may have 100,000 jobs
	l.list = append(l.list, j)
	return nil
}

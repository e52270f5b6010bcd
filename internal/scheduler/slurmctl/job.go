package slurmctl

import (
	"io"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// jobList takes the jobs of an answer.
type jobList struct {
	list    []slurm.Job
	cluster string
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
	j.States, j.Held, j.Undetailed = nil, nil, false // only a node needs them, and a queue may have 100,000 jobs
	l.list = append(l.list, j)
	return nil
}

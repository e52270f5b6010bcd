package slurm

import (
	"context"
	"io"
	"path/filepath"
	"sync/atomic"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// command queries the controller by running one of Slurm's own tools, one process per query:
//
//	squeue --json --local --all --states=running,...
//	scontrol --verbose --local --all --details show job
//
// squeue supports JSON since 21.08, scontrol only since 23.02. Measured with sdiag on 22.05,
// squeue costs the controller one request, REQUEST_JOB_INFO, which covers all jobs and cannot
// be limited to a node. --nodelist makes it two requests, as does scontrol, with
// REQUEST_NODE_INFO; without --local the federation is queried as well. So the jobs of this
// node are selected here. scontrol is for versions without JSON and for clusters whose JSON
// is too large: its text is a third of the size, and a tenth with newer versions. Which one
// works is found out by failing once.
type command struct {
	tools slurm.Tools
	node  string
	text  atomic.Bool
}

// newCommand returns nil if there are no tools. scontrol may be the path of that tool;
// squeue is expected next to it.
func newCommand(scontrol, conf, node string) *command {
	dir := ""
	if scontrol != "" {
		dir = filepath.Dir(scontrol)
	}
	tools, ok := slurm.FindTools(dir, conf, "squeue", "scontrol")
	if !ok {
		return nil
	}
	c := &command{tools: tools, node: node}
	c.text.Store(!tools.Has("squeue"))
	return c
}

// ask implements asker.
func (c *command) ask(ctx context.Context) ([]Job, error) {
	if c.text.Load() {
		return c.run(ctx, slurm.ParseJobsText, "scontrol", "--verbose", "--local", "--all", "--details", "show", "job")
	}
	jobs, err := c.run(ctx, slurm.ParseJobsJSON, "squeue", "--json", "--local", "--all", "--states=running,suspended,completing,configuring,stopped,resizing,signaling,stage_out")
	if slurm.WithoutJSON(err) && c.tools.Has("scontrol") {
		c.text.Store(true)
	}
	return jobs, err
}

func (c *command) run(ctx context.Context, parse func(io.Reader, func(slurm.Job) error) error, tool string, args ...string) (jobs []Job, err error) {
	err = c.tools.Run(ctx, func(r io.Reader) (err error) {
		jobs, err = jobsOn(c.node, parse, r)
		return err
	}, tool, args...)
	if err != nil {
		return nil, err
	}
	return jobs, nil
}

// rest queries slurmrestd.
type rest struct {
	*slurm.REST
	node string
}

// ask implements asker.
func (r rest) ask(ctx context.Context) (jobs []Job, err error) {
	err = r.Get(ctx, "slurm", "jobs", func(body io.Reader) (err error) {
		jobs, err = jobsOn(r.node, slurm.ParseJobsJSON, body)
		return err
	})
	if err != nil {
		return nil, err
	}
	return jobs, nil
}

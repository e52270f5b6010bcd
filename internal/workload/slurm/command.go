package slurm

import (
	"context"
	"io"
	"path/filepath"
	"sync/atomic"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// command asks by running one of Slurm's own tools, one process for each question:
//
//	squeue --json --local --all --states=running,...
//	scontrol show job --details
//
// The first has JSON since 21.08, the second since 23.02 only. Measured with sdiag on
// 22.05, squeue costs the controller one request, REQUEST_JOB_INFO, which it has for all
// jobs and not for those of a node; --nodelist makes it two, as does scontrol, with
// REQUEST_NODE_INFO, and without --local it is asked for its federation. So the jobs of
// this node are picked here. The second is for versions without JSON and for clusters
// whose JSON is too large: its text has a third of the size, and of newer versions a
// tenth. The tools find out which by failing once.
type command struct {
	tools slurm.Tools
	node  string
	text  atomic.Bool
}

// newCommand returns nil if there are no tools. scontrol may name the tool; squeue is
// expected beside it.
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
		return c.run(ctx, slurm.ParseJobsText, "scontrol", "show", "job", "--details")
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

// rest asks slurmrestd.
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

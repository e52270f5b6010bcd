// Package slurm is how Slurm is asked, by its own tools or by slurmrestd, and what its
// words mean: generic resources, lists of hosts, numbers of jobs, and JSON whose form
// changed with the versions. It knows nothing of what the answers are for.
package slurm

// Package accounting follows the jobs that Slurm has finished, through sacct or slurmrestd,
// without gaps and without duplicates, and determines how each job used its GPUs.
package accounting

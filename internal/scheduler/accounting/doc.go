// Package accounting follows the jobs that Slurm has finished, by sacct or by slurmrestd,
// without a gap and without a duplicate, and finds out what each of them did with its GPUs.
package accounting

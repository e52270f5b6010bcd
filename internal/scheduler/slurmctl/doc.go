// Package slurmctl reads the state of a whole cluster from Slurm's controller and counts
// it: jobs, nodes, partitions, the scheduler's own statistics and fair shares. It reads
// through Slurm's command-line tools, through slurmrestd, or from the controller's own
// OpenMetrics pages (25.11 and later), and sends each request at most once per round to
// keep the load on the controller low.
//
// It needs a Slurm user that may see all jobs (PrivateData). It never changes or resets
// anything, and knows nothing about metrics: see receiver/schedulerreceiver.
package slurmctl

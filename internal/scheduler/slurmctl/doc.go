// Package slurmctl asks Slurm's controller for the state of its cluster, rarely and each
// thing once, and counts what it says: jobs, nodes, partitions, the scheduler's own
// statistics and fair shares. It never changes or resets anything.
package slurmctl

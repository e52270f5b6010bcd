// Package slurm talks to a Slurm installation and parses the notations that Slurm uses.
// Requests go to Slurm's own command-line tools, which this package alone runs, or to a
// slurmrestd with a JWT. The parsers cover generic resources (GRES), host lists, job
// identifiers, index ranges, and the JSON of versions 22.05 to 26.05, whose shape differs
// between releases.
//
// The package needs no privileges beyond those of the Slurm user it queries as, keeps no
// state except the API version of slurmrestd, and does not interpret the answers: see
// internal/scheduler/slurmctl and internal/workload/slurm for that.
package slurm

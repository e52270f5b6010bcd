// Package slurm finds the Slurm job that a process or a device of this node belongs to, and
// is a workload.Source.
//
// Local knowledge comes first, because it costs no other machine anything. The control group
// of a process identifies its job, and users cannot change it. Selected variables in the
// environment of a job's processes (root or CAP_SYS_PTRACE) name its user and its GPUs, as
// do the files that a prolog writes, where a site has them. Other local sources are useless:
// slurmd's own directory lists jobs and steps like the control groups, but no devices; the
// process of the extern step does not have the job's environment; and devices.list of cgroup
// version 1 always allows everything.
//
// The controller is queried in the background, with one request per refresh, through
// Slurm's tools or slurmrestd. Only the controller knows the devices of a job that has an
// allocation but no process yet, and its name, user, account, partition and QOS of a job
// take precedence over the environment, which the job may change. While the controller does
// not answer, its last answer is used for a time and marked as stale.
//
// Slurm numbers devices by their position in gres.conf, both in the GRES of a job and in
// SLURM_STEP_GPUS and SLURM_JOB_GPUS; verified on 22.05 with an unordered gres.conf.
// CUDA_VISIBLE_DEVICES starts at 0 in each job and is not read.
package slurm

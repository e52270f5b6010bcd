// Package slurm finds the Slurm job that a process or a device of this node belongs to.
//
// What the node itself knows comes first. The control group of a process says which job
// it is of, and nothing that a user can change does. Named variables of the environment
// of a job's processes say who he is and which GPUs the job has. Files that a prolog
// writes say the same where a site has them. All of that costs no other machine anything.
// slurmd's own folder names jobs and steps, as the control groups do, and no device; the
// process of a step extern has no environment of the job; and devices.list of version 1
// always allows all.
//
// The controller is asked in the background, with one request each refresh. It alone
// knows the devices of a job that has been given some and started nothing, and its word
// on the name, user, account, partition and QOS of a job goes before that of the
// environment, which the job may change. While it does not answer, what it said last is
// used for a time and marked as stale.
//
// Slurm numbers devices by their place in gres.conf, in the GRES of a job as well as in
// SLURM_STEP_GPUS and SLURM_JOB_GPUS; measured on 22.05 with an unordered gres.conf.
// CUDA_VISIBLE_DEVICES counts from 0 in each job and is not read.
package slurm

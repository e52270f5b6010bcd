// Package e2e runs the built program against the real things around it: Prometheus,
// VictoriaMetrics, the OpenTelemetry Collector's builder, a Kubernetes with a kubelet and
// containers, and a Slurm of two nodes, all on this machine. make e2e runs it.
//
// TestSlurm runs the Slurm of this machine, that of Debian 12 being 22.05. Another release
// is run from a folder with another Debian, where jobs, files of devices and control
// groups are those of this machine:
//
//	mmdebstrap --variant=minbase --include=slurmctld,slurmd,slurmdbd,slurmrestd,slurm-client,munge,mariadb-server \
//		--customize-hook='echo 127.0.0.1 localhost >"$1/etc/hosts"' trixie /srv/slurm-24.11
//	GPUMETER_SLURM_ROOT=/srv/slurm-24.11 make e2e TESTFLAGS='-run TestSlurm'
//
// It was run with 22.05 and 24.11, with control groups of version 1; those of version 2
// need a machine that has no others.
package e2e

// Package e2e runs the built program against real dependencies: Prometheus, VictoriaMetrics, Jaeger, the
// OpenTelemetry Collector's builder, a Kubernetes with a kubelet and containers, and a two-node Slurm,
// all on this machine. make e2e runs it.
//
// TestSlurm runs the Slurm of this machine; on Debian 12 that is 22.05. Another release runs from a folder
// with another Debian; jobs, device files and control groups are still those of this machine:
//
//	mmdebstrap --variant=minbase --include=slurmctld,slurmd,slurmdbd,slurmrestd,slurm-client,munge,mariadb-server \
//		--customize-hook='echo 127.0.0.1 localhost >"$1/etc/hosts"' trixie /srv/slurm-24.11
//	GPUMETER_SLURM_ROOT=/srv/slurm-24.11 make e2e TESTFLAGS='-run TestSlurm'
//
// It was run with 22.05 and 24.11 under cgroup v1; cgroup v2 needs a machine without v1.
package e2e

#!/usr/bin/env bash
# Installs or builds the tools that the tests use besides Go: tools/deps.sh [--try] TOOL...
#
# Compilers are installed with apt-get, as root or with sudo. Prometheus is unpacked into
# .deps, where the Makefile finds it: installing the package would start a server. Debian's
# version has no OTLP receiver, so prometheus3 and victoriametrics are built into .deps from the
# versions in tools/*.mod, which takes minutes once and needs only Go. kubernetes (API server,
# controllers, scheduler and kubelet) and etcd are built the same way; containerd is unpacked.
# Slurm is installed, as root, because its programs find each other by path. Debian would start
# its daemons; a policy prevents that, and the tests start them.
# A missing tool is an error unless --try is given; tests that need it are then skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.deps/usr/bin:$PATH" DEBIAN_FRONTEND=noninteractive

try=no
if [ "${1:-}" = --try ]; then
	try=yes
	shift
fi

have() {
	case $1 in
	gcc) echo '#include <stdio.h>' | gcc -fsyntax-only -xc - 2>/dev/null ;; # including the C library headers
	# The version that built the committed objects, with the headers included by bpf/.
	clang) command -v llvm-strip-14 >/dev/null && echo '#include <bpf/bpf_helper_defs.h>' | clang-14 -M -xc - >/dev/null 2>&1 ;;
	# Built from the current pins.
	prometheus3 | victoriametrics | etcd) [ -x ".deps/usr/bin/$1" ] && cmp -s "tools/$1.mod" ".deps/$1.mod" ;;
	kubernetes) [ -x .deps/usr/bin/kubelet ] && cmp -s tools/kubernetes.mod .deps/kubernetes.mod ;;
	npm) command -v node >/dev/null && command -v npm >/dev/null ;;
	containerd) command -v containerd >/dev/null && command -v runc >/dev/null ;;
	slurm)
		local program
		for program in slurmctld slurmd slurmdbd slurmrestd squeue munged mariadbd; do
			[ -x "/usr/sbin/$program" ] || [ -x "/usr/bin/$program" ] || return
		done
		;;
	*) command -v "$1" >/dev/null ;;
	esac
}

# missing prints the arguments that are not installed.
missing() {
	local tool
	for tool; do
		have "$tool" || echo "$tool"
	done
}

can_root() { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; }
root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# again retries a command up to three times: package servers and apt locks fail transiently.
again() {
	local n
	for n in 1 2 3; do
		"$@" && return
		[ "$n" = 3 ] || sleep $((n * 5))
	done
	return 1
}

update() {
	[ -e .deps/updated ] && return
	can_root || { echo "deps: apt-get needs root, or sudo without a password" >&2 && return 1; }
	again root apt-get -qq -o DPkg::Lock::Timeout=300 update && touch .deps/updated
}

install() {
	command -v apt-get >/dev/null || return
	update && again root apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "$@" >/dev/null
}

unpack() {
	command -v apt-get >/dev/null || return
	local dir=.deps/download
	rm -rf "$dir" && mkdir -p "$dir"
	if ! (cd "$dir" && apt-get -qq download "$@" 2>/dev/null); then
		update && (cd "$dir" && again apt-get -qq download "$@") || return
	fi
	local package
	for package in "$dir"/*.deb; do
		dpkg -x "$package" .deps || return
	done
	rm -r "$dir"
}

# quietly installs packages without starting their services, through a policy for invoke-rc.d.
quietly() {
	local policy=/usr/sbin/policy-rc.d made=no status=0
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && made=yes || return
	fi
	install "$@" || status=$?
	[ $made = no ] || rm -f $policy
	return $status
}

# build builds package $2 from the pins of $1. The old one goes first: if the new one cannot
# be built, tests skip rather than use it.
build() {
	mkdir -p .deps/usr/bin && rm -f ".deps/usr/bin/$1"
	CGO_ENABLED=0 again go build -modfile="tools/$1.mod" -trimpath -buildvcs=false -ldflags '-s -w' \
		-tags remove_all_sd -o ".deps/$1.new" "$2" &&
		mv ".deps/$1.new" ".deps/usr/bin/$1" && cp "tools/$1.mod" ".deps/$1.mod"
}

# kubernetes builds all its programs at once: they share most packages.
kubernetes() {
	local dir=.deps/kubernetes.new version
	# Without this the version would be v0.0.0-master.
	version=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' tools/kubernetes.mod)
	mkdir -p .deps/usr/bin && rm -rf "$dir" .deps/usr/bin/kube{let,-apiserver,-controller-manager,-scheduler} && mkdir "$dir"
	CGO_ENABLED=0 again go build -modfile=tools/kubernetes.mod -trimpath -buildvcs=false \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$dir/" \
		k8s.io/kubernetes/cmd/kube{let,-apiserver,-controller-manager,-scheduler} &&
		mv "$dir"/* .deps/usr/bin && rmdir "$dir" && cp tools/kubernetes.mod .deps/kubernetes.mod
}

get() {
	case $1 in
	gcc) install gcc libc6-dev ;;
	git) install git ;;
	clang) install clang-14 llvm-14 libbpf-dev ;;
	chromium) install chromium ;;
	npm) install nodejs npm ;;
	promtool | prometheus) unpack prometheus ;;
	prometheus3) build "$1" github.com/prometheus/prometheus/cmd/prometheus ;; # without service discovery: half the time
	victoriametrics) build "$1" github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics ;;
	kubernetes | etcd | containerd | slurm)
		# Do not build what cannot be run.
		[ "$(id -u)" = 0 ] || { echo "deps: only root can run $1" >&2 && return 1; }
		;;&
	kubernetes) kubernetes ;;
	etcd) build "$1" go.etcd.io/etcd/server/v3 ;;
	containerd) unpack containerd runc ;;
	slurm) quietly slurmctld slurmd slurmdbd slurmrestd slurm-client munge mariadb-server ;;
	*) echo "deps: unknown tool $1" >&2 && return 1 ;;
	esac
}

[ -n "$(missing "$@")" ] || exit 0
mkdir -p .deps
rm -f .deps/updated
exec 9>.deps/lock
! command -v flock >/dev/null || flock 9 # one at a time
for tool in $(missing "$@"); do
	have "$tool" || { echo "deps: getting $tool" >&2 && get "$tool"; } || true
done
left=$(missing "$@")
[ -n "$left" ] || exit 0
echo "deps: missing:" $left >&2
echo "deps: on Debian they are in the packages gcc, libc6-dev, git, clang-14, llvm-14, libbpf-dev, chromium, nodejs, npm, prometheus, containerd and runc, and those of Slurm in slurmctld, slurmd, slurmdbd, slurmrestd, slurm-client, munge and mariadb-server; elsewhere put them on PATH; prometheus3, victoriametrics, kubernetes and etcd are built with Go" >&2
if [ $try = yes ]; then
	echo "deps: tests that need them are skipped" >&2
	exit 0
fi
exit 1

#!/usr/bin/env bash
# Runs the probe suite on other kernels, each in a virtual machine: tools/kernels.sh [--short] [KERNEL...]
#
# A KERNEL is 6.1, 6.12, 6.18 or newest, on arm64 with arm64/ before it. All but 6.1 are preemptible, as the
# kernels of Ubuntu, Fedora and Arch are. Two are refused, and the machine shows that the agent says why and
# goes on: 5.10, which is too old, and one with a parameter, such as 6.12+lockdown=confidentiality. All of
# these without arguments. 5.15 is in no archive of Debian. --short runs a few tests only: eight threads that
# preempt each other in each program, every kind of argument, names, memory, waits, and what a kernel must have.
#
# They are packages of Debian's cloud images, unpacked below ${XDG_CACHE_HOME:-~/.cache}/gpumeter/kernels
# and never installed: they have BTF, uprobes and tracefs without modules. The machine is emulated (TCG)
# with one CPU: nested KVM lacks instructions, and TCG with more CPUs panics in int3. As many run at once as
# there are CPUs, or JOBS. TESTFLAGS is passed to the test binary, such as -test.run=TestCount.
#
# A kernel fails if a test does, if the kernel refuses a mode that it had, or if its console says BUG or Oops
# whatever the tests say. A kernel that the mirror does not have is an error, too. Needs root or sudo for the
# packages of qemu, busybox and, for arm64, a compiler. Prints a table.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gpumeter/kernels
work=$(mktemp -d)
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done; rm -rf "$work"' EXIT
set -m # a machine ends with its job
say() { echo "kernels: $*" >&2; }

if [ "$(uname -m)" != x86_64 ]; then
	say "other kernels are only emulated on x86_64"
	exit 1
fi
if [ "${1:-}" = --short ]; then
	TESTFLAGS="-test.short -test.run=^(TestFeatures|TestCountsAreExact|TestCopies|TestNames|TestMemory|TestBusy)\$ ${TESTFLAGS:-}"
	shift
fi
[ $# -gt 0 ] || set -- 6.1 6.12 6.18 newest arm64/6.1 arm64/6.12 arm64/newest 5.10 6.12+lockdown=confidentiality

# Of a KERNEL: its architecture, its parameter, and itself without them.
arch() { case $1 in arm64/*) echo arm64 ;; *) echo amd64 ;; esac; }
base() { local name=${1#*/}; echo "${name%%+*}"; }
parameter() { case $1 in *+*) echo "${1#*+}" ;; esac; }
refused() { [ "$(base "$1")" = 5.10 ] || [ -n "$(parameter "$1")" ]; }

# What a kernel must have; the tests of what it lacks are skipped.
features() {
	case $(base "$1") in
	6.1) echo perf,task_storage,sched,exit,exec,growing_maps ;;
	6.18) echo perf,multi,session,task_storage,sched,exit,exec,growing_maps ;;
	*) echo perf,multi,task_storage,sched,exit,exec,growing_maps ;;
	esac
}

compiler() { case $1 in arm64) echo aarch64-linux-gnu-gcc ;; *) echo gcc ;; esac; }

tools() {
	local tool arch sudo=
	[ "$(id -u)" = 0 ] || sudo=sudo
	set -- $(for arch; do
		case $arch in
		amd64) echo qemu-system-x86_64:qemu-system-x86 gcc:gcc,libc6-dev ;;
		arm64) echo qemu-system-aarch64:qemu-system-arm aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu,libc6-dev-arm64-cross ;;
		esac
	done) busybox:busybox-static cpio:cpio
	for tool; do
		command -v "${tool%%:*}" >/dev/null && continue
		say "installing ${tool#*:}"
		$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $(echo "${tool#*:}" | tr , ' ') >&2
	done
}

# fetch unpacks the newest package of an architecture and a suite whose name matches a pattern, and prints
# its name. Package lists of its own leave those of this machine alone.
fetch() {
	local arch=$1 suite=$2 pattern=$3 to=$4 mirror package apt key=/usr/share/keyrings/debian-archive-keyring.gpg dir=$cache/apt/$1-$2
	mkdir -p "$dir"/{apt.conf.d,preferences.d,state/lists/partial,cache/archives/partial}
	apt="-o Dir::Etc=$dir -o Dir::State=$dir/state -o Dir::Cache=$dir/cache -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -o APT::Architecture=$arch -o APT::Architectures=$arch -o Acquire::Languages=none -qq"
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | grep -m 1 '/debian/$')
	echo "deb [signed-by=$key] $mirror $suite main" >"$dir/sources.list"
	apt-get $apt -o Acquire::Retries=3 update >&2
	package=$(apt-cache $apt pkgnames | grep -E "$pattern" | sort -V | tail -1)
	[ -n "$package" ] || { say "the mirror has no package like $pattern in $suite for $arch" && return 1; }
	say "unpacking $package of $arch"
	mkdir -p "$work/deb/$arch"
	(cd "$work/deb/$arch" && apt-get $apt -o Acquire::Retries=3 download "$package" >&2)
	mkdir -p "$to"
	dpkg -x "$work/deb/$arch/${package}"_*.deb "$to"
	echo "$package" >"$to/package"
}

folder() { echo "$cache/$(arch "$1")/$(base "$1")"; }
image() { find "$(folder "$1")" -type f -name 'vmlinuz*' | head -1; }
version() { # boot/vmlinuz-VERSION or lib/modules/VERSION/vmlinuz
	local image
	image=$(image "$1")
	case $image in */vmlinuz) basename "$(dirname "$image")" ;; *) echo "${image##*/vmlinuz-}" ;; esac
}

# kernel downloads a kernel if necessary.
kernel() {
	local name suite
	name=$(base "$1")
	[ ! -e "$(folder "$1")/package" ] || return 0
	case $name in
	5.10) suite=bullseye ;;
	6.1) suite=bookworm ;;
	6.12) suite=bookworm-backports ;;
	newest) suite=sid ;;
	*) suite=trixie-backports ;;
	esac
	if [ "$name" = newest ]; then # the image is in a package of its own
		fetch "$(arch "$1")" $suite "^linux-binary-[0-9.]+\+deb[0-9]+-cloud-$(arch "$1")\$" "$(folder "$1")"
	else
		fetch "$(arch "$1")" $suite "^linux-image-${name//./\\.}\\.[0-9.]+[-+0-9a-z.]*-cloud-$(arch "$1")\$" "$(folder "$1")"
	fi
}

# initrd builds what all machines of an architecture have: the suite, and the fakes it uses, which are built
# here. In the machine, gcc copies them.
initrd() {
	local arch=$1 cc root=$work/$1 suite=internal/tracer/probe busybox applet prologue out lib
	cc=$(compiler "$arch")
	mkdir -p "$root"/{bin,dev,lib,lib64,proc,suite,sys,tmp}
	busybox=$(command -v busybox)
	if [ "$arch" != amd64 ]; then
		[ -e "$cache/$arch/busybox/package" ] || fetch "$arch" bookworm '^busybox-static$' "$cache/$arch/busybox"
		busybox=$cache/$arch/busybox/bin/busybox
	fi
	cp "$busybox" "$root/bin/busybox"
	for applet in cat chmod cp dmesg echo grep ip ls mkdir mount poweroff rm sh sleep tail tr true wget; do ln -s busybox "$root/bin/$applet"; done
	for lib in libc.so.6 libdl.so.2 libpthread.so.0 libgcc_s.so.1; do cp "$($cc -print-file-name=$lib)" "$root/lib/"; done # a thread that exits needs the last
	case $arch in
	amd64) cp /lib64/ld-linux-x86-64.so.2 "$root/lib64/" ;;
	arm64) cp "$($cc -print-file-name=ld-linux-aarch64.so.1)" "$root/lib/" ;;
	esac
	cat >"$root/init" <<'INIT'
#!/bin/sh
export PATH=/bin HOME=/ TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
cd /suite
sh /task
echo "=== end rc $?"
poweroff -f
INIT
	cp -r $suite/testdata $suite/kernel_*.o "$root/suite/"
	for prologue in $(sed -n 's/^var prologues = .*{\(.*\)}$/\1/p' $suite/machine_test.go | tr , '\n' | cut -d: -f1); do
		out=$root/built/$prologue
		mkdir -p "$out"
		for lib in cuda:libcuda.so.1 nccl:libnccl.so.2; do
			$cc -O1 -fPIC -shared $([ "$arch" != amd64 ] || echo -fcf-protection=none) "-DPROLOGUE=$prologue" "-Wl,-soname,${lib#*:}" -o "$out/${lib#*:}" "$suite/testdata/${lib%%:*}.c" -lpthread
		done
		$cc -O1 -o "$out/work" $suite/testdata/work.c "$out/libcuda.so.1" "$out/libnccl.so.2" -lpthread '-Wl,-rpath,$ORIGIN'
	done
	cat >"$root/bin/gcc" <<'GCC'
#!/bin/sh
while [ $# -gt 0 ]; do
	case $1 in
	-DPROLOGUE=*) echo "${1#*=}" >/tmp/prologue ;; # the program is linked with the library before it
	-o) out=$2 ;;
	esac
	shift
done
cp "/built/$(cat /tmp/prologue)/${out##*/}" "$out"
GCC
	chmod +x "$root/init" "$root/bin/gcc"
	CGO_ENABLED=0 GOARCH=$arch go test -c -o "$root/suite/probe.test" ./$suite
	pack "$root" >"$work/$arch.initrd"
}

pack() { (cd "$1" && find . | cpio -o -H newc --quiet | gzip -1); }

# task writes what a machine does, as one more part of its initrd.
task() {
	local name=$1 to=$2 why
	mkdir -p "$to/bin"
	if ! refused "$name"; then
		echo "GPUMETER_REQUIRE=$(features "$name") ./probe.test -test.v -test.timeout=40m$(printf " '%s'" ${TESTFLAGS:-})" >"$to/task"
		return
	fi
	case $name in
	*lockdown*) why='lockdown=confidentiality' ;;
	*) why='5.15 or later is required' ;;
	esac
	CGO_ENABLED=0 GOARCH=$(arch "$name") go build -trimpath -o "$to/bin/gpumeter" ./cmd/gpumeter
	cat >"$to/task" <<-TASK
		# The suite says why, and so do the agent, which goes on, and the command.
		fail() { echo "FAILED: \$1"; tail -n 30 /tmp/log /tmp/trace; exit 1; }
		GPUMETER_REQUIRE=refusal ./probe.test -test.v -test.run=TestRefusedHere || fail suite
		gpumeter agent --trace --interval 1s --listen 127.0.0.1:9400 --state-dir /tmp/state --no-cloud 2>/tmp/log &
		agent=\$!
		until wget -q -O /tmp/page http://127.0.0.1:9400/metrics && grep '^gpumeter_tracer_up.* 0\$' /tmp/page; do
			kill -0 \$agent || fail agent
			sleep 1
		done
		grep -m 1 'cannot trace.*$why' /tmp/log || fail log
		gpumeter trace --duration 1s >/tmp/trace 2>&1 && fail command
		grep -m 1 'cannot trace.*$why' /tmp/trace || fail message
		kill -0 \$agent
	TASK
}

# machine runs a kernel, and prints its row of the table.
machine() {
	local name=$1 dir=$2 arch log=$cache/${1/\//-}.log cpu=max result=ok qemu
	arch=$(arch "$name")
	cat "$work/$arch.initrd" "$dir/initrd" >"$dir/whole"
	case $name in 6.1 | 6.12*) cpu=max,-cx16 ;; esac # 6.12 now and then panics in TCG's cmpxchg16b. Later ones have no task storage without it.
	case $arch in
	amd64) qemu="qemu-system-x86_64 -cpu $cpu" console=ttyS0 ;;
	arm64) qemu="qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on" console=ttyAMA0 ;;
	esac
	timeout 3000 $qemu -accel tcg -smp 1 -m 3072 -nographic -no-reboot -nodefaults -serial stdio -kernel "$(image "$name")" -initrd "$dir/whole" \
		-append "console=$console quiet oops=panic panic=-1 $(parameter "$name")" 2>&1 </dev/null | tr -d '\r' >"$log" || true
	rm -f "$dir/whole"
	grep -q '^=== end rc 0' "$log" || result="failed, see $log"
	grep -q '^ *--- PASS:' "$log" || result="nothing passed, see $log"
	! grep -qE 'BUG:|Oops|Kernel panic' "$log" || result="THE KERNEL WAS HURT, see $log"
	count() { grep -cE "^ *--- $1:" "$log" || true; }
	printf '%-30s %-28s %6s %7s %7s %8s  %s\n' "$name" "$(version "$name")" "$(count PASS)" "$(count SKIP)" "$(count FAIL)" "$((SECONDS / 60))m$((SECONDS % 60))s" "$result"
}

archs=$(for name; do arch "$name"; done | sort -u)
tools $archs
for name; do kernel "$name"; done
for arch in $archs; do initrd "$arch"; done
n=0
for name; do
	n=$((n + 1))
	mkdir -p "$work/$n"
	task "$name" "$work/$n/root"
	pack "$work/$n/root" >"$work/$n/initrd"
	while [ "$(jobs -pr | wc -l)" -ge "${JOBS:-$(nproc)}" ]; do wait -n; done
	(SECONDS=0 && machine "$name" "$work/$n" >"$work/$n/row") &
done
wait
printf '%-30s %-28s %6s %7s %7s %8s  %s\n' kernel version passed skipped failed took result
cat $(seq -f "$work/%g/row" $n)
! cat $(seq -f "$work/%g/row" $n) | grep -qv ' ok$'

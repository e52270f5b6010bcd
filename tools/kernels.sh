#!/usr/bin/env bash
# Runs the probe suite on other kernels, each in a virtual machine: tools/kernels.sh [KERNEL...]
#
# A KERNEL is 6.1, 6.12, 6.18 or newest, all but the first preemptible as the kernels of Ubuntu, Fedora and Arch
# are; or one with a parameter, such as 6.12+lockdown=confidentiality, for which only TestLockedDown runs; all
# five without arguments. They are packages of Debian's cloud images, unpacked below
# ${XDG_CACHE_HOME:-~/.cache}/gpumeter/kernels and never installed: they have BTF, uprobes and
# tracefs without modules. The machine is emulated (TCG) with one CPU: nested KVM lacks instructions, and
# TCG with more CPUs panics in int3. TESTFLAGS is passed to the test binary, such as -test.run=TestCount.
#
# A kernel fails if a test does, or if its console says BUG or Oops whatever the tests say. Needs root or
# sudo for the packages of qemu and busybox. Prints a table.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gpumeter/kernels
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "kernels: $*" >&2; }

if [ "$(uname -m)" != x86_64 ]; then
	say "only x86_64 is emulated so far"
	exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio gcc:gcc; do
	command -v "${tool%%:*}" >/dev/null || $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${tool#*:}" libc6-dev >&2
done

# A package list of its own leaves that of this machine alone.
apt="-o Dir::Etc=$cache/apt -o Dir::State=$cache/apt/state -o Dir::Cache=$cache/apt/cache -o APT::Sandbox::User=root -qq"
lists() {
	[ -e "$work/lists" ] && return
	local mirror key=/usr/share/keyrings/debian-archive-keyring.gpg
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | grep -m 1 '/debian/$')
	mkdir -p "$cache/apt"/{apt.conf.d,preferences.d,state/lists/partial,cache/archives/partial}
	for suite in bookworm bookworm-backports trixie-backports sid; do
		echo "deb [arch=amd64 signed-by=$key] $mirror $suite main"
	done >"$cache/apt/sources.list"
	apt-get $apt -o Dir::State::status=/dev/null update >&2
	touch "$work/lists"
}

# kernel prints the image of a kernel, and downloads it first if necessary.
kernel() {
	local pattern package image
	case $1 in
	newest) pattern='^linux-binary-[0-9.]+\+deb[0-9]+-cloud-amd64$' ;;
	*) pattern="^linux-image-${1//./\\.}\\.[0-9.]+[-+0-9a-z.]*-cloud-amd64\$" ;;
	esac
	image=$(find "$cache/$1" -name 'vmlinuz*' 2>/dev/null | head -1)
	if [ -z "$image" ]; then
		lists
		package=$(apt-cache $apt -o Dir::State::status=/dev/null pkgnames linux- | grep -E "$pattern" | sort -V | tail -1)
		[ -n "$package" ] || { say "the mirror has no kernel $1" && return 1; }
		say "unpacking $package"
		(cd "$work" && apt-get $apt -o Dir::State::status=/dev/null download "$package" >&2)
		mkdir -p "$cache/$1"
		dpkg -x "$work/${package}"_*.deb "$cache/$1"
		image=$(find "$cache/$1" -name 'vmlinuz*' | head -1)
	fi
	echo "$image"
}

# The first process: the suite is the command line's RUN, with @ for blanks.
root=$work/root
mkdir -p "$root"/{bin,dev,lib64,proc,suite,sys,tmp} "$root/lib/x86_64-linux-gnu"
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in cat chmod cp dmesg echo ls mkdir mount poweroff rm sh sleep tr true; do ln -s busybox "$root/bin/$applet"; done
cp /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp /lib/x86_64-linux-gnu/{libc.so.6,libgcc_s.so.1} "$root/lib/x86_64-linux-gnu/" # a thread that exits needs the latter
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
for word in $(cat /proc/cmdline); do
	case $word in RUN=*) run=$(echo "${word#RUN=}" | tr @ ' ') ;; esac
done
cd /suite
sh -c "$run"
echo "=== end rc $?"
poweroff -f
INIT

# The tests compile their fakes. In the machine, gcc copies those that were built here.
suite=internal/tracer/probe
cp -r $suite/testdata $suite/kernel_*.o "$root/suite/"
for prologue in $(sed -n 's/^var prologues = .*{\(.*\)}$/\1/p' $suite/machine_test.go | tr , '\n' | cut -d: -f1); do
	out=$root/built/$prologue
	mkdir -p "$out"
	for lib in cuda:libcuda.so.1 nccl:libnccl.so.2; do
		gcc -O1 -fPIC -shared -fcf-protection=none "-DPROLOGUE=$prologue" "-Wl,-soname,${lib#*:}" -o "$out/${lib#*:}" "$suite/testdata/${lib%%:*}.c" -lpthread
	done
	gcc -O1 -o "$out/work" $suite/testdata/work.c "$out/libcuda.so.1" "$out/libnccl.so.2" -lpthread '-Wl,-rpath,$ORIGIN'
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
CGO_ENABLED=0 go test -c -o "$root/suite/probe.test" ./$suite
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

failed=no
[ $# -gt 0 ] || set -- 6.1 6.12 6.18 newest 6.12+lockdown=confidentiality
printf '%-30s %-28s %6s %7s %7s  %s\n' kernel version passed skipped failed result
for name in "$@"; do
	base=${name%%+*} parameter=${name#"${name%%+*}"}
	image=$(kernel "$base")
	log=$cache/$name.log
	cpu=max
	# 6.12 now and then panics in TCG's cmpxchg16b. Later ones have no task storage without it.
	case $base in 6.1 | 6.12) cpu=max,-cx16 ;; esac
	run="./probe.test -test.v -test.timeout=20m ${TESTFLAGS:-}"
	[ -z "$parameter" ] || run="./probe.test -test.v -test.run=TestLockedDown"
	timeout 1500 qemu-system-x86_64 -accel tcg -cpu "$cpu" -smp 1 -m 3072 -nographic -no-reboot -nodefaults -serial stdio -kernel "$image" -initrd "$work/initrd" \
		-append "console=ttyS0 quiet oops=panic panic=-1 ${parameter#+} RUN=${run// /@}" 2>&1 </dev/null | tr -d '\r' >"$log" || true
	result=ok
	grep -q '^=== end rc 0' "$log" || result="failed, see $log"
	! grep -qE 'BUG:|Oops' "$log" || result="THE KERNEL WAS HURT, see $log"
	grep -q '^ *--- PASS:' "$log" || result="nothing passed, see $log"
	[ "$result" = ok ] || failed=yes
	count() { grep -cE "^ *--- $1:" "$log" || true; }
	version=${image##*/vmlinuz-}
	[ "$version" != "$image" ] || version=$(basename "$(dirname "$image")")
	printf '%-30s %-28s %6s %7s %7s  %s\n' "$name" "$version" "$(count PASS)" "$(count SKIP)" "$(count FAIL)" "$result"
done
[ $failed = no ]

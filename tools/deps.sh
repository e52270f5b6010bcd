#!/usr/bin/env bash
# Gets what the tests use beside Go: tools/deps.sh [--try] TOOL...
#
# A compiler is installed with apt-get, by root or with sudo. Prometheus is unpacked into
# .deps, where the Makefile finds it: installing it would start a server on this machine.
# What cannot be had is said, and is an error unless --try is given; tests then skip.
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
	gcc) echo '#include <stdio.h>' | gcc -fsyntax-only -xc - 2>/dev/null ;; # and the C library's headers
	*) command -v "$1" >/dev/null ;;
	esac
}

# missing prints those of its arguments that are not here.
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

# again runs a command up to three times: package servers and other apt-gets come and go.
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
	update && again root apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "$@" >/dev/null
}

unpack() {
	local dir=.deps/download
	rm -rf "$dir" && mkdir -p "$dir"
	if ! (cd "$dir" && apt-get -qq download "$1" 2>/dev/null); then
		update && (cd "$dir" && again apt-get -qq download "$1") || return
	fi
	dpkg -x "$dir"/*.deb .deps && rm -r "$dir"
}

get() {
	case $1 in
	gcc) install gcc libc6-dev ;;
	git) install git ;;
	promtool | prometheus) unpack prometheus ;;
	*) echo "deps: do not know how to get $1" >&2 && return 1 ;;
	esac
}

[ -n "$(missing "$@")" ] || exit 0
if command -v apt-get >/dev/null; then
	mkdir -p .deps
	rm -f .deps/updated
	exec 9>.deps/lock
	! command -v flock >/dev/null || flock 9 # one at a time
	for tool in $(missing "$@"); do
		have "$tool" || { echo "deps: getting $tool" >&2 && get "$tool"; } || true
	done
fi
left=$(missing "$@")
[ -n "$left" ] || exit 0
echo "deps: missing:" $left >&2
echo "deps: on Debian they are in the packages gcc, libc6-dev, git and prometheus; elsewhere put them on PATH" >&2
if [ $try = yes ]; then
	echo "deps: tests that need them are skipped" >&2
	exit 0
fi
exit 1

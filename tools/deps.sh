#!/usr/bin/env bash
# Installs or builds the tools that the tests use besides Go: tools/deps.sh [--try] TOOL...
#
# Compilers are installed with apt-get, as root or with sudo. Prometheus and containerd are unpacked
# and not installed: installing them would start servers on this machine. Debian's Prometheus has no
# OTLP receiver, so prometheus3 and victoriametrics are built from the versions in tools/*.mod, which
# needs only Go. So are jaeger (a store of traces), kubernetes (its API server, controllers, scheduler and kubelet), etcd, llmdsim
# (an inference engine without a model, which has the metrics of vLLM), epp (the endpoint picker of the
# Gateway API inference extension, with the definitions of its resources), promadapter (the Prometheus
# adapter), kueue, volcano, kai, koordinator and yunikorn (queueing systems, with the definitions of their
# resources), jobset, lws and kuberay (what makes pods in groups, with the same), ksm (kube-state-metrics) and dradriver (a driver
# whose GPUs pods claim). That takes minutes, once for all clones of this user: the results are in
# ${XDG_CACHE_HOME:-~/.cache}/gpumeter/tools, by architecture and by the hash of the pinned
# version, and .deps/usr/bin links to them. Delete that folder to get the disk space back.
# llamacpp, the server of llama.cpp, is unpacked from a newer Debian with the C library it needs, and is not
# pinned: that Debian keeps one version only.
# Slurm is installed, as root, because its programs find each other by path. Debian would start
# its daemons; a policy prevents that, and the tests start them.
# A missing tool is an error unless --try is given; tests that need it are then skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.deps/usr/bin
export PATH="$PWD/$bin:$PATH" DEBIAN_FRONTEND=noninteractive
newer=forky # the Debian that has llama.cpp
cache=${GPUMETER_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gpumeter/tools}

try=no
if [ "${1:-}" = --try ]; then
	try=yes
	shift
fi

say() { echo "deps: $*" >&2; }
elapsed() { printf '%dm%02ds' $((SECONDS / 60)) $((SECONDS % 60)); }

# programs prints what a tool that is built or unpacked has, nothing for one that is installed.
programs() {
	case $1 in
	prometheus3 | victoriametrics | jaeger | etcd | llmdsim | epp | promadapter | kueue | ksm | yunikorn | koordinator | jobset | lws | kuberay) echo "$1" ;;
	llamacpp) echo llama-server ;;
	kubernetes) echo kubelet kube-apiserver kube-controller-manager kube-scheduler ;;
	volcano) echo volcano-scheduler volcano-controller-manager ;;
	kai) echo kai-scheduler kai-binder kai-podgroupcontroller kai-queuecontroller ;;
	dradriver) echo dra-example-kubeletplugin ;;
	promtool | prometheus) echo prometheus promtool ;;
	containerd) echo containerd containerd-shim-runc-v2 ctr runc ;;
	esac
}

# entry prints the folder of the cache in which the programs of a tool are, or will be.
entry() {
	local key
	case $1 in
	promtool | prometheus | containerd) key=$(. /etc/os-release 2>/dev/null && echo "$ID-${VERSION_ID:-}") ;; # not pinned: what the distribution has
	llamacpp) key=$newer ;;
	*) key=$(cat "tools/$1.mod" "tools/$1.sum" | sha256sum | cut -c 1-16) ;;
	esac
	[ "$1" != promtool ] || set -- prometheus # one package
	echo "$cache/$1/$(uname -m)-$key"
}

# linked reports whether .deps has the programs of a tool, and links to them if the cache has.
linked() {
	local dir program
	dir=$(entry "$1")
	[ -d "$dir" ] || return
	mkdir -p "$bin"
	for program in $(programs "$1"); do
		[ -x "$dir/$program" ] || return
		[ "$(readlink "$bin/$program")" = "$dir/$program" ] || ln -sfn "$dir/$program" "$bin/$program"
	done
}

have() {
	case $1 in
	gcc) echo '#include <stdio.h>' | gcc -fsyntax-only -xc - 2>/dev/null ;; # including the C library headers
	# The version that built the committed objects, with the headers included by bpf/.
	clang) command -v llvm-strip-14 >/dev/null && echo '#include <bpf/bpf_helper_defs.h>' | clang-14 -M -xc - >/dev/null 2>&1 ;;
	# Built from the current pins.
	prometheus3 | victoriametrics | jaeger | etcd | kubernetes | llmdsim | epp | promadapter | kueue | volcano | kai | dradriver | ksm | yunikorn | koordinator | jobset | lws | kuberay) linked "$1" ;;
	# Installed on the machine, or unpacked.
	promtool | prometheus) command -v "$1" >/dev/null || linked "$1" ;;
	llamacpp) command -v llama-server >/dev/null || linked "$1" ;;
	containerd) { command -v containerd && command -v runc; } >/dev/null || linked "$1" ;;
	npm) command -v node >/dev/null && command -v npm >/dev/null ;;
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

# takes prints about how long it takes to get a tool, on two cores with nothing in Go's cache.
takes() {
	case $1 in
	kubernetes) echo 'about 10 minutes' ;;
	kueue | kai) echo 'about 5 minutes' ;;
	prometheus3 | jaeger | llmdsim | promadapter | volcano | yunikorn | koordinator) echo 'about 4 minutes' ;;
	victoriametrics | etcd | epp | dradriver | ksm | slurm | chromium | jobset | lws | kuberay) echo 'about 2 minutes' ;;
	*) echo 'less than a minute' ;;
	esac
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
	can_root || { say "apt-get needs root, or sudo without a password" && return 1; }
	again root apt-get -qq -o DPkg::Lock::Timeout=300 update && touch .deps/updated
}

install() {
	command -v apt-get >/dev/null || return
	update && again root apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "$@" >/dev/null
}

# unpack puts the programs of Debian packages into a folder.
unpack() {
	command -v apt-get >/dev/null || return
	local to=$1 dir=$1/.download package
	shift
	mkdir -p "$dir"
	if ! (cd "$dir" && apt-get -qq download "$@" 2>/dev/null); then
		update && (cd "$dir" && again apt-get -qq download "$@") || return
	fi
	for package in "$dir"/*.deb; do
		dpkg -x "$package" "$dir/root" || return
	done
	find "$dir/root/usr/bin" "$dir/root/usr/sbin" -type f -perm -100 -exec mv -t "$to" {} + 2>/dev/null || [ -d "$dir/root/usr/bin" ] && rm -r "$dir"
}

# llamacpp unpacks the server of llama.cpp, whatever Debian this machine has. The system's own loader would
# use libraries that are too old: the program is started with the loader it came with, a copy named like it,
# because that is the name of the process.
llamacpp() {
	command -v apt-get >/dev/null || return
	local to=$1 apt=$1/.download package library backend mirror
	# From wherever this machine gets its Debian.
	mirror=$(apt-get indextargets --no-release-info --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$(. /etc/os-release && echo "${VERSION_CODENAME:-}") //p" | head -n 1)
	[ -n "$mirror" ] || return
	mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$to/loader"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $newer main" >"$apt/sources.list"
	# An empty status: apt-get finds all that the server depends on, whatever is installed here.
	set -- -qq -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$apt/lists" -o Dir::State::status=/dev/null \
		-o Dir::Cache="$apt" -o Debug::NoLocking=1 -o APT::Sandbox::User= -o Acquire::Languages=none
	again apt-get "$@" update || return
	again apt-get "$@" -y --no-install-recommends --download-only install llama.cpp-tools >/dev/null || return
	for package in "$apt"/archives/*.deb; do
		dpkg -x "$package" "$apt/root" || return
	done
	library=$(dirname "$apt"/root/usr/lib/*/libc.so.6) # of this architecture
	mv "$apt/root/usr/bin/llama-server" "$library" "$to/" || return
	library=$to/$(basename "$library")
	mv "$library" "$to/lib" && cp "$to"/lib/ld-linux-*.so.* "$to/loader/llama-server" || return
	rm -r "$apt"
	# The backend that runs everywhere: the others are found only where the package is installed.
	backend=$(ls "$to"/lib/ggml/backends*/libggml-cpu*.so | grep -e -x64.so -e 'cpu[^-]*.so' -e armv8.0 | head -n 1)
	mv "$to/llama-server" "$to/program" || return
	cat >"$to/llama-server" <<-EOF
		#!/bin/sh
		here=\$(dirname "\$(readlink -f "\$0")")
		export GGML_BACKEND_PATH="\$here/lib${backend#"$to/lib"}"
		exec "\$here/loader/llama-server" --library-path "\$here/lib:\$here/lib/llama" --argv0 llama-server "\$here/program" "\$@"
	EOF
	chmod 755 "$to/llama-server" && "$to/llama-server" --version >/dev/null 2>&1
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

# build builds package $2 from the pins of $1 into the folder $3, under the name $4 or else that of the tool.
build() {
	CGO_ENABLED=0 again go build -modfile="tools/$1.mod" -trimpath -buildvcs=false -ldflags '-s -w' \
		-tags remove_all_sd -o "$3/${4:-$1}" "$2"
}

# definitions puts what the folder $3 of module $2 defines for an API server, by the pins of $1, into the folder $4.
definitions() {
	local dir
	dir=$(go list -modfile="tools/$1.mod" -m -f '{{.Dir}}' "$2") && mkdir -p "$4" && cp "$dir/$3"/*.yaml "$4/" && chmod 644 "$4"/*.yaml
}

# kubernetes builds all its programs at once: they share most packages.
kubernetes() {
	local version
	# Without this the version would be v0.0.0-master.
	version=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' tools/kubernetes.mod)
	CGO_ENABLED=0 again go build -modfile=tools/kubernetes.mod -trimpath -buildvcs=false \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$1/" \
		k8s.io/kubernetes/cmd/kube{let,-apiserver,-controller-manager,-scheduler}
}

# epp builds the endpoint picker, and puts the definitions of its resources beside it.
epp() {
	local module=sigs.k8s.io/gateway-api-inference-extension
	build epp $module/cmd/epp "$1" && definitions epp $module config/crd/bases "$1"
}

# kueue also has webhooks, without which it does not learn of pods.
kueue() {
	local module=sigs.k8s.io/kueue
	build kueue $module/cmd/kueue "$1" && definitions kueue $module config/components/crd/bases "$1" &&
		definitions kueue $module config/components/webhook "$1/webhook"
}

volcano() {
	local module=volcano.sh/volcano
	build volcano $module/cmd/scheduler "$1" volcano-scheduler && build volcano $module/cmd/controller-manager "$1" volcano-controller-manager &&
		definitions volcano $module config/crd/volcano/bases "$1"
}

# kai builds the scheduler, which only decides, the binder, which does what was decided, and those that count it.
kai() {
	local module=github.com/NVIDIA/KAI-scheduler program
	for program in scheduler binder podgroupcontroller queuecontroller; do
		build kai $module/cmd/$program "$1" kai-$program || return
	done
	definitions kai $module deployments/kai-scheduler/crds "$1"
}

koordinator() {
	local module=github.com/koordinator-sh/koordinator
	build koordinator $module/cmd/koord-scheduler "$1" && definitions koordinator $module config/crd/bases "$1"
}

# jobset and lws do not work without the defaults of their webhooks.
jobset() {
	local module=sigs.k8s.io/jobset
	build jobset $module "$1" && definitions jobset $module config/components/crd/bases "$1" && definitions jobset $module config/components/webhook "$1/webhook"
}

lws() {
	local module=sigs.k8s.io/lws
	build lws $module/cmd "$1" && definitions lws $module config/crd/bases "$1" && definitions lws $module config/webhook "$1/webhook"
}

kuberay() {
	local module=github.com/ray-project/kuberay/ray-operator
	build kuberay $module "$1" && definitions kuberay $module config/crd/bases "$1"
}

# fill puts the programs of a tool into a folder.
fill() {
	case $1 in
	promtool | prometheus) unpack "$2" prometheus ;;
	containerd) unpack "$2" containerd runc ;;
	prometheus3) build "$1" github.com/prometheus/prometheus/cmd/prometheus "$2" ;; # without service discovery: half the time
	victoriametrics) build "$1" github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics "$2" ;;
	jaeger) build "$1" github.com/jaegertracing/jaeger/cmd/all-in-one "$2" ;;
	kubernetes) kubernetes "$2" ;;
	llmdsim) build "$1" github.com/llm-d/llm-d-inference-sim/cmd/llm-d-inference-sim "$2" ;;
	epp | kueue | volcano | kai | koordinator | jobset | lws | kuberay) "$1" "$2" ;;
	ksm) build "$1" k8s.io/kube-state-metrics/v2 "$2" ;;
	yunikorn) build "$1" github.com/apache/yunikorn-k8shim/pkg/cmd/shim "$2" ;;
	dradriver) build "$1" sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin "$2" dra-example-kubeletplugin ;;
	promadapter) build "$1" sigs.k8s.io/prometheus-adapter/cmd/adapter "$2" ;;
	llamacpp) llamacpp "$2" ;;
	etcd) build "$1" go.etcd.io/etcd/server/v3 "$2" ;;
	esac
}

# cached fills an entry of the cache, whole or not at all: it gets its name when all of it is there.
# Another clone may want the same entry: one makes it, and the other finds it made.
cached() (
	dir=$(entry "$1")
	mkdir -p "$(dirname "$dir")"
	exec 8>"$(dirname "$dir")/lock"
	! command -v flock >/dev/null || flock -n 8 || { say "waiting for another run that gets $1" && flock 8; }
	linked "$1" && exit
	rm -rf "$(dirname "$dir")"/new.* "$dir" # what a run that was killed left
	new=$(mktemp -d "$(dirname "$dir")/new.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	fill "$1" "$new" && chmod 755 "$new" && mv "$new" "$dir" && linked "$1"
)

get() {
	case $1 in
	gcc) install gcc libc6-dev ;;
	git) install git ;;
	clang) install clang-14 llvm-14 libbpf-dev ;;
	chromium) install chromium ;;
	npm) install nodejs npm ;;
	kubernetes | etcd | containerd | slurm | kueue | volcano | kai | dradriver | ksm | yunikorn | koordinator | jobset | lws | kuberay)
		# Do not build what cannot be run.
		[ "$(id -u)" = 0 ] || { say "only root can run $1" && return 1; }
		;;&
	slurm) quietly slurmctld slurmd slurmdbd slurmrestd slurm-client munge mariadb-server ;;
	promtool | prometheus | prometheus3 | victoriametrics | jaeger | kubernetes | etcd | containerd | llmdsim | epp | promadapter | llamacpp | kueue | volcano | kai | dradriver | ksm | yunikorn | koordinator | jobset | lws | kuberay) cached "$1" ;;
	*) say "unknown tool $1" && return 1 ;;
	esac
}

# watched runs a command and says every half a minute that it still runs.
watched() {
	local what=$1 status=0 clock
	shift
	(while sleep 30; do say "[$(elapsed)] still getting $what"; done) &
	clock=$!
	"$@" || status=$?
	kill $clock 2>/dev/null
	wait $clock 2>/dev/null || true
	return $status
}

todo=$(missing "$@")
[ -n "$todo" ] || exit 0
mkdir -p .deps
rm -f .deps/updated
exec 9>.deps/lock
! command -v flock >/dev/null || flock 9 # one at a time
for tool in $todo; do
	say "to get: $tool, $(takes "$tool") if nothing of it is cached"
done
for tool in $todo; do
	have "$tool" && continue
	say "[$(elapsed)] getting $tool"
	watched "$tool" get "$tool" 9>&- || true
	! have "$tool" || say "[$(elapsed)] has $tool"
done
left=$(missing "$@")
[ -n "$left" ] || exit 0
say "missing:" $left
say "on Debian they are in the packages gcc, libc6-dev, git, clang-14, llvm-14, libbpf-dev, chromium, nodejs, npm, prometheus, containerd and runc, and those of Slurm in slurmctld, slurmd, slurmdbd, slurmrestd, slurm-client, munge and mariadb-server; elsewhere put them on PATH; prometheus3, victoriametrics, jaeger, kubernetes, etcd, llmdsim, epp, promadapter, kueue, volcano, kai, koordinator, yunikorn, jobset, lws, kuberay, ksm and dradriver are built with Go; llamacpp is the package llama.cpp-tools of Debian's $newer"
if [ $try = yes ]; then
	say "tests that need them are skipped"
	exit 0
fi
exit 1

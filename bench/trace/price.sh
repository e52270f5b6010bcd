#!/usr/bin/env bash
# The price of tracing, in four minutes: the agent's memory in its first minute, a training that is bound by
# launches, and single calls, each with and without tracing in turns, beside the floor: a program that does
# nothing. On a machine with an NVIDIA GPU, nvcc and PyTorch.
# Usage, as root: price.sh GPUMETER FOLDER [PROBE_TEST [TURNS]]. PROBE_TEST is go test -c ./internal/tracer/probe.
set -uo pipefail
gpumeter=$1 out=$2 probe=${3:-} turns=${4:-10} here=$(dirname "$0") socket=$2/socket
mkdir -p "$out"
rm -rf "$out/state" "$socket"
trap 'kill $(jobs -p) 2>/dev/null' EXIT
echo "== $(date -I), Linux $(uname -r), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), $(nproc) CPUs, $("$gpumeter" --version 2>/dev/null)"
nvcc -O2 -o "$out/percall" "$here/percall.cu" && strip "$out/percall"

"$gpumeter" agent --trace --interval 10s --state-dir "$out/state" --listen localhost:9400 --socket "$socket" --no-cloud --no-standby 2>"$out/agent.log" & agent=$!
trace() { "$gpumeter" trace "--$1" --socket "$socket" >/dev/null || { echo "cannot $1 tracing"; exit 1; }; }
page() { curl -s localhost:9400/metrics | awk -v name="$1" '$1 ~ "^" name "[{ ]" { sum += $NF } END { printf "%d", sum }'; }
for second in $(seq 60); do # with a load that is traced from its start
	sleep 1
	awk -v s="$second" '/^(VmRSS|RssAnon|RssFile|VmHWM)/ { v[$1] = $2 / 1024 } END { print s, v["VmRSS:"], v["RssAnon:"], v["RssFile:"], v["VmHWM:"] }' "/proc/$agent/status"
done >"$out/memory" & sampler=$!
until [ -S "$socket" ]; do sleep 0.1; done
taskset -c 2,3 python3 "$here/train.py" $((70 + 14 * turns)) 16 >"$out/train" & training=$!
wait $sampler
awk '{ if ($2 > max) { max = $2; at = $1 } anon = $3; file = $4; rss = $2; high = $5 } END {
	printf "== the agent in its first minute: RSS at most %.1f MB at %d s (VmHWM %.1f), at the end %.1f MB: %.1f anonymous, %.1f of files\n", max, at, high, rss, anon, file }' "$out/memory"
awk '/^[0-9a-f]+-[0-9a-f]+ / { name = NF > 5 ? $6 : "anonymous"; n = split(name, p, "/"); name = p[n] } /^Rss:/ { rss[name] += $2 } /^Anonymous:/ { anon[name] += $2 }
	END { for (name in rss) if (rss[name] > 512) printf "%.1f MB (%.1f anonymous) %s; ", rss[name] / 1024, anon[name] / 1024, name; print "" }' "/proc/$agent/smaps"
awk '$1 % 5 == 1 { printf "%d s %.1f MB; ", $1, $2 } END { print "" }' "$out/memory"

echo "== the training, batch 16: steps/s without and with tracing, in turns"
rate() { # over five seconds, one after now
	sleep 1.2
	local from
	from=$(wc -l <"$out/train")
	sleep 5
	tail -n +$((from + 1)) "$out/train" | awk '/steps/ { sum += $2; n++ } END { printf "%.3f", n ? sum / n : 0 }'
}
: >"$out/turns"
for turn in $(seq "$turns"); do
	trace stop
	without=$(rate)
	trace start
	with=$(rate)
	echo "$turn $without $with" | tee -a "$out/turns"
done
awk '$3 > 0 { print $2 / $3 - 1 }' "$out/turns" | sort -g | awk '{ v[NR] = 100 * $1 } END {
	m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
	printf "slower by %.1f %%: median of %d turns, %.1f to %.1f; the middle half %.1f to %.1f\n", m, NR, v[1], v[NR], v[int((NR + 3) / 4)], v[int((3 * NR + 3) / 4)] }'
echo "launches counted $(page gpu_cuda_kernel_launches_total); losses: $(curl -s localhost:9400/metrics | grep '^gpumeter_tracer_losses' | sed 's/.*reason="\([^"]*\)".* /\1 /' | tr '\n' ';')"
awk '/^(VmRSS|RssAnon|RssFile|VmHWM)/ { printf "%s %.1f MB; ", $1, $2 / 1024 } END { print "" }' "/proc/$agent/status"
kill $training 2>/dev/null

echo "== a call, in ns: minimum and median over 200 batches of 400 calls, on one CPU, in turns"
library=$(ldconfig -p | awk '/libcuda.so.1.*x86-64/ { print $NF; exit }')
for round in $(seq 7); do
	trace stop
	taskset -c 4 "$out/percall" | sed "s/^/none /"
	[ -z "$probe" ] || taskset -c 4 "$probe" -test.run xxx -test.bench Floor -test.benchtime 1x -library "$library" -program "$out/percall" | grep '^floor'
	trace start
	sleep 0.5
	taskset -c 4 "$out/percall" | sed "s/^/traced /"
done >"$out/calls"
awk '{ k = $1 " " $2; n[k]++; lo[k, n[k]] = $4; v[k, n[k]] = $6 }
function median(a, k, i, j, t, m) { m = n[k]; for (i = 1; i <= m; i++) s[i] = a[k, i]; for (i = 1; i <= m; i++) for (j = i + 1; j <= m; j++) if (s[j] < s[i]) { t = s[i]; s[i] = s[j]; s[j] = t } return s[int((m + 1) / 2)] }
END { split("launch copy sync", calls, " "); split("none floor traced floor1", kinds, " ")
	for (c = 1; c <= 3; c++) { base = median(v, "none " calls[c])
		for (i = 1; i <= 4; i++) { k = kinds[i] " " calls[c]; if (!n[k]) continue
			all = ""; for (j = 1; j <= n[k]; j++) all = all " " v[k, j]
			printf "%-7s %-7s median %5d, added %+5d; minimum %5d; rounds%s\n", calls[c], kinds[i], median(v, k), median(v, k) - base, median(lo, k), all } } }' "$out/calls"

#!/usr/bin/env bash
# What tracing costs, beside what it counts, on a machine with an NVIDIA GPU, nvcc and PyTorch.
# Usage, as root: cost.sh GPUMETER FOLDER. It takes five minutes.
set -uo pipefail
gpumeter=$1 out=$2 here=$(dirname "$0")
trap 'kill $(jobs -p) 2>/dev/null' EXIT
nvcc -O2 -o "$out/percall" "$here/percall.cu" && strip "$out/percall"
trace() { "$gpumeter" agent --trace --interval 10s --state-dir "$out/state" --listen localhost:9400 --no-cloud 2>>"$out/agent.log" & agent=$!; sleep 6; }
memory() { grep -E 'VmHWM|VmRSS|RssAnon|RssFile' "/proc/$agent/status" | tr -s '\n\t ' ' '; echo; }
end() { kill "$agent"; wait "$agent"; } 2>/dev/null

for round in 1 2 3; do
	echo "== $round, not traced"; taskset -c 4 "$out/percall"
	trace; echo "== $round, traced"; taskset -c 4 "$out/percall"; end
done
for round in 1 2; do
	echo "== $round, not traced"; taskset -c 2,3 python3 "$here/train.py" 15 16 | tail -1; taskset -c 2,3 python3 "$here/train.py" 15 64 | tail -1
	trace; echo "== $round, traced"; taskset -c 2,3 python3 "$here/train.py" 15 16 | tail -1; memory; taskset -c 2,3 python3 "$here/train.py" 15 64 | tail -1
	memory; ps -o cputime=,etimes= -p "$agent"; end
done
"$gpumeter" trace --json --interval 2s >"$out/trace.json" & agent=$!; sleep 3
for kind in none add mm triton graph copy; do python3 "$here/counts.py" $kind 1000 5; done | tee "$out/counts"
"$out/percall" >/dev/null; sleep 3
memory; kill -INT "$agent"; wait "$agent"
python3 "$here/counted.py" "$out/counts" "$out/trace.json"

#!/usr/bin/env bash
# What gpumeter trace says of work whose split is known, beside PyTorch's profiler in the same run, and of
# memory beside PyTorch's allocator. On a machine with an NVIDIA GPU and PyTorch.
# Usage, as root: split.sh GPUMETER FOLDER [SECONDS [KIND...]]; see split.py for the kinds.
set -uo pipefail
gpumeter=$1 out=$2 seconds=${3:-15} here=$(dirname "$0")
kinds=("${@:4}")
[ $# -gt 3 ] || kinds=(sync item event both load segments expandable pools)
trap 'kill $(jobs -p) 2>/dev/null' EXIT
"$gpumeter" trace --json --interval 1s >"$out/split.trace" 2>"$out/split.log" & tracer=$!
until [ -s "$out/split.trace" ]; do sleep 0.2; done
for kind in "${kinds[@]}"; do
	python3 "$here/split.py" "$kind" "$seconds"
done >"$out/split.made"
sleep 2
kill -INT $tracer
wait $tracer
python3 "$here/split_show.py" "$out/split.made" "$out/split.trace"

#!/usr/bin/env bash
# Ranks of communicators as gpumeter trace knows them beside PyTorch's own: of the world, of a group split
# from it, and of communicators that are not blocking. Several ranks share the one GPU.
# Usage, as root: ranks.sh GPUMETER FOLDER
set -uo pipefail
gpumeter=$1 out=$2 here=$(dirname "$0")
trap 'kill $(jobs -p) 2>/dev/null' EXIT
for blocking in 1 0; do
	"$gpumeter" trace --json --interval 1s >"$out/ranks.trace" 2>"$out/ranks.log" & tracer=$!
	until [ -s "$out/ranks.trace" ]; do sleep 0.2; done
	pids=()
	for rank in 0 1 2 3; do
		TORCH_NCCL_USE_COMM_NONBLOCKING=$((1 - blocking)) timeout 60 python3 "$here/ranks.py" $rank 4 8 >"$out/rank$rank" 2>"$out/rank$rank.log" & pids+=($!)
	done
	wait "${pids[@]}"
	sleep 1; kill -INT $tracer; wait $tracer
	echo "blocking=$blocking"
	cat "$out"/rank[0-3] | sort
	python3 - "$out/ranks.trace" <<'P'
import json, sys
last = {}
for line in open(sys.argv[1]):
    for p in json.loads(line)["processes"]:
        if p.get("comms"):
            last[p["pid"]] = p
for pid, p in sorted(last.items()):
    for c in p["comms"]:
        print(f"  traced: pid {pid} comm {c['id']} rank {c['rank']} of {c['size']}, {c['sequence']} collectives")
P
done

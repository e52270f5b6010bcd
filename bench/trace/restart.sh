#!/usr/bin/env bash
# What an agent knows of running processes after it was killed: kernels by name, ranks, memory and counts beside what two ranks of
# PyTorch say of themselves. Usage, as root: restart.sh GPUMETER FOLDER
set -uo pipefail
gpumeter=$1 out=$2 here=$(dirname "$0")
mkdir -p "$out/bpf" "$out/phases" && mount -t bpf bpf "$out/bpf" || exit 1
trap 'kill -9 $(jobs -p) 2>/dev/null; sleep 1; "$gpumeter" trace --stop --socket /nowhere --trace-keep "$out/bpf/kept"; umount "$out/bpf"' EXIT
agent() {
	"$gpumeter" agent --trace --trace-keep "$out/bpf/kept" --interval 1s --state-dir "$out/state" --listen localhost:9400 --socket "$out/socket" --no-cloud --no-standby 2>>"$out/agent.log" & agent=$!
	until curl -sf localhost:9400/metrics >/dev/null; do sleep 0.2; done
}
phase() {
	touch "$out/phases/$1"
	until [ "$(cat "$out"/rank? | grep -c "phase $1:")" = 2 ]; do sleep 0.1; done
	cat "$out"/rank? | grep "phase $1:"
}
page() {
	sleep 3
	curl -s localhost:9400/metrics | sed -nE 's/^(gpu_cuda_kernel_launches_total|gpu_cuda_memory_reserved_bytes|nccl_collective_sequence_total)\{(.*)\} (.*)$/\1 \2 \3/p' |
		sed -E 's/^([^ ]*) .*(gpu_cuda_kernel_name="[^"]*").* ([^ ]*)$/\1 \2 \3/; s/^([^ ]*) .*(comm_id_hash="[^"]*").*(nranks="[^"]*").*(rank="[^"]*").* ([^ ]*)$/\1 \2 \3 \4 \5/; s/^([a-z_]*bytes) .* ([^ ]*)$/\1 \2/' | sort
}
agent
for rank in 0 1; do python3 "$here/restart.py" $rank 2 "$out/phases" >"$out/rank$rank" 2>"$out/rank$rank.log" & done
until [ "$(cat "$out"/rank? | grep -c ready)" = 2 ]; do sleep 0.5; done
phase 1
page
kill -9 $agent; wait $agent 2>/dev/null
echo "killed; without an agent:"
phase 2
agent
echo "the next agent, which has counted what happened without it:"
page
phase 3
page
touch "$out/phases/end"
grep -E 'Tracing|without' "$out/agent.log"

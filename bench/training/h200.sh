#!/usr/bin/env bash
# What a training looks like from outside, beside what it says of itself, on a machine with an NVIDIA GPU and PyTorch.
# Usage, as root: h200.sh GPUMETER FOLDER [SECONDS]. FOLDER must be on a disk. It takes SECONDS, 120 by default, and 25 more.
set -uo pipefail
gpumeter=$1 out=$2 seconds=${3:-120} here=$(dirname "$0")
mkdir -p "$out/state"
trap 'kill $(jobs -p) 2>/dev/null' EXIT
"$gpumeter" agent --trace --interval 5s --state-dir "$out/state" --listen localhost:9400 --no-cloud 2>"$out/agent.log" &
agent=$!
sleep 6
python3 "$here/train.py" "$seconds" "$out" >"$out/training.json" 2>"$out/training.log" &
training=$!
: >"$out/mfu"
while kill -0 "$training" 2>/dev/null; do
	sleep 5
	curl -s localhost:9400/metrics | sed -n 's/^training_mfu_ratio{.*} //p' >>"$out/mfu"
done
sleep 16 # until the last reading is on the page
curl -s localhost:9400/metrics | grep -E '^(training_|gpumeter_tracer_|gpu_cuda_kernel_launches)' >"$out/page"
kill "$agent"
wait "$agent" 2>/dev/null
rm -f "$out/checkpoint.pt"
cat "$out/training.json"
python3 "$here/compare.py" "$out/training.json" "$out/page" "$out/mfu" || { tail -5 "$out/training.log" "$out/agent.log"; exit 1; }

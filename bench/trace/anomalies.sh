#!/usr/bin/env bash
# Makes a training slow in four ways on a machine with one NVIDIA GPU, and asks gpumeter why.
# Usage, as root: anomalies.sh GPUMETER FOLDER. It takes 9 minutes, and puts the power limit back.
set -uo pipefail
gpumeter=$1 out=$2 here=$(dirname "$0")
limit=$(nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits | cut -d. -f1)
trap 'nvidia-smi -pl "$limit" >/dev/null; kill $(jobs -p) 2>/dev/null' EXIT
say() { echo "$(date +%T) $*"; }

"$gpumeter" agent --trace --interval 5s --state-dir "$out/state" --listen localhost:9400 --no-cloud 2>"$out/agent.log" &
agent=$!
taskset -c 2,3 python3 "$here/train.py" 560 64 "$out/storm" >"$out/train.log" 2>&1 &
say "quiet for five minutes"; sleep 310
"$gpumeter" explain --state-dir "$out/state" --since 10m

say "a hog: eight busy loops on the two cores of the training"
for _ in 1 2 3 4 5 6 7 8; do taskset -c 2,3 timeout 30 sh -c 'while :; do :; done' & done; sleep 30
say "end"; sleep 25
say "a power limit of 250 W"; nvidia-smi -pl 250; sleep 30
nvidia-smi -pl "$limit"; say "end"; sleep 25
say "copies of 2 GiB a step"; touch "$out/storm"; sleep 30
rm "$out/storm"; say "end"; sleep 25
say "a second process on the GPU"
timeout 30 taskset -c 6,7 python3 -c '
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20): b = a @ a
    torch.cuda.synchronize()' ; say "end"; sleep 15
"$gpumeter" explain --state-dir "$out/state" --since 10m
curl -s localhost:9400/metrics | grep -E '^gpumeter_(anomaly|tracer)' 
grep -E 'VmRSS|VmHWM' "/proc/$agent/status"
ps -o cputime=,etimes= -p "$agent"

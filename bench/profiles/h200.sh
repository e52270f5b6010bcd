#!/usr/bin/env bash
# What a profile says of a training, beside torch.profiler in the same run, and what taking it costs. On a
# machine with an NVIDIA GPU and PyTorch. Usage, as root: h200.sh GPUMETER FOLDER [BATCH [TURNS]]. It takes
# less than three minutes with 4 turns. FOLDER gets the profiles and result.json.
set -uo pipefail
gpumeter=$1 out=$2 batch=${3:-16} turns=${4:-4} here=$(dirname "$0")
mkdir -p "$out"
trap 'kill $(jobs -p) 2>/dev/null' EXIT
socket=$out/socket
"$gpumeter" agent --trace --interval 10s --state-dir "$out/state" --listen localhost:9400 --socket "$socket" --no-cloud --no-standby 2>"$out/agent.log" & agent=$!
until [ -S "$socket" ]; do sleep 0.2; done
inside() { grep -ls '^prog_tag' "/proc/$agent/fdinfo/"* | wc -l; }
sleep 2
before=$(inside)
python3 "$here/train.py" "$gpumeter" "$socket" "$out" "$batch" "$turns"
echo "programs of the agent in the kernel: $before before the profiles, $(inside) after"
grep -E 'VmHWM|VmRSS' "/proc/$agent/status" | tr -s '\n\t ' ' '; echo

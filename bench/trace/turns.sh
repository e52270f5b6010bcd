#!/usr/bin/env bash
# What tracing costs one training process, in turns: the agent's tracing is ended and started again while
# it runs, so that both halves have the same process, clocks and neighbors. On a machine with an NVIDIA
# GPU and PyTorch. Usage, as root: turns.sh GPUMETER FOLDER [TURNS [BATCH]]. A turn takes 30 seconds.
set -uo pipefail
gpumeter=$1 out=$2 turns=${3:-10} batch=${4:-16} here=$(dirname "$0")
trap 'kill $(jobs -p) 2>/dev/null' EXIT
socket=$out/socket
"$gpumeter" agent --trace --interval 10s --state-dir "$out/state" --listen localhost:9400 --socket "$socket" --no-cloud --no-standby 2>"$out/agent.log" & agent=$!
inside() { find "/proc/$agent/fd" -lname 'anon_inode:bpf*' -o -lname 'anon_inode:\[perf_event\]' | wc -l; }
page() { curl -s localhost:9400/metrics | awk -v name="$1" '$1 ~ "^" name "[{]" { sum += $NF } END { printf "%d", sum }'; }
until [ -S "$socket" ]; do sleep 0.2; done
python3 "$here/train.py" $((30 * turns + 60)) "$batch" >"$out/train" &
until [ -s "$out/train" ]; do sleep 0.2; done
sleep 10
: >"$out/turns"
for turn in $(seq "$turns"); do
	"$gpumeter" trace --stop --socket "$socket" >/dev/null || exit 1
	left=$(inside)
	sleep 3; from=$(wc -l <"$out/train"); sleep 12
	without=$(tail -n +$((from + 1)) "$out/train" | awk '{ sum += $2; n++ } END { print sum / n }')
	"$gpumeter" trace --start --socket "$socket" >/dev/null || exit 1
	sleep 3; from=$(wc -l <"$out/train"); sleep 12
	with=$(tail -n +$((from + 1)) "$out/train" | awk '{ sum += $2; n++ } END { print sum / n }')
	echo "$turn $without $with" >>"$out/turns"
	echo "turn $turn: $without steps/s without, $with with; in the kernel $left without, $(inside) with; launches counted $(page gpu_cuda_kernel_launches_total), lost $(page gpumeter_tracer_losses_total)"
done
awk '{ print $2 / $3 - 1 }' "$out/turns" | sort -g | awk '{ v[NR] = $1 } END { printf "slower by %.1f %% (median of %d turns; %.1f to %.1f)\n", 100 * v[int((NR + 1) / 2)], NR, 100 * v[1], 100 * v[NR] }'
grep -E 'VmHWM|VmRSS' "/proc/$agent/status" | tr -s '\n\t ' ' '; echo

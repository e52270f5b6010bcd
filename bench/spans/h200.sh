#!/usr/bin/env bash
# An HTTP service in PyTorch with traces on a real GPU, alone and beside a second process:
#
#	bench/spans/h200.sh [GPUMETER]
#
# builds the agent if none is named, needs root, Python with PyTorch and two minutes, and says for each claim
# whether it held: the joules of 100 spans are those of the driver's counter within 2 %, spans and gpu.slow_span
# name the neighbor while it runs, and nobody otherwise. It sends OTLP by hand: no SDK is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
binary=${1:-$work/gpumeter}
[ -x "$binary" ] || CGO_ENABLED=0 go build -trimpath -o "$binary" ./cmd/gpumeter
"$binary" agent --otlp-receiver --otlp-file "$work/otlp.jsonl" --interval 500ms --slow-interval 500ms --listen localhost:9400 \
	--state-dir "$work/state" --socket "" --no-cloud --no-inference --no-standby 2>"$work/agent.log" &
agent=$!
trap 'kill $agent 2>/dev/null || true' EXIT
python3 bench/spans/service.py load >"$work/phases.json"
sleep 2
kill -TERM $agent
wait $agent || true
trap - EXIT
python3 bench/spans/service.py judge "$work/phases.json" "$work/otlp.jsonl" || { tail -n 20 "$work/agent.log"; echo "the files are in $work"; exit 1; }

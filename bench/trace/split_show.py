"""Puts what split.py did beside what gpumeter trace --json counted: split_show.py MADE TRACE"""

import json
import sys
from datetime import datetime

made = [json.loads(line) for line in open(sys.argv[1])]
seen = {}  # by pid: the readings in order
for line in open(sys.argv[2]):
    report = json.loads(line)
    at = datetime.fromisoformat(report["time"].replace("Z", "+00:00")).timestamp()
    for p in report["processes"]:
        seen.setdefault(p["pid"], []).append((at, p))


def busiest(process):
    return max(process["devices"], key=lambda d: d["memory"]["reserved"])


print("| work | kernels, by the profiler | copies | busy, by gpumeter | waits | copying | verdict |")
print("|---|---|---|---|---|---|---|")
for m in made:
    if "wall" not in m:
        continue
    inside = [(at, p) for at, p in seen.get(m["pid"], []) if m["start"] <= at <= m["end"]]
    if len(inside) < 2:
        print(f"| {m['kind']} | no readings |")
        continue
    (t0, first), (t1, last) = inside[0], inside[-1]
    d0, d1, span = busiest(first), busiest(last), t1 - t0

    def copying(process):
        return sum(o["time"]["sum"] - o.get("wait", 0) / 1e9 for o in process["ops"] if o["class"] == "copy")

    share = lambda v: f"{100 * v:.1f} %"
    print("|", " | ".join([
        m["kind"], share(m["kernels"] / m["wall"]), share(m["copies"] / m["wall"]),
        share((d1["busy"] - d0["busy"]) / 1e9 / span), share((d1["wait"] - d0["wait"]) / 1e9 / span),
        share((copying(last) - copying(first)) / span), last.get("verdict", {}).get("text", ""),
    ]), "|")
print()
print("| memory | stage | PyTorch holds | gpumeter counts | difference |")
print("|---|---|---|---|---|")
for m in made:
    if "stage" not in m:
        continue
    later = [p for at, p in seen.get(m["pid"], []) if at > m["time"]]
    if later:
        counted = busiest(later[0])["memory"]["reserved"]
        print(f"| {m['kind']} | {m['stage']} | {m['reserved']} | {counted} | {counted - m['reserved']} |")

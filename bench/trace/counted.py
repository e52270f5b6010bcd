"""Puts what counts.py made beside what gpumeter trace --json counted.

counted.py COUNTS TRACE"""

import json
import sys

made = [json.loads(line) for line in open(sys.argv[1])]
last, alive = {}, {}
for line in open(sys.argv[2]):
    seen = json.loads(line)
    for p in seen["processes"]:
        last[p["pid"]] = p
        if not p.get("ended"):
            alive[p["pid"]] = p
for i, (pid, p) in enumerate(last.items()):
    kind = made[i]["kind"] if i < len(made) else p["name"]
    print(f"== {kind}")
    for op in sorted(p["ops"], key=lambda o: -o["time"]["count"]):
        if op["class"] in ("launch", "graph", "copy", "sync"):
            print(f"   {op['op']:<22} {op.get('kind', ''):<6} {op['time']['count']}")
    for k in sorted(p.get("kernels", []), key=lambda k: -k["count"]):
        print(f"   {k['count']:>7} {k['grid']} {k['block']} {k['name'][:90]}")
    if i < len(made):
        m = alive[pid]["devices"][0]["memory"]
        print(f"   torch says allocated {made[i]['allocated']} reserved {made[i]['reserved']}; "
              f"traced allocated {m.get('allocated')} pool {m.get('pool')} from the driver {m['reserved']}")
print("losses", seen["losses"])

"""Puts what a training says of itself beside what the agent saw, for h200.sh.

compare.py TRAINING.json PAGE SAMPLES: PAGE is the agent's last page of metrics, SAMPLES has the values of
training_mfu_ratio, one a line."""

import json
import re
import sys

said = json.load(open(sys.argv[1]))
page = open(sys.argv[2]).read()
mfu = [float(line) for line in open(sys.argv[3]) if line.strip()]
PEAK, PEAK_CLOCK, CLOCK = 989e12, 1830, 1980  # H200, dense bfloat16: data sheet, its clock, and the highest clock


def total(name, **labels):
    out = 0.0
    for line in page.splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            out += float(line.rsplit(" ", 1)[1])
    return out


def row(what, own, seen, unit=""):
    error = f"{100 * (seen / own - 1):+.1f} %" if own else ""
    print(f"{what:34} {own:>16,.3f} {seen:>16,.3f} {unit:3} {error}")


print(f"{'':34} {'the program':>16} {'from outside':>16}")
row("steps", said["steps"], total("training_steps_total"))
row("checkpoints", said["checkpoints"], total("training_checkpoint_count_total") or total("training_checkpoint_count"))
row("bytes of checkpoints", said["checkpoint_bytes"], total("training_checkpoint_io_bytes_total"), "B")
activities = sorted(set(re.findall(r'training_activity="(\w+)"', page)))
for own, seen in (("startup", "startup"), ("step", "step"), ("data", "data_wait"), ("evaluation", "other"), ("checkpoint", "checkpoint")):
    row("time: " + seen, said["startup"] if own == "startup" else said["spent"][own], total("training_time_seconds_total", training_activity=seen), "s")
row("time: all", said["seconds"], sum(total("training_time_seconds_total", training_activity=a) for a in activities), "s")
if mfu:
    mfu.sort()
    seen = mfu[len(mfu) // 2]
    peak = PEAK * CLOCK / PEAK_CLOCK
    row("MFU, peak at the highest clock", said["flops_per_second"] / peak, sum(mfu) / len(mfu))
    row("MFU within steps, the same peak", said["flops_per_second_in_steps"] / peak, seen)
    row("MFU, peak of the data sheet", said["flops_per_second"] / PEAK, sum(mfu) / len(mfu) * CLOCK / PEAK_CLOCK)
print("exact" if total("training_steps_total") == said["steps"] else "NOT EXACT")

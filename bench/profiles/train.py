"""Trains the network of bench/trace/train.py, with and without a profile of gpumeter in turns, and
compares such a profile with torch.profiler. Called by h200.sh.

train.py GPUMETER SOCKET FOLDER BATCH TURNS"""

import collections
import json
import os
import re
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

gpumeter, socket, out, batch, turns = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
torch.manual_seed(0)
dev = torch.device("cuda:0")
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
net = nn.Sequential(nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.Linear(1024, 1024)).to(dev, torch.bfloat16)
opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
x = torch.randn(batch, 512, 1024, device=dev, dtype=torch.bfloat16)


def step():
    opt.zero_grad(set_to_none=True)
    loss = (net(x) - x).float().square().mean()
    loss.backward()
    opt.step()
    return loss.item()


def pace(seconds):
    """Steps per second."""
    n, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        step()
        n += 1
    return n / (time.monotonic() - began)


def profile(seconds, name):
    return subprocess.Popen(
        [gpumeter, "trace", "--profile", f"{seconds}s", "--pid", str(os.getpid()), "--socket", socket, "-o", os.path.join(out, name)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(p):
    text = p.communicate()[0].strip()
    if p.returncode:
        sys.exit(f"gpumeter: {text}")
    return text


def function(frame):
    """A function as both know it: its file and its name without classes."""
    return f"{os.path.basename(frame['file'])}:{frame['function'].rsplit('.', 1)[-1]}"


def ours(name):
    """Launches and estimated time on the GPU by innermost function of Python, and by kernel."""
    doc = json.load(open(os.path.join(out, name)))
    by, kernels, launches = collections.Counter(), collections.Counter(), 0
    for s in doc["stacks"]:
        frames = [doc["frames"][i] for i in s["frames"]]
        if frames[-1]["kind"] != "kernel":
            continue
        pythons = [f for f in frames if f["kind"] == "python"]
        by[function(pythons[-1]) if pythons else "(no Python)"] += s.get("gpu", 0)
        kernels[frames[-1]["function"]] += s.get("gpu", 0)
        launches += s.get("launches", 0)
    return doc, by, kernels, launches


PYTHON = re.compile(r"^(.+\.py)\((\d+)\): (.+)$")


def theirs(path):
    """The same by torch.profiler. Kernels of the backward pass are launched by a thread without Python; they
    count for the function that the main thread is in."""
    events = json.load(open(path))["traceEvents"]
    stacks, runtime, kernels = collections.defaultdict(list), {}, []
    for e in events:
        cat = e.get("cat")
        if cat == "python_function" and PYTHON.match(e["name"]):
            stacks[e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
        elif cat in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {}):
            runtime[e["args"]["correlation"]] = e
        elif cat == "kernel":
            kernels.append(e)
    main = max(stacks, key=lambda t: len(stacks[t]))
    for s in stacks.values():
        s.sort()
    wanted = sorted(((runtime[k["args"]["correlation"]]["ts"], runtime[k["args"]["correlation"]]["tid"], k["dur"], k["name"])
                     for k in kernels if k["args"].get("correlation") in runtime))
    by, names = collections.Counter(), collections.Counter()

    def sweep(tid, items):
        """The innermost function at each time, for items sorted by it."""
        open_, i, s = [], 0, stacks[tid]
        for ts, dur, _ in items:
            while i < len(s) and s[i][0] <= ts:
                while open_ and open_[-1][1] <= s[i][0]:
                    open_.pop()
                open_.append(s[i])
                i += 1
            while open_ and open_[-1][1] <= ts:
                open_.pop()
            m = PYTHON.match(open_[-1][2]) if open_ else None
            by[f"{os.path.basename(m[1])}:{m[3].rsplit('.', 1)[-1]}" if m else "(no Python)"] += dur / 1e6

    groups = collections.defaultdict(list)
    for ts, tid, dur, name in wanted:
        groups[tid if tid in stacks else main].append((ts, dur, name))
        names[name] += dur / 1e6
    for tid, items in groups.items():
        sweep(tid, sorted(items))
    return by, names, len(wanted)


def show(title, counter, n=6):
    total = sum(counter.values()) or 1
    print(title)
    for name, value in counter.most_common(n):
        print(f"  {100 * value / total:5.1f} %  {name[:120]}")


print(f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}, batch {batch}", flush=True)
for _ in range(20):
    step()
pace(3)

# The price, in turns: the first seconds of a profile, in which it is attached, are left out.
result = {"turns": []}
for turn in range(turns):
    without = pace(7)
    p = profile(12, f"turn{turn}.json")
    pace(4)
    with_ = pace(7)
    ended(p)
    result["turns"].append([without, with_])
    print(f"turn {turn + 1}: {without:.3f} steps/s without, {with_:.3f} with", flush=True)
slower = [a / b - 1 for a, b in result["turns"]]
print(f"slower by {100 * statistics.median(slower):.2f} % (median; {100 * min(slower):.2f} to {100 * max(slower):.2f})", flush=True)

# A profile of a known number of steps, for pprof, and to compare.
for name in ("train.json", "train.pb.gz"):
    p = profile(8, name)
    while p.poll() is None:
        step()
    print(ended(p), flush=True)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], with_stack=True) as prof:
    for _ in range(3):
        step()
prof.export_chrome_trace(os.path.join(out, "torch.json"))

doc, functions, kernels, launches = ours("train.json")
by, names, n = theirs(os.path.join(out, "torch.json"))
os.remove(os.path.join(out, "torch.json"))  # tens of megabytes
print("processes:", doc["processes"])
print(*doc["comments"], sep="\n")
print("launches:", launches, "of torch.profiler in 3 steps:", n)
show("GPU time by innermost Python function, torch.profiler:", by)
show("GPU time by innermost Python function, gpumeter (estimated):", functions)
show("GPU time by kernel, torch.profiler:", names)
show("GPU time by kernel, gpumeter (estimated):", kernels)
top, mine = by.most_common(1)[0][0], functions.most_common(1)[0][0]
print("SAME" if top == mine else "DIFFERENT", "function on top:", top, "and", mine)
result |= {"torch": by, "gpumeter": functions, "torch kernels": names, "gpumeter kernels": kernels}
json.dump(result, open(os.path.join(out, "result.json"), "w"), indent=1)

"""A training that knows what it does, for h200.sh: it counts its steps, times its parts and computes the FLOPs
of its model.

train.py SECONDS FOLDER: prints one JSON object at the end. A step is an update from two accumulated passes. Each
150 steps it evaluates, each 200 it writes a checkpoint to FOLDER and waits until it is on disk."""

import json
import os
import sys
import time

import torch
from torch import nn

seconds, folder = float(sys.argv[1]), sys.argv[2]
layers, width, inner, heads, length, batch, passes = 12, 1024, 4096, 16, 512, 32, 2
started = time.monotonic()
torch.manual_seed(0)
dev = torch.device("cuda:0")
layer = nn.TransformerEncoderLayer(width, heads, inner, batch_first=True, dropout=0.0)
net = nn.Sequential(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, width)).to(dev, torch.bfloat16)
opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
x = torch.randn(batch, length, width, device=dev, dtype=torch.bfloat16)

# Multiply-adds of the matrix products of a token, twice for FLOPs, three times for forward and backward; and attention.
weights = layers * (4 * width * width + 2 * width * inner) + width * width
tokens = batch * length * passes
flops = tokens * (6 * weights + 12 * layers * length * width)

spent = {"step": 0.0, "evaluation": 0.0, "checkpoint": 0.0, "data": 0.0}
saved, saves, steps, first = 0, 0, 0, None
end = started + seconds
while time.monotonic() < end:
    a = time.monotonic()
    time.sleep(0.01)  # the next batch is not there yet
    b = time.monotonic()
    opt.zero_grad(set_to_none=True)
    for _ in range(passes):
        loss = (net(x) - x).float().square().mean() / passes
        loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    loss.item()
    c = time.monotonic()
    first = first or c
    steps += 1
    spent["data"] += b - a
    spent["step"] += c - b
    if steps % 150 == 0:
        with torch.no_grad():
            for _ in range(160):
                (net(x) - x).float().square().mean().item()
        spent["evaluation"] += time.monotonic() - c
    if steps % 200 == 0:
        at = time.monotonic()
        name = os.path.join(folder, "checkpoint.pt")
        with open(name, "wb") as f:
            torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, f)
            f.flush()
            os.fsync(f.fileno())
        saved, saves = saved + os.path.getsize(name), saves + 1
        spent["checkpoint"] += time.monotonic() - at
last = time.monotonic()
print(json.dumps({
    "steps": steps, "checkpoints": saves, "checkpoint_bytes": saved, "seconds": last - started, "startup": first - started - spent["step"] / steps,
    "spent": spent, "flops_per_step": flops, "flops_per_second_in_steps": flops * steps / (spent["step"] + spent["data"]), "flops_per_second": flops * steps / (last - first),
}))

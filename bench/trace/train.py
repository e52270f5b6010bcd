"""Trains a small transformer and says how fast. For docs/verification/h200.md.

train.py SECONDS [BATCH [FILE]]: a line a second with steps a second. A BATCH of 64 keeps
the GPU busy, one of 16 the host. While FILE exists each step also copies 2 GiB to the
device."""

import os
import sys
import time

import torch
from torch import nn

seconds = float(sys.argv[1])
batch = int(sys.argv[2]) if len(sys.argv) > 2 else 16
storm = sys.argv[3] if len(sys.argv) > 3 else ""
torch.manual_seed(0)
dev = torch.device("cuda:0")
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
net = nn.Sequential(nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.Linear(1024, 1024)).to(dev, torch.bfloat16)
opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
x = torch.randn(batch, 512, 1024, device=dev, dtype=torch.bfloat16)
ballast = torch.empty(512 << 20, dtype=torch.uint8).pin_memory()
there = torch.empty(512 << 20, dtype=torch.uint8, device=dev)


def step():
    opt.zero_grad(set_to_none=True)
    loss = (net(x) - x).float().square().mean()
    loss.backward()
    opt.step()
    if storm and os.path.exists(storm):
        for _ in range(4):
            there.copy_(ballast, non_blocking=True)
    return loss.item()


for _ in range(10):
    step()
end, mark, steps, total = time.monotonic() + seconds, time.monotonic(), 0, 0
began = mark
while (now := time.monotonic()) < end:
    step()
    steps, total = steps + 1, total + 1
    if now - mark >= 1:
        print(f"{time.strftime('%H:%M:%S')} {steps / (now - mark):.2f} steps/s", flush=True)
        mark, steps = now, 0
print(f"in all {total / (time.monotonic() - began):.3f} steps/s")

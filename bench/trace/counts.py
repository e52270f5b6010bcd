"""Makes a known number of CUDA calls, and says so. For docs/verification/h200.md.

counts.py KIND N: after a warm-up, N calls of KIND: add, mm, triton, graph, copy or none.
The difference of two runs with N and 0 is what N calls are."""

import json
import sys
import time

import torch

kind, n = sys.argv[1], int(sys.argv[2])
dev = torch.device("cuda:0")
a = torch.randn(512, 512, device=dev, dtype=torch.bfloat16)
b = torch.randn(512, 512, device=dev, dtype=torch.bfloat16)
out = torch.empty_like(a)
pinned = torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
there = torch.empty(1 << 20, dtype=torch.uint8, device=dev)


def add():
    torch.add(a, b, out=out)


def mm():
    torch.mm(a, b, out=out)


def copy():
    there.copy_(pinned, non_blocking=True)


run = {"add": add, "mm": mm, "copy": copy, "none": lambda: None}.get(kind)
if kind == "triton":
    import triton
    import triton.language as tl

    @triton.jit
    def gpumeter_addk(x, y, z, size, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = at < size
        tl.store(z + at, tl.load(x + at, mask=ok) + tl.load(y + at, mask=ok), mask=ok)

    def run():
        gpumeter_addk[(256,)](a, b, out, a.numel(), BLOCK=1024)


if kind == "graph":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            mm()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mm()
        add()
    run = graph.replay
for _ in range(10):
    run()
torch.cuda.synchronize()
for _ in range(n):
    run()
torch.cuda.synchronize()
held = [torch.empty(3_000_000 * (i + 1), dtype=torch.uint8, device=dev) for i in range(20)]
del held[::3]
print(json.dumps({
    "kind": kind, "n": n,
    "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
}), flush=True)
time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 4)  # to be looked at

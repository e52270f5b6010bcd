"""One kind of work on the GPU, and how PyTorch's profiler splits its time.

split.py KIND SECONDS: the steps run for SECONDS. In the second half the profiler is on. Prints a JSON object
with the seconds in which kernels and copies ran on the device, from the profiler, and the wall clock of that
part; or, for memory, what the allocator holds from the driver at each stage.
"""

import json
import os
import sys
import time

kind, seconds = sys.argv[1], float(sys.argv[2])
if kind == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
elif kind == "pools":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"

import torch  # noqa: E402

device = torch.device("cuda:0")


def say(**what):
    print(json.dumps({"kind": kind, "pid": os.getpid(), "time": time.time(), **what}), flush=True)


def memory():
    """Allocates, frees and allocates again, and waits at each stage to be looked at."""
    held = []
    for stage in range(6):
        if stage == 3:
            held = held[::2]
            torch.cuda.empty_cache()
        elif stage == 5:
            held = []
            torch.cuda.empty_cache()
        else:
            held += [torch.empty(size << 20, dtype=torch.uint8, device=device) for size in (3, 50, 700, 11)]
        torch.cuda.synchronize()
        say(stage=stage, reserved=torch.cuda.memory_reserved(device))
        time.sleep(seconds / 6)


a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
b = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
large = torch.empty(64 << 20, dtype=torch.float32)  # 256 MiB that are not pinned
on_device = torch.empty(64 << 20, dtype=torch.float32, device=device)
event = torch.cuda.Event()


def products(n):
    x = a
    for _ in range(n):
        x = torch.matmul(x, b)
    return x


def step():
    if kind == "item":  # what loss.item() does
        products(50)[0, 0].cpu()
    elif kind == "sync":
        products(50)
        torch.cuda.synchronize()
    elif kind == "event":
        products(50)
        event.record()
        event.synchronize()
        time.sleep(0.005)
    elif kind == "both":  # work, and then a copy of its result
        products(100)
        on_device.cpu()
    elif kind == "load":
        on_device.copy_(large)
        products(1)[0, 0].cpu()


def device_seconds(prof):
    """Sums up what ran on the device, by kind; nothing overlaps, there is one stream."""
    sums = {"kernels": 0.0, "copies": 0.0}
    for e in prof.profiler.kineto_results.events():
        if e.device_type() == torch.autograd.DeviceType.CUDA:
            sums["copies" if e.name().startswith("Memcpy") else "kernels"] += e.duration_ns() / 1e9
    return sums


if kind in ("expandable", "segments", "pools"):
    memory()
    sys.exit()
for _ in range(3):
    step()
torch.cuda.synchronize()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):  # its first start takes seconds
    step()
began = time.time()
while time.time() - began < seconds / 2:
    step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
    torch.cuda.synchronize()
    start, steps = time.time(), 0
    while time.time() - start < seconds / 2:
        step()
        steps += 1
    torch.cuda.synchronize()
    end = time.time()
say(start=start, end=end, steps=steps, wall=end - start, **device_seconds(prof))

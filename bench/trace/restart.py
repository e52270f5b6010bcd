"""Works in phases, and says what it has done. For docs/verification/h200.md.

restart.py RANK SIZE FOLDER: when FOLDER/N appears, for N from 1 on, 1000 products of matrices, 10 collectives and a
tensor of N times 64 MiB more. Ends when FOLDER/end appears."""

import os
import sys
import time

import torch
import torch.distributed as dist

rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ |= {
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
}
dev = torch.device("cuda:0")
torch.cuda.set_device(0)
dist.init_process_group("nccl", rank=rank, world_size=size)
a, b = (torch.randn(512, 512, device=dev, dtype=torch.bfloat16) for _ in range(2))
out, one, held = torch.empty_like(a), torch.ones(1024, device=dev), []
torch.mm(a, b, out=out)
dist.all_reduce(one)
torch.cuda.synchronize()
n = 1
print(f"rank {rank} is ready", flush=True)
while not os.path.exists(f"{folder}/end"):
    if not os.path.exists(f"{folder}/{n}"):
        time.sleep(0.05)
        continue
    for i in range(1000):
        torch.mm(a, b, out=out)
        if i % 100 == 0:
            dist.all_reduce(one)
    held.append(torch.empty(n << 26, dtype=torch.uint8, device=dev))
    torch.cuda.synchronize()
    print(f"rank {rank} phase {n}: {1000 * n + 1} products, {10 * n + 1} collectives, reserved {torch.cuda.memory_reserved()}", flush=True)
    n += 1

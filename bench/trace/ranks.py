"""Communicators as PyTorch makes them: of all ranks, split from it, and not blocking.

ranks.py RANK SIZE SECONDS, one process per rank, on one GPU. Prints a JSON object per communicator with the
rank that this process has in it.
"""

import json
import os
import sys
import time

rank, size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.environ.update(
    NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1",
    NCCL_IB_DISABLE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(size),
)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
# In reverse: a rank of the group is not the rank of the world.
half = dist.new_group(list(range(size - 1, size // 2 - 1, -1))) if size > 2 else dist.new_group([1, 0])
groups = {"world": dist.group.WORLD, "split": half}
x = torch.ones(1 << 20, device="cuda")
end = time.time() + seconds
while time.time() < end:
    for g in groups.values():
        if g is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(x, group=g)
    torch.cuda.synchronize()
    time.sleep(0.05)
for name, g in groups.items():
    if g is not dist.GroupMember.NON_GROUP_MEMBER:
        print(json.dumps({"pid": os.getpid(), "group": name, "rank": dist.get_rank(g), "size": dist.get_world_size(g)}), flush=True)
os._exit(0)

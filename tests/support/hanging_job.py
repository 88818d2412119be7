"""A job of four ranks that hangs: once a file appears, rank 3 never comes to the sum that the others wait in."""

from __future__ import annotations

import textwrap
from pathlib import Path

RANK = textwrap.dedent(
    '''
    """One rank of a job that shares its gradients."""
    import os
    import sys
    import time

    import torch
    import torch.distributed as dist


    def endless():
        open(sys.argv[1] + ".seen", "w").close()
        while True:
            time.sleep(0.05)


    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.store", rank=rank, world_size=4)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        model(torch.randn(8, 64)).square().mean().backward()
        if rank == 3 and os.path.exists(sys.argv[1]):
            endless()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
    '''
)
RANKS = """export WORLD_SIZE=4 OMP_NUM_THREADS=1
for rank in 0 1 2 3; do RANK=$rank LOCAL_RANK=$rank python rank.py $PWD/hang & done
wait
"""


def write_job(folder: Path) -> None:
    """`bash ranks.sh` there runs it; `hang` is the file, and `hang.seen` appears once it hangs."""
    (folder / "rank.py").write_text(RANK)
    (folder / "ranks.sh").write_text(RANKS)

"""Two ranks on gloo that leave dumps of their flight recorder at several points, each in its own folder."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(sys.argv[1])


def dump(name: str) -> None:
    """Both ranks write what they have in flight."""
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    (FOLDER / name).mkdir(exist_ok=True)
    (FOLDER / name / f"trace_rank_{dist.get_rank()}").write_bytes(_dump_fr_trace(True, True, False))
    (FOLDER / f"{name} as JSON").mkdir(exist_ok=True)
    (FOLDER / f"{name} as JSON" / f"trace_rank_{dist.get_rank()}.json").write_bytes(_dump_fr_trace_json(True, False))
    store.add(name, 1)
    while int(store.add(name, 0)) < dist.get_world_size():
        time.sleep(0.01)


def settle() -> None:
    """The recorder takes note of what is complete a moment after the program."""
    from torch._C._distributed_c10d import _dump_fr_trace

    while not all(entry["retired"] for entry in pickle.loads(_dump_fr_trace(True, False, False))["entries"]):
        time.sleep(0.01)


def start(group: dist.ProcessGroup | None = None) -> dist.Work:
    work = dist.all_reduce(torch.ones(8), group=group, async_op=True)
    assert work is not None
    return work


store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("gloo")
rank = dist.get_rank()
even, odd = dist.new_group([0, 1], group_desc="EVEN"), dist.new_group([0, 1], group_desc="ODD")
for each in (None, even, odd):
    start(each).wait()
settle()
dump("idle")

mine = [start()] if rank == 0 else []
dump("one rank is not there")
for work in mine or [start()]:
    work.wait()
settle()

mine = [start(even if rank == 0 else odd)]
dump("each in another group")
mine.append(start(odd if rank == 0 else even))
for work in mine:
    work.wait()
os._exit(0)

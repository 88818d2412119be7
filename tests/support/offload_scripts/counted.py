"""python counted.py SCRIPT ARGUMENT...: runs a script as Python does, then says what its window moved in each step."""

import runpy
import sys

import torch  # noqa: F401 - first, as in every script that trains

from tightship_offload.runtime import engine

fetches = []
step = engine.Engine.step


def counted(self, optimizer):
    step(self, optimizer)
    fetches.append(self.last.fetches)


engine.Engine.step = counted
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.write(f"layers fetched: {' '.join(map(str, fetches))}\n")

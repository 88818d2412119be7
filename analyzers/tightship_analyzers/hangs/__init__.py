"""Hung jobs: which ranks the others wait for, from the dumps of PyTorch's flight recorder."""

from __future__ import annotations

from tightship_analyzers.hangs.dumps import RankDump, read_dumps
from tightship_analyzers.hangs.verdict import judge

__all__ = ["RankDump", "judge", "read_dumps"]

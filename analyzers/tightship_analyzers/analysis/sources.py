"""What may stand on a command line for a trace: a file of one rank, or one rank of an op table.

A table of operations (Parquet) holds many ranks. `job.parquet` stands for all of them, `job.parquet#rank=3` for one.
"""

from __future__ import annotations

import re

from tightship_analyzers import trace as traces
from tightship_analyzers.trace.blocks import Progress
from tightship_analyzers.trace.model import Trace
from tightship_platform.errors import TightshipError
from tightship_platform.text import shown

_TABLE = re.compile(r"(?P<path>.*\.parquet)(?:#rank=(?P<rank>\d{1,9}))?", re.DOTALL)


def sources_of(path: str) -> list[str]:
    """One source for each rank that a path holds. A table that cannot be read stays one, which then says why."""
    match = _TABLE.fullmatch(path)
    if match is None or match["rank"] is not None:
        return [path]
    from tightship_analyzers import stragglers

    try:
        return [f"{path}#rank={rank}" for rank in stragglers.ranks_of(stragglers.open(path))]
    except TightshipError:
        return [path]


def open_source(source: str, progress: Progress | None = None, processes: int = 1) -> Trace:
    """One rank's trace, see `trace.open`.

    :raises TightshipError: it cannot be read.
    """
    match = _TABLE.fullmatch(source)
    if match is None:
        return traces.open(source, progress=progress, processes=processes)
    from tightship_analyzers import stragglers

    table = stragglers.open(match["path"])
    if match["rank"] is None:
        raise TightshipError(f"{shown(source, 200)} holds several ranks; name one: {shown(source, 200)}#rank=0")
    return stragglers.rank_trace(table, int(match["rank"]))

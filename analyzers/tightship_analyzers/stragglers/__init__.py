"""Stragglers of a data- and pipeline-parallel training job, from a table of its operations.

from tightship_analyzers import stragglers

job = stragglers.WhatIf(stragglers.open("job.parquet"))
job.slowdown                      # 1.97: the steps take 1.97 times as long as without stragglers
job.by_dp_rank[0]                 # the worst data-parallel rank: slowdown alone, saving if repaired
job.by_stage, job.by_op_type, job.by_worker
job.worst_workers_share.removed_frac, job.last_stage_share.removed_frac
job.simulation_error_frac.max()   # how well the unchanged replay meets the measured steps

stragglers.rank_trace(table, 0)   # one rank as a canonical trace, for all that judges traces

`what_if` defines every figure, `dependencies` the graph, `replay` how it is run, `parquet` the table's columns.
"""

from tightship_analyzers.stragglers.grid import Worker
from tightship_analyzers.stragglers.what_if import Contribution, Share, WhatIf
from tightship_analyzers.trace.op_table.op_types import OpType
from tightship_analyzers.trace.op_table.parquet import open_op_table as open
from tightship_analyzers.trace.op_table.rank_trace import rank_trace, ranks_of
from tightship_analyzers.trace.op_table.table import Limits, OpTable, OpTableError

__all__ = [
    "Contribution",
    "Limits",
    "OpTable",
    "OpTableError",
    "OpType",
    "Share",
    "WhatIf",
    "Worker",
    "open",
    "rank_trace",
    "ranks_of",
]

"""Applies what launchers and agents deliver. Every record may come more than once and late; the rows are the same.

`apply_run`, `apply_heartbeat` and `apply_batch` check everything first: a record that is refused (`Invalid`) has
changed nothing. Of a batch, only the rows that cannot be are refused (`RefusedRows`). `close_lost_runs` marks runs that
fell silent; `edit_run` is what a person changes. All work in the caller's transaction.

[Note: runs that were never announced] A batch or heartbeat may name a run whose launcher could not reach the server.
Its rows are kept: a placeholder run is made in the workflow `unknown`, the answer counts it in `unknown_runs`, and the
launcher's record, when it comes, turns the placeholder into the run.
"""

from tightship_platform.ingest.batches import apply_batch
from tightship_platform.ingest.heartbeats import apply_heartbeat
from tightship_platform.ingest.labels import edit_run
from tightship_platform.ingest.refused_rows import RefusedRows
from tightship_platform.ingest.runs import LOST_AFTER_NS, UNKNOWN_WORKFLOW, apply_run, close_lost_runs

__all__ = [
    "LOST_AFTER_NS",
    "UNKNOWN_WORKFLOW",
    "RefusedRows",
    "apply_batch",
    "apply_heartbeat",
    "apply_run",
    "close_lost_runs",
    "edit_run",
]

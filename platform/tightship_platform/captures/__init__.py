"""The only place that moves a capture: requested → leased → armed → recording → written → uploaded → analyzed.

The row in the database, not the broker, says where a capture stands. Every function takes an open session, works in
its transaction and locks the capture first (see [Note: write locks] in `database`); `now` is for tests.

Who calls what: people and schedules `request`, and people `cancel`; agents `lease` and `report`, and wait for
`leasable_runs`; the API asks `check_trace` before an upload and tells `trace_stored` after it; a worker claims a piece
of the analysis with `claim_work` and ends it with `trace_analyzed`, or the capture with `analyzed` or `fail`; `sweep`
runs every few seconds and ends or revives what got stuck.
"""

from tightship_platform.captures.analysis import (
    Work,
    analyze_again,
    analyzed,
    claim_work,
    count_waiting,
    fail,
    give_work_back,
    renew_work,
    trace_analyzed,
)
from tightship_platform.captures.leases import check_lease, leasable_runs, lease, report
from tightship_platform.captures.requests import request, resolve_run
from tightship_platform.captures.schedules import request_scheduled_captures, set_schedule
from tightship_platform.captures.sweep import SweepResult, run_ended, sweep
from tightship_platform.captures.transitions import cancel, lock
from tightship_platform.captures.uploads import StoredTrace, check_trace, trace_stored

__all__ = [
    "StoredTrace",
    "SweepResult",
    "Work",
    "analyze_again",
    "analyzed",
    "cancel",
    "check_lease",
    "check_trace",
    "claim_work",
    "count_waiting",
    "fail",
    "give_work_back",
    "leasable_runs",
    "lease",
    "lock",
    "renew_work",
    "report",
    "request",
    "request_scheduled_captures",
    "resolve_run",
    "run_ended",
    "set_schedule",
    "sweep",
    "trace_analyzed",
    "trace_stored",
]

"""Keeps the accounts of runs up to date in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import delete, func, or_, select, union
from sqlalchemy.orm import Session

from tightship_analyzers.facts.run.held_idle import held_idle, sampled_spans
from tightship_analyzers.fleet.account import Held, Phases, account
from tightship_analyzers.fleet.activity import keep_activity, measure_activity
from tightship_analyzers.fleet.history import read_history, read_phases
from tightship_analyzers.fleet.trouble import not_troubled
from tightship_platform.database import ranked_workflows
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Run, RunAccount, Trace
from tightship_platform.database.models.runs import UNSETTLED
from tightship_platform.results.run_account import KEPT
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import RunState, SavingUnit

FRESH_NS = 10 * NS_PER_S
"""No account is made again sooner than this."""
LIVE_PARTS = 100
"""The account of a live run is made again when it lags by this part of the run's life: a week-long run's history is
large, and its account hardly moves within an hour."""
LATE_NS = 3600 * NS_PER_S
"""Records of a run may arrive this long after its end (a spool that catches up) and still be accounted for."""
LATELY_NS = 30 * 86_400 * NS_PER_S
"""A trace was analyzed no longer ago than this if its run is still to be accounted for because of it."""
Summary = Mapping[str, Any]
"""Of an analyzed trace, as it is stored: a `TraceSummary` of this release or an earlier one."""
LATE_PARTS = 4
"""After the end: again when the account is older than this part of the time since the end."""


def due_runs(session: Session, *, now: int | None = None) -> list[int]:
    """Ids of the runs whose account is missing or out of date, those without one first."""
    now = now_ns() if now is None else now
    newest_trace = select(func.max(Trace.analyzed_ns)).where(Trace.run_id == Run.id).correlate(Run).scalar_subquery()
    life_end = func.coalesce(Run.end_ns, Run.last_seen_ns)
    lag = now - Run.accounted_ns
    is_running = Run.state == RunState.RUNNING.value
    # By indexes; what follows says which of them.
    late_traces = select(Trace.run_id).where(Trace.analyzed_ns >= now - LATELY_NS)
    candidates = union(select(Run.id).where(UNSETTLED), late_traces)
    rows = session.scalars(
        select(Run.id)
        .where(
            not_troubled(now),
            Run.id.in_(candidates),
            or_(
                Run.accounted_ns.is_(None),
                newest_trace > Run.accounted_ns,
                is_running & (lag >= FRESH_NS) & (lag * LIVE_PARTS >= Run.last_seen_ns - Run.start_ns),
                ~is_running & (Run.accounted_ns < life_end),
                ~is_running
                & (lag >= FRESH_NS)
                & (lag * LATE_PARTS >= now - life_end)
                & (Run.accounted_ns < life_end + LATE_NS),
            ),
        )
        .order_by(Run.accounted_ns.asc().nulls_first(), Run.id)
    )
    return list(rows)


def account_run(session: Session, run: Run, *, now: int | None = None) -> dict[str, int]:
    """Make a run's account again; bucket → device-ns, summing to the run's device time exactly."""
    now = now_ns() if now is None else now
    # Two at once would insert the same rows: the run's row is the lock, and is read again under it.
    if not locked(session, select(Run).where(Run.id == run.id)):
        return {}  # it was deleted meanwhile
    history, phases = read_history(session, run), read_phases(session, run)
    idle, sampled = held_idle(history), sampled_spans(history)
    held = [
        Held(
            device=device,
            start_ns=start_ns,
            end_ns=end_ns,
            idle=idle.get(device, ()),
            sampled=sampled.get(device, ()),
            active_ns=history.active_ns.get(device),
        )
        for device, spans in history.held.items()
        for start_ns, end_ns in spans
    ]
    analyzed = select(Trace.summary).where(Trace.run_id == run.id, Trace.analyzed_ns.is_not(None))
    summaries = session.scalars(analyzed).all()
    phases = replace(phases, saved_ns=last_checkpoint(summaries))
    buckets = {bucket.value: ns for bucket, ns in account(held, phases, traced_buckets(summaries, phases)).items()}
    session.execute(delete(RunAccount).where(RunAccount.run_id == run.id))
    session.add_all(RunAccount(run_id=run.id, bucket=bucket, device_ns=ns) for bucket, ns in buckets.items())
    run.ideal_ns = ideal_ns(summaries, phases, buckets)
    keep_activity(session, run, measure_activity(session, run, history))
    run.accounted_ns = now
    ranked_workflows.mark(session, [run.workflow_id])
    return buckets


def traced_buckets(summaries: Iterable[Summary], phases: Phases) -> Mapping[str, int]:
    """Bucket → ns that the run's traces saw in it, all ranks and captures together.

    Those without whole steps only where `represents_run` says so.
    """
    totals: dict[str, int] = {}
    for summary in summaries:
        if not represents_run(summary, phases):
            continue
        for bucket, ns in (summary.get("buckets") or {}).items():
            totals[bucket] = totals.get(bucket, 0) + int(ns)
    return totals


def last_checkpoint(summaries: Iterable[Summary]) -> int | None:
    """End of the last checkpoint that any trace of the run shows."""
    return max((saved for summary in summaries if (saved := summary.get("saved_ns")) is not None), default=None)


def ideal_ns(summaries: Iterable[Summary], phases: Phases, buckets: Mapping[str, int]) -> int | None:
    """Device time that the FLOPs of the kept steps need at peak rates, by the traces' mean utilisation of FLOPs; None:
    a trace does not tell it, or there is none."""
    fits = [summary for summary in summaries if represents_run(summary, phases)]
    if phases.first_step_ns is None or not fits or any(summary.get("mfu_frac") is None for summary in fits):
        return None
    window_ns = sum(summary["window_ns"] for summary in fits)
    mfu_frac = sum(summary["mfu_frac"] * summary["window_ns"] for summary in fits) / window_ns if window_ns else 0.0
    return round(min(1.0, mfu_frac) * sum(ns for bucket, ns in buckets.items() if bucket in KEPT))


def represents_run(summary: Summary, phases: Phases) -> bool:
    """Does an analysed trace say how its run works? One with whole steps does. A recording without any does if the run
    makes no steps at all, or if it was taken between the first and the last one: a long step looks like that, but so
    does start-up."""
    if summary.get("steps"):
        return True
    if phases.first_step_ns is None:
        return summary.get("saving_unit") == SavingUnit.RECORDING
    return _while_stepping(summary.get("window_start_ns"), phases)


def _while_stepping(time_ns: int | None, phases: Phases) -> bool:
    first, last = phases.first_step_ns, phases.last_step_ns
    return time_ns is not None and first is not None and last is not None and first <= time_ns < last

"""Stacks of live runs: asked for by people, brought by agents with the request that they keep open for captures.

There is one row per run: who asks while an answer is awaited waits for the same one, and the last answer stays. What an
agent says is not believed to be short, small or clean.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.captures.requests import refuse_seen
from tightship_platform.database import ids
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Run, StackDump
from tightship_platform.database.reporters import ANYBODY, Reporter, require_host
from tightship_platform.database.upsert import add_missing
from tightship_platform.errors import Conflict, Invalid
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import RunState
from tightship_platform.wire import STACKS_S, Frame, ProcessFrames, StackAnswer, StackLease

TTL_NS = 120 * NS_PER_S
"""A request that nobody answers for this long is forgotten."""
LEASE_NS = round(STACKS_S) * NS_PER_S
MAX_PROCESSES = 256
MAX_FRAMES = 64
TEXT_MAX = 500
"""Longest name of a function, path or reason, in characters."""
ANSWER_MAX = 256 * 1024
"""Most characters of all frames of an answer: a host with eight ranks and their loaders has a quarter of it."""


def ask(session: Session, key: str, *, by: str, native: bool = False, now: int | None = None) -> str:
    """Ask for the stacks of a live run, as a person names it; returns its id.

    :raises NotFound: there is no such run.
    :raises Ambiguous: several ids of runs begin so.
    :raises Conflict: it is not running, or `tightship run` did not start it.
    """
    now = now_ns() if now is None else now
    run = ids.find_one(session, ids.RUN, select(Run), key)
    if run.state != RunState.RUNNING:
        raise Conflict(f"Run {run.key} is {run.state}; only a running run has stacks")
    refuse_seen(run)
    new = {"run_id": run.id, "requested_by": by, "requested_ns": now, "native": native, "processes": []}
    add_missing(session, StackDump, [new])
    [row] = locked(session, select(StackDump).where(StackDump.run_id == run.id))
    if not _is_awaited(row) or row.requested_ns < now - TTL_NS or (native and not row.native):
        row.requested_by, row.requested_ns, row.native, row.leased_ns = by, now, native, None
    session.flush()
    return run.key


def wanted_runs(session: Session, *, now: int | None = None) -> set[str]:
    """Keys of the live runs whose stacks an agent is to bring."""
    now = now_ns() if now is None else now
    return set(session.scalars(select(Run.key).join(StackDump, StackDump.run_id == Run.id).where(_waits(now))))


def take(
    session: Session, keys: Collection[str], host: str, *, reporter: Reporter = ANYBODY, now: int | None = None
) -> list[StackLease]:
    """Hand an agent the requests for stacks of those of its runs.

    :raises Forbidden: some wait, and the reporter may not speak for this host.
    """
    now = now_ns() if now is None else now
    of_host = select(StackDump.run_id).join(Run).where(_waits(now), Run.key.in_(keys), Run.host_name == host)
    found = session.scalars(of_host).all()
    if not found:
        return []
    require_host(session, reporter, host)
    rows = locked(session, select(StackDump).where(StackDump.run_id.in_(found)).order_by(StackDump.run_id))
    taken = []
    for row in rows:
        if row.leased_ns is None or row.leased_ns <= now - LEASE_NS:
            row.leased_ns = now
            taken.append(StackLease(run=row.run.key, native=row.native))
    session.flush()
    return taken


def answer(
    session: Session, key: str, answered: StackAnswer, *, reporter: Reporter = ANYBODY, now: int | None = None
) -> None:
    """Keep what an agent brings, in place of what was kept before.

    :raises NotFound: there is no such run, or nobody ever asked.
    :raises Conflict: the run is another host's, or nobody waits for its stacks.
    :raises Forbidden: the reporter may not speak for this host.
    :raises Invalid: too many processes, or a number that cannot be.
    """
    now = now_ns() if now is None else now
    host = validation.name("Host", answered.host)
    run_id = select(Run.id).where(Run.key == validation.key("Run", key)).scalar_subquery()
    of_run = select(StackDump).where(StackDump.run_id == run_id)
    row = next(iter(locked(session, of_run)), None)
    if row is None:
        raise ids.RUN.not_found(key)
    if row.run.host_name != host:
        raise Conflict(f"Run {key} is of {row.run.host_name!r}; {host!r} cannot bring its stacks")
    require_host(session, reporter, host)
    if row.leased_ns is None or not _is_awaited(row):
        raise Conflict(f"Nobody waits for stacks of run {key}; ask with `tightship why {key}`")
    row.processes = [dataclasses.asdict(one) for one in _checked(answered.processes, now)]
    row.taken_ns = max(now, row.requested_ns)
    session.flush()


def _is_awaited(row: StackDump) -> bool:
    return row.taken_ns is None or row.taken_ns < row.requested_ns


def _waits(now: int) -> ColumnElement[bool]:
    return and_(
        StackDump.requested_ns >= now - TTL_NS,
        or_(StackDump.taken_ns.is_(None), StackDump.taken_ns < StackDump.requested_ns),
        or_(StackDump.leased_ns.is_(None), StackDump.leased_ns <= now - LEASE_NS),
        Run.end_ns.is_(None),
    )


def _checked(processes: Sequence[ProcessFrames], now: int) -> list[ProcessFrames]:
    if len(processes) > MAX_PROCESSES:
        raise Invalid("Number of processes", len(processes), f"at most {MAX_PROCESSES}")
    left = ANSWER_MAX
    checked = []
    for one in processes:
        frames = [] if left <= 0 else [_frame(frame) for frame in one.frames[:MAX_FRAMES]]
        left -= sum(len(frame.function) + len(frame.file) for frame in frames)
        reason = validation.line(one.reason or "", TEXT_MAX) or None
        if one.frames and not frames:
            reason = f"left out: the stacks of the processes before it have {ANSWER_MAX} characters"
        checked.append(
            ProcessFrames(
                pid=validation.count("Pid", one.pid, least=1, most=validation.INT32_MAX),
                rank=None if one.rank is None else validation.count("Rank", one.rank, most=validation.RANK_MAX),
                steps=None if one.steps is None else validation.count("Steps", one.steps),
                last_step_ns=one.last_step_ns and validation.time_ns("last_step_ns", one.last_step_ns, now),
                runs=one.runs,
                frames=frames,
                reason=reason,
            )
        )
    return checked


def _frame(frame: Frame) -> Frame:
    return Frame(
        function=validation.line(frame.function, TEXT_MAX),
        file=validation.line(frame.file, TEXT_MAX),
        line=validation.count("Line", frame.line, most=validation.INT32_MAX),
    )

"""Planning requests are rows: created once per content, begun by a worker, answered or refused, removed when old.

key = request_plan(database, settings, request)     # a page: creates the row, or finds the one that is there
progress_of(session, key), answer_of(session, key)

A worker claims a row with `begin`, says with `renew` that it is at it, and ends with `finish` or `refuse`. Whose row
has been given to another worker meanwhile changes nothing any more. `sweep` sends again what nobody began or whose
worker died. So a server or a worker may be killed at any point, and any number of each may run.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from tightship_analyzers.offload_planner.request import VERSION, Request
from tightship_platform import validation
from tightship_platform.database.engine import Database
from tightship_platform.database.models import PlanRequest
from tightship_platform.database.upsert import add_missing
from tightship_platform.errors import Conflict, TightshipError
from tightship_platform.results.plan_answer import PlanAnswer, PlanSource
from tightship_platform.settings import Settings
from tightship_platform.tasks.app import send
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import PlanState

PLAN_OFFLOAD = "tightship_analyzers.plan_offload"
"""The task that makes the plan of a row; it carries the row's key."""

AT_ONCE = 2
"""Plans that are made at a time, by all workers together; the other work of the workers goes on beside them."""
MOST_WAITING = 50
MAX_ATTEMPTS = 3
LEASE_NS = 30 * NS_PER_S
"""A plan whose worker gave no sign of life for this long is begun again."""
RENEW_S = 5.0
"""How often a worker gives one."""
RESEND_NS = 30 * NS_PER_S
"""A request that was sent off and not begun within this time is sent off again."""
RETRY_NS = 60 * NS_PER_S
"""A refusal this old does not hold for a new request: what was lacking may be there now."""
KEEP_NS = 14 * 86_400 * NS_PER_S
"""Plans and refusals are kept for this long."""
MAX_ANSWER_BYTES = 64 * 2**20
"""A plan for 10,000 layers with its profile has less than 4 MiB."""
REFUSAL_MAX = 1000

_UNFINISHED = (PlanState.REQUESTED.value, PlanState.PLANNING.value)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a request is."""

    state: PlanState
    stage: str
    refusal: str | None
    """One line: why there is no answer."""
    waited_ns: int
    """Since it was created."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A worker's right to finish a request."""

    key: str
    attempt: int
    request: str
    """As it is stored: see `request.decode_request`."""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Keys of the requests that `sweep` touched."""

    due: list[str] = field(default_factory=list)
    """To be sent off, after the commit."""
    refused: list[str] = field(default_factory=list)
    removed: int = 0


# ---- pages -----------------------------------------------------------------------------------------------------------


def request_plan(database: Database, settings: Settings, request: Request) -> str:
    """Have a plan made, unless it is made or under way already; returns the key to follow it by.

    :raises Conflict: too many others wait.
    """
    with database.session() as session:
        is_due = create(session, request)
    if is_due:
        send(settings, PLAN_OFFLOAD, request.key)  # else the sweep does
    return request.key


def create(session: Session, request: Request, *, now: int | None = None) -> bool:
    """Create the request's row, or start over a refusal of before and an answer that cannot be read. False: the row
    stays as it is.

    :raises Conflict: too many others wait.
    """
    now = now_ns() if now is None else now
    row = _row(session, request.key)
    if row is not None and not _may_start_over(row, now):
        return False
    waiting = session.scalar(select(func.count()).where(PlanRequest.state.in_(_UNFINISHED))) or 0
    if waiting >= MOST_WAITING:
        raise Conflict(f"{waiting} plans wait already; try again in a minute, and see that `tightship worker` runs")
    fresh: dict[str, object] = {
        "request": request.encode(),
        "state": PlanState.REQUESTED.value,
        "stage": "waiting for a worker",
        "answer": None,
        "refusal": None,
        "attempts": 0,
        "created_ns": now,
        "started_ns": None,
        "renewed_ns": now,
        "finished_ns": None,
    }
    if row is None:
        add_missing(session, PlanRequest, [{"key": request.key, "traces_key": request.traces_key} | fresh])
        return True
    return _change(session, PlanRequest.key == request.key, PlanRequest.state == row.state, **fresh)


def progress_of(session: Session, key: str, *, now: int | None = None) -> Progress | None:
    """How far a request is; None: there is none of that key, or it was removed for its age."""
    columns = (PlanRequest.state, PlanRequest.stage, PlanRequest.refusal, PlanRequest.created_ns)
    found = session.execute(select(*columns).where(PlanRequest.key == key)).one_or_none()
    if found is None:
        return None
    waited_ns = (now_ns() if now is None else now) - found.created_ns
    return Progress(state=PlanState(found.state), stage=found.stage, refusal=found.refusal, waited_ns=waited_ns)


def answer_of(session: Session, key: str) -> PlanAnswer:
    """The answer to a request that is `planned`.

    :raises TightshipError: it cannot be read.
    """
    return _decode(session.scalar(select(PlanRequest.answer).where(PlanRequest.key == key)))


# ---- workers ---------------------------------------------------------------------------------------------------------


def begin(session: Session, key: str, *, now: int | None = None) -> Claim | None:
    """Claim a request. None: there is nothing to do, another worker is at it, or enough others are being planned.

    Commit before the work begins, so that others see the claim.
    """
    now = now_ns() if now is None else now
    if _free(session, now) <= 0:
        return None
    claimed = _change(
        session,
        PlanRequest.key == key,
        PlanRequest.state == PlanState.REQUESTED.value,
        state=PlanState.PLANNING.value,
        stage="starting",
        attempts=PlanRequest.attempts + 1,
        started_ns=now,
        renewed_ns=now,
    )
    row = _row(session, key) if claimed else None
    return None if row is None else Claim(key=key, attempt=row.attempts, request=row.request)


def renew(session: Session, claim: Claim, stage: str | None = None, *, now: int | None = None) -> bool:
    """Say that the work goes on, and at which stage it is. False: the claim is lost."""
    more = {} if stage is None else {"stage": validation.line(stage, 200)}
    return _change(session, *_held(claim), renewed_ns=now_ns() if now is None else now, **more)


def finish(session: Session, claim: Claim, answer: PlanAnswer, *, now: int | None = None) -> bool:
    """Store the answer. False: the claim is lost, and nothing has changed."""
    return _end(session, claim, now, state=PlanState.PLANNED.value, answer=_encode(answer))


def refuse(session: Session, claim: Claim, why: str, *, now: int | None = None) -> bool:
    """End without an answer, for a reason in one line. False: the claim is lost, and nothing has changed."""
    return _end(session, claim, now, state=PlanState.REFUSED.value, refusal=validation.line(why, REFUSAL_MAX))


def known_profile(session: Session, traces_key: str | None) -> tuple[str, PlanSource] | None:
    """The profile that an earlier request read from the same traces, and from which of them; None: there is none."""
    planned = (PlanRequest.traces_key == traces_key, PlanRequest.state == PlanState.PLANNED.value)
    stored = session.scalar(select(PlanRequest.answer).where(*planned).order_by(PlanRequest.id.desc()).limit(1))
    try:
        found = _decode(stored)
    except TightshipError:
        return None
    return None if found.source is None else (found.profile, found.source)


def due(session: Session, *, sent_before: int, now: int | None = None) -> list[str]:
    """The requests that may be begun now, oldest first, and were not sent off since `sent_before`; marks them sent.

    Send them after the commit: a worker that takes the task must find the row as it is now.
    """
    now = now_ns() if now is None else now
    waiting = select(PlanRequest.key, PlanRequest.renewed_ns).where(PlanRequest.state == PlanState.REQUESTED.value)
    first = session.execute(waiting.order_by(PlanRequest.created_ns, PlanRequest.id).limit(max(0, _free(session, now))))
    keys = [key for key, renewed_ns in first.all() if renewed_ns <= sent_before]
    for key in keys:
        _change(session, PlanRequest.key == key, PlanRequest.state == PlanState.REQUESTED.value, renewed_ns=now)
    return keys


def sweep(session: Session, *, now: int | None = None) -> Swept:
    """Take back, or give up, what a dead worker held; say what is to be sent off; remove what is old."""
    now = now_ns() if now is None else now
    swept = Swept(removed=_remove_old(session, now))
    held = PlanRequest.state == PlanState.PLANNING.value, PlanRequest.renewed_ns <= now - LEASE_NS
    for key, attempts in session.execute(select(PlanRequest.key, PlanRequest.attempts).where(*held)).all():
        same = PlanRequest.key == key, PlanRequest.attempts == attempts, *held
        if attempts < MAX_ATTEMPTS:
            stage = f"waiting for a worker: the last one died (attempt {attempts} of {MAX_ATTEMPTS})"
            _change(session, *same, state=PlanState.REQUESTED.value, stage=stage, renewed_ns=0)
            continue
        why = (
            f"its worker died {attempts} times, as when memory is short; the worker's log says more. "
            "`tightship offload plan` plans without a worker"
        )
        if _change(session, *same, state=PlanState.REFUSED.value, refusal=why, finished_ns=now):
            swept.refused.append(key)
    swept.due.extend(due(session, sent_before=now - RESEND_NS, now=now))
    return swept


# ---- rows ------------------------------------------------------------------------------------------------------------


def _row(session: Session, key: str) -> PlanRequest | None:
    wanted = select(PlanRequest).where(PlanRequest.key == key).execution_options(populate_existing=True)
    return session.scalar(wanted)


def _change(session: Session, *which: ColumnElement[bool], **values: Any) -> bool:
    """Change the row of these conditions in one statement; False: it is not as they say, and stays as it is."""
    statement = update(PlanRequest).where(*which).values(**values).execution_options(synchronize_session=False)
    return bool(session.execute(statement).rowcount)  # type: ignore[attr-defined]  # a cursor's result has it


def _held(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return (
        PlanRequest.key == claim.key,
        PlanRequest.state == PlanState.PLANNING.value,
        PlanRequest.attempts == claim.attempt,
    )


def _end(session: Session, claim: Claim, now: int | None, **values: Any) -> bool:
    now = now_ns() if now is None else now
    return _change(session, *_held(claim), stage="over", renewed_ns=now, finished_ns=now, **values)


def _free(session: Session, now: int) -> int:
    """How many more may be planned at this time."""
    alive = PlanRequest.state == PlanState.PLANNING.value, PlanRequest.renewed_ns > now - LEASE_NS
    return AT_ONCE - (session.scalar(select(func.count()).where(*alive)) or 0)


def _may_start_over(row: PlanRequest, now: int) -> bool:
    if row.state == PlanState.REFUSED:
        return (row.finished_ns or 0) <= now - RETRY_NS
    if row.state != PlanState.PLANNED:
        return False
    try:
        _decode(row.answer)
    except TightshipError:
        return True
    return False


def _remove_old(session: Session, now: int) -> int:
    """Plans and refusals that are older than they are kept."""
    final = [state.value for state in PlanState if state.is_final]
    old = delete(PlanRequest).where(PlanRequest.state.in_(final), PlanRequest.finished_ns < now - KEEP_NS)
    return int(session.execute(old.execution_options(synchronize_session=False)).rowcount)  # type: ignore[attr-defined]


def _encode(answer: PlanAnswer) -> bytes:
    return zlib.compress(json.dumps({"version": VERSION, "answer": asdict(answer)}).encode())


def _decode(stored: bytes | None) -> PlanAnswer:
    unreadable = TightshipError("The stored plan cannot be read: it was cut short, or another release wrote it")
    try:
        reader = zlib.decompressobj()
        document = json.loads(reader.decompress(stored or b"", MAX_ANSWER_BYTES))
        if document["version"] != VERSION or not reader.eof:
            raise unreadable
        return msgspec.convert(document["answer"], PlanAnswer)
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError):
        raise unreadable from None

"""Which row a person means by an id.

[Note: ids that people type] Nobody copies sixteen characters where four name one run. Where a person names a run or a
capture, to a command, the API or a page, its beginning will do if no other's begins so, and `@` is the newest:
`@train` of the workflow `train`, `@~1` and `@train~1` the one before. A session sees
its team's rows alone (`database.teams`), so another team's ids are not found, counted or listed. Ids that
are numbers are short and named whole: a finding that is gone must not become a later one whose number begins the same.
For that reason, too, the API deletes by whole ids alone. Agents and launchers name whole ids, and are not served from
here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from tightship_platform.database import models
from tightship_platform.errors import Ambiguous, Invalid, NotFound

T = TypeVar("T")

NEWEST = "@"
SHOWN = 5
"""Of many ids that begin alike, so many are named: the newest."""
_BEGINNING = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_NEWEST = re.compile(r"@(?P<workflow>.*?)(?:~(?P<back>\d{1,6}))?", re.ASCII | re.DOTALL)
"""The newest, or one before it, of a workflow or of all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """A kind of things that have ids."""

    word: str
    id: InstrumentedAttribute[Any]
    """The public id."""
    made_ns: InstrumentedAttribute[int]
    row: InstrumentedAttribute[int]
    run: InstrumentedAttribute[int]
    """The row of the run that it is, or is of."""
    hint: str
    """Where their ids are to be found."""

    @property
    def is_number(self) -> bool:
        """Their ids are numbers."""
        return self.id is self.row

    def not_found(self, text: str) -> NotFound:
        """No such thing, or none that the session may see."""
        hint = "there is none yet" if text == NEWEST else self.hint
        return NotFound(self.word, text[:40], hint)


RUN = Kind(
    word="run",
    id=models.Run.key,
    made_ns=models.Run.start_ns,
    row=models.Run.id,
    run=models.Run.id,
    hint="see `tightship runs`",
)
CAPTURE = Kind(
    word="capture",
    id=models.Capture.key,
    made_ns=models.Capture.requested_ns,
    row=models.Capture.id,
    run=models.Capture.run_id,
    hint="see `tightship captures`",
)
FINDING = Kind(
    word="finding",
    id=models.Finding.id,
    made_ns=models.Finding.created_ns,
    row=models.Finding.id,
    run=models.Finding.run_id,
    hint="see `tightship findings`; a new analysis replaces older findings",
)
TRACE = Kind(
    word="trace",
    id=models.Trace.id,
    made_ns=models.Trace.created_ns,
    row=models.Trace.id,
    run=models.Trace.run_id,
    hint="see `tightship trace list`",
)


def row_of(session: Session, wanted: Select[T], number: int) -> T | None:
    """The row of that id, of those that `wanted` selects; None: there is none, as of a number that no id can be.

    :param wanted: selects one model, whose ids are numbers.
    """
    (model,) = (column["entity"] for column in wanted.column_descriptions)
    return session.scalar(wanted.where(model.id == number)) if 0 < number < 2**63 else None


def find_any(session: Session, kinds: Sequence[Kind], text: str) -> tuple[Kind, str]:
    """The thing that a person means, of one of several kinds, and its whole id.

    :param kinds: what begins with `@` is of the first.
    :raises NotFound: no id is this or begins so.
    :raises Ambiguous: several are this, or none is and several begin so.
    """
    if text.startswith(NEWEST):
        return kinds[0], str(_newest(session, kinds[0], text))
    whole = [kind for kind in kinds if _is_whole(session, kind, text)]
    if len(whole) > 1:
        named = [f"{kind.word} {text}" for kind in whole]
        raise Ambiguous("id", text, named, hint=f"name the kind: `{named[0]}`")
    if whole:
        return whole[0], str(int(text)) if whole[0].is_number else text
    found = [(kind, key) for kind in kinds for key in _beginning(session, kind, text)]
    if not found:
        one_of = " or ".join(kind.word for kind in kinds)
        raise kinds[0].not_found(text) if len(kinds) == 1 else NotFound(one_of, text[:40], kinds[0].hint)
    if len(found) > 1:
        alike = {kind.word for kind, _ in found}
        named = [key if len(alike) == 1 else f"{kind.word} {key}" for kind, key in found[:SHOWN]]
        count = sum(_count(session, kind, text) for kind in kinds)
        what = f"{alike.pop()} id" if len(kinds) == 1 else "id"
        raise Ambiguous(what, text, named, more=max(count - SHOWN, 0))
    return found[0]


def find_key(session: Session, kind: Kind, text: str) -> str:
    """The whole id of the run or capture that a person means: see [Note: ids that people type].

    :raises NotFound: no id is this or begins so.
    :raises Ambiguous: several begin so.
    """
    return find_any(session, [kind], text)[1]


def find_one(session: Session, kind: Kind, wanted: Select[T], text: str) -> T:
    """The run or capture that a person means, as `wanted` selects it.

    :raises NotFound: no id is this or begins so.
    :raises Ambiguous: several begin so.
    """
    found = session.scalar(wanted.where(kind.id == text))
    if found is None:
        found = session.scalar(wanted.where(kind.id == find_key(session, kind, text)))
    if found is None:  # it went in between
        raise kind.not_found(text)
    return found


def find_number(session: Session, kind: Kind, text: str) -> int:
    """The number of the finding or trace that a person means, which need not exist unless it is the newest.

    :raises Invalid: the text is no number.
    :raises NotFound: there is none yet, or the number is more than an id can be.
    """
    if text.startswith(NEWEST):
        return int(_newest(session, kind, text))
    if _NUMBER.fullmatch(text):
        return int(text)
    if text.isascii() and text.isdigit():  # more than an id can be
        raise kind.not_found(text)
    raise Invalid(f"Id of a {kind.word}", text, f"a whole number, or {NEWEST} for the newest; {kind.hint}")


def _is_whole(session: Session, kind: Kind, text: str) -> bool:
    if kind.is_number:
        wanted = select(kind.id).where(kind.id == int(text)) if _NUMBER.fullmatch(text) else None
    else:
        wanted = select(kind.id).where(kind.id == text) if _BEGINNING.fullmatch(text) else None
    return wanted is not None and session.scalar(wanted) is not None


def _begins(kind: Kind, text: str) -> ColumnElement[bool] | None:
    """None: no id of the kind begins so."""
    if kind.is_number or not _BEGINNING.fullmatch(text):
        return None
    # Not LIKE, for which SQLite takes capitals and small letters alike, and which no index serves on PostgreSQL.
    return func.substr(kind.id, 1, len(text)) == text


def _beginning(session: Session, kind: Kind, text: str) -> Sequence[str]:
    """Ids that begin so, the newest first; of more than SHOWN some."""
    begins = _begins(kind, text)
    if begins is None:
        return []
    newest = select(kind.id).where(begins).order_by(kind.made_ns.desc(), kind.row.desc()).limit(SHOWN + 1)
    return session.scalars(newest).all()


def _count(session: Session, kind: Kind, text: str) -> int:
    begins = _begins(kind, text)
    return 0 if begins is None else session.scalar(select(func.count(kind.id)).where(begins)) or 0


def _newest(session: Session, kind: Kind, text: str) -> Any:
    asked = _NEWEST.fullmatch(text)
    assert asked is not None  # any text that begins with @ is one
    wanted = select(kind.id).order_by(kind.made_ns.desc(), kind.row.desc())
    if asked["workflow"]:
        of_workflow = select(models.Run.id).join(models.Workflow).where(models.Workflow.name == asked["workflow"])
        wanted = wanted.where(kind.run.in_(of_workflow))
    # Of the live fleet: what an import brings is found by its id alone.
    live = aliased(models.Run)
    wanted = wanted.where(exists().where(live.id == kind.run, live.fleet_id.is_(None)))
    found = session.scalar(wanted.offset(int(asked["back"] or 0)).limit(1))
    if found is None:
        raise kind.not_found(text)
    return found

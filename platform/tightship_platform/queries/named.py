"""What an id names, among things of several kinds."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database import ids, models
from tightship_platform.errors import Invalid
from tightship_platform.results.named import Named, finding_href, one_trace_href, run_href

KINDS = {kind.word: kind for kind in (ids.RUN, ids.CAPTURE, ids.FINDING, ids.TRACE)}


def find_named(session: Session, text: str, kinds: Sequence[str], *, public_url: str = "") -> Named:
    """The thing that a person means: see [Note: ids that people type] in `database.ids`.

    :param kinds: what it may be; what begins with `@` is of the first of them.
    :param public_url: where browsers find the server, if not at the address that the caller has.
    :raises NotFound: there is none.
    :raises Ambiguous: there are several.
    :raises Invalid: no such kind, or none at all.
    """
    unknown = next((kind for kind in kinds if kind not in KINDS), None if kinds else "")
    if unknown is not None:
        raise Invalid("kind", unknown, f"one of {', '.join(KINDS)}")
    kind, key = ids.find_any(session, [KINDS[word] for word in kinds], text)
    run, capture, rank = _place(session, kind, key)
    pages = {
        ids.RUN: lambda: run_href(run),
        ids.CAPTURE: lambda: one_trace_href(key),
        ids.FINDING: lambda: finding_href(key),
        ids.TRACE: lambda: one_trace_href(capture, rank) if capture is not None else run_href(run),
    }
    return Named(kind=kind.word, id=key, run=run, capture=capture, rank=rank, page=public_url + pages[kind]())


def _place(session: Session, kind: ids.Kind, key: str) -> tuple[str, str | None, int | None]:
    """Run, capture and rank that a thing is, or is of."""
    if kind is ids.RUN:
        return key, None, None
    if kind is ids.CAPTURE:
        of_capture = select(models.Run.key).join(models.Capture, models.Capture.run_id == models.Run.id)
        run = session.scalar(of_capture.where(models.Capture.key == key))
        if run is None:  # it went in between
            raise kind.not_found(key)
        return run, key, None
    wanted = select(models.Run.key, models.Capture.key, models.Trace.rank)
    if kind is ids.FINDING:
        wanted = (
            wanted.select_from(models.Finding)
            .join(models.Run, models.Run.id == models.Finding.run_id)
            .outerjoin(models.Trace, models.Trace.id == models.Finding.trace_id)
        )
    else:
        wanted = wanted.select_from(models.Trace).join(models.Run, models.Run.id == models.Trace.run_id)
    wanted = wanted.outerjoin(models.Capture, models.Capture.id == models.Trace.capture_id)
    found = session.execute(wanted.where(kind.id == int(key))).one_or_none()
    if found is None:
        raise kind.not_found(key)
    return found[0], found[1], found[2]

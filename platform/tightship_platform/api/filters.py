"""The filters in the query of a request for a list."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated

from fastapi import Depends, Query

from tightship_platform.results.filters import Filters, FilterTexts

_Time = Annotated[str | None, Query(description="`2h` or `3d` (ago), a day, or a time; UTC where it names no zone")]
_Labels = Annotated[list[str] | None, Query(description="`key=value`; all of several")]


async def _filters(
    since: _Time = None,
    until: _Time = None,
    state: str | None = None,
    fleet: Annotated[str | None, Query(description="an imported fleet; default: the live one")] = None,
    workflow: str | None = None,
    team: str | None = None,
    owner: str | None = None,
    user: str | None = None,
    host: str | None = None,
    job_id: str | None = None,
    commit: Annotated[str | None, Query(description="a git commit, or how it begins")] = None,
    rule: Annotated[str | None, Query(description="a rule that found something")] = None,
    label: _Labels = None,
    search: Annotated[
        str | None, Query(description="words, labels and other filters: `vision lr=3e-4 host:gpu17`")
    ] = None,
) -> Filters:
    texts = FilterTexts(
        since=since,
        until=until,
        state=state,
        fleet=fleet,
        workflow=workflow,
        team=team,
        owner=owner,
        user=user,
        host=host,
        job_id=job_id,
        commit=commit,
        rule=rule,
        label=label or (),
        search=search,
    )
    return texts.read(zone=UTC)


# Not on the thread pool, which may be full: that is what `async` says here.
Wanted = Annotated[Filters, Depends(_filters)]
"""What the list is to show. :raises Invalid: one of them is no such value."""

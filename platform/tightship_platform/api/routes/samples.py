"""Samples as they were measured."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from tightship_platform.api.filters import Wanted
from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries import samples
from tightship_platform.results.sample import Sample
from tightship_platform.vocabulary import Scope

router = scoped_router("samples")
_Metrics = Annotated[list[str] | None, Query(description="a metric by its name; any of several")]
_After = Annotated[str | None, Query(description="TIME_NS/HOST/DEVICE/RUN/METRIC; null is empty, the rest URL-encoded")]


@router.get("/samples", dependencies=[needs(Scope.READ)], response_model=list[Sample])
def list_samples(
    database: Db,
    filters: Wanted,
    device: Annotated[str | None, Query(description="UUID")] = None,
    run: str | None = None,
    metric: _Metrics = None,
    after: _After = None,
    limit: int = samples.SAMPLES_AT_ONCE,
) -> Answer:
    """Samples, one value each, newest first; of those after `after`, the last one of the page before. `since` and
    `until` are about when they were measured, `host` about where; without `since` and `run`, they are those of the last
    hour. The other filters are about the run that alone held the device then."""
    with database.session() as session:
        found = samples.list_samples(
            session, filters, device=device, run=run, metrics=metric or (), after=after, limit=limit
        )
    return Answer(found)

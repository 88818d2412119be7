"""What an id names."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from tightship_platform.api.reply import Answer, Config, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries.named import KINDS, find_named
from tightship_platform.results.named import Named
from tightship_platform.vocabulary import Scope

router = scoped_router("ids")


@router.get("/ids", dependencies=[needs(Scope.READ)], response_model=Named)
def find(
    database: Db,
    settings: Config,
    id: Annotated[
        str,
        Query(
            description="An id or the beginning of one; `@`: the newest, `@NAME`: of a workflow, `@~1`: the one before"
        ),
    ],
    kind: Annotated[list[str] | None, Query(description="What it may be of; default: all, in this order")] = None,
) -> Answer:
    """What an id names: a run, a capture, a finding or a trace, and the address of its page. Of a run or capture the
    beginning of the id is enough; where that means several, the refusal (409) names them."""
    with database.session() as session:
        return Answer(find_named(session, id, kind or list(KINDS), public_url=settings.public_url))

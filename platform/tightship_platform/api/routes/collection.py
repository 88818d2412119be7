"""Is the collection healthy?"""

from __future__ import annotations

from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries.collection import read_collection
from tightship_platform.results.collection import CollectionHealth
from tightship_platform.vocabulary import Scope

router = scoped_router("collection")


@router.get("/collection", dependencies=[needs(Scope.READ)], response_model=CollectionHealth)
def collection(database: Db) -> Answer:
    """What each host delivers, and what waits or failed behind it. Captures and runs are those of the token's team."""
    with database.session() as session:
        return Answer(read_collection(session))

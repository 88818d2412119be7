"""Having a capture analyzed again, for the API and the dashboard's button alike."""

from __future__ import annotations

from tightship_platform import captures
from tightship_platform.api.auth import require
from tightship_platform.database import ids
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.queries.captures import get_capture
from tightship_platform.results.capture import Capture
from tightship_platform.settings import Settings
from tightship_platform.tasks.app import ANALYZE_CAPTURE, send
from tightship_platform.vocabulary import Scope


def analyze_again(database: Database, settings: Settings, key: str) -> Capture:
    """Have the stored traces of a capture analyzed again; the result of the earlier analysis stays until then.

    :param key: as a person gives it: see [Note: ids that people type] in `database.ids`.
    :raises NotFound: no such capture.
    :raises Ambiguous: several ids begin so.
    :raises Conflict: the capture is under way, or none of its traces is stored any more.
    """
    actor = require(Scope.CAPTURE).name
    with database.session() as session:
        key = ids.find_key(session, ids.CAPTURE, key)
        captures.analyze_again(session, key)
        due = captures.count_waiting(session, key)
        audit(session, actor, "capture.analyze", key)
        capture = get_capture(session, key)
    for _ in range(due):
        send(settings, ANALYZE_CAPTURE, key)
    return capture

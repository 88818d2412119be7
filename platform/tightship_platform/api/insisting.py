"""Who may insist on recording a job that it could abort: whose job it is, and administrators."""

from __future__ import annotations

from tightship_platform.api.auth import require
from tightship_platform.errors import Forbidden
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import CaptureParams


def require_own_risk(params: CaptureParams, what: str, *, user: str | None = None) -> None:
    """Pass where the capture cannot harm the job, or the caller of this request answers for it.

    :param what: is to be recorded: `run a1`. The caller sees it, so with a token of a team it is that team's.
    :param user: whose alone it is; None: not only one user's.
    :raises Forbidden: it is somebody else's.
    """
    if not params.insist:
        return
    caller = require(Scope.CAPTURE)
    if caller.may(Scope.ADMIN) or caller.team is not None or (caller.user is not None and caller.user == user):
        return
    raise Forbidden(
        f"Token {caller.name!r} cannot insist on recording {what}, which could abort it; "
        "ask without `insist`, or with a token of its team or user, or an administrator's"
    )

"""Which team the runs of a user belong to, as an administrator says: where the token that reports them has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from tightship_platform import validation
from tightship_platform.database.audit import audit
from tightship_platform.database.models import UserTeam
from tightship_platform.errors import NotFound
from tightship_platform.results import token as results

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def set_team(session: Session, user: str, team: str | None, *, actor: str = "cli") -> None:
    """Put the runs that a user reports from now on by tokens without a team into this one; None: into none.

    :raises Invalid: one of them is no name.
    :raises NotFound: the user is of no team already.
    """
    row = session.get(UserTeam, validation.name("User", user))
    if team is not None:
        session.merge(UserTeam(user_name=user, team=validation.name("Team", team)))
    elif row is not None:
        session.delete(row)
    else:
        raise NotFound("user of a team", user, "see `tightship token teams`")
    audit(session, actor, "user.team", user, team=team)


def list_teams(session: Session) -> list[results.UserTeam]:
    """Users who were given a team, by name."""
    rows = session.scalars(select(UserTeam).order_by(UserTeam.user_name))
    return [results.UserTeam(user=row.user_name, team=row.team) for row in rows]

"""What the groups of TIGHTSHIP_SSO_GROUPS permit here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tightship_platform import validation
from tightship_platform.errors import Invalid
from tightship_platform.vocabulary import Scope

SETTING = "TIGHTSHIP_SSO_GROUPS"
SCOPES = (Scope.READ, Scope.CAPTURE, Scope.APPLY, Scope.ADMIN)
"""What a person may be permitted in a browser; runs and traces are sent with tokens."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What one group permits."""

    group: str
    """Its name as the provider writes it."""
    scopes: tuple[Scope, ...]
    team: str | None = None
    """Its members see this team only; null: all."""


def read_grants(setting: str) -> tuple[Grant, ...]:
    """The grants of `GROUP=SCOPE,…@TEAM; …`, in their order. A group's name may hold anything but `;`.

    :raises Invalid: an entry is none, a group comes twice, or there is no entry.
    """
    grants = tuple(_grant(entry.strip()) for entry in setting.split(";") if entry.strip())
    if not grants:
        raise Invalid(SETTING, setting, "at least one GROUP=SCOPE,… or GROUP=SCOPE,…@TEAM, separated by ';'")
    names = [grant.group for grant in grants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Invalid(f"{SETTING}, a group that comes twice,", twice, "each group once")
    return grants


def grant_of(grants: Sequence[Grant], groups: Collection[str]) -> Grant | None:
    """The first grant whose group a person is in; None: they are in none."""
    return next((grant for grant in grants if grant.group in groups), None)


def _grant(entry: str) -> Grant:
    group, found, rest = entry.rpartition("=")
    words, at, team = rest.partition("@")
    names = [word.strip() for word in words.split(",")]
    if not (found and group.strip()) or not all(name in [scope.value for scope in SCOPES] for name in names):
        expected = f"GROUP=SCOPE,… or GROUP=SCOPE,…@TEAM with scopes out of {', '.join(SCOPES)}"
        raise Invalid(f"An entry of {SETTING}", entry, expected)
    scopes = {Scope(name) for name in names}
    if Scope.READ not in scopes and Scope.ADMIN not in scopes:
        raise Invalid(f"An entry of {SETTING}", entry, "the scope 'read' or 'admin' in it, which the pages need")
    if at:
        team = validation.name(f"The team in {SETTING}", team.strip())
        if Scope.ADMIN in scopes:
            raise Invalid(f"An entry of {SETTING}", entry, "no team with the scope 'admin', which is for all teams")
    return Grant(group=group.strip(), scopes=tuple(sorted(scopes)), team=team or None)

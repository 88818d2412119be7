"""Filters of lists as conditions of SQL; what they mean stands in `results.filters`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, false, func, literal, or_, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_platform.database import models
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.results.filters import Filters

Conditions = list[ColumnElement[bool]]
_AFTER_DIGITS = "g"
"""Comes after every commit that begins with the digits before it."""


def within(filters: Filters, time_ns: ColumnElement[Any] | InstrumentedAttribute[Any]) -> Conditions:
    """Rows whose time lies in what is asked for."""
    found: Conditions = []
    if filters.since_ns is not None:
        found.append(time_ns >= filters.since_ns)
    if filters.until_ns is not None:
        found.append(time_ns < filters.until_ns)
    return found


def checked_state(filters: Filters, states: Iterable[str]) -> str | None:
    """The state that is asked for, which is one of these.

    :raises Invalid: it is none of them.
    """
    known = [str(state) for state in states]
    if filters.state is not None and filters.state not in known:
        raise Invalid("state", filters.state, f"one of {', '.join(known)}")
    return filters.state


def in_fleet(
    session: Session, filters: Filters, fleet_id: ColumnElement[Any] | InstrumentedAttribute[Any]
) -> ColumnElement[bool]:
    """Rows of the fleet that is asked for; without a name, of the live one.

    :raises NotFound: there is no such imported fleet, or none that the session may see.
    """
    if filters.fleet is None:
        return fleet_id.is_(None)
    found = session.scalar(select(models.Fleet.id).where(models.Fleet.name == filters.fleet))
    if found is None:
        raise NotFound("fleet", filters.fleet, "`tightship fleets` lists them")
    return fleet_id == found


def of_fleet(session: Session, filters: Filters, run_id: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Rows of a run of the fleet that is asked for.

    :param run_id: names the run. Each row's run is looked up, so that no list reads all runs.
    """
    return exists().where(models.Run.id == run_id, in_fleet(session, filters, models.Run.fleet_id))


def of_runs(session: Session, filters: Filters) -> Conditions:
    """Runs that meet all that is said of runs, except for fleet, state, times and rule."""
    run = models.Run
    exact = (
        (run.user_name, filters.user),
        (run.host_name, filters.host),
        (run.external_id, filters.job_id),
    )
    found: Conditions = [column == value for column, value in exact if value is not None]
    workflow = models.Workflow
    named = (
        (workflow.name, filters.workflow),
        (workflow.team, filters.team),
        (workflow.owner, filters.owner),
    )
    if of_workflow := [column == value for column, value in named if value is not None]:
        found.append(run.workflow_id.in_(select(workflow.id).where(*of_workflow)))
    if filters.commit is not None:
        found += [run.git_commit >= filters.commit, run.git_commit < filters.commit + _AFTER_DIGITS]
    return found + _labelled(session, filters) + [_finds(session, word) for word in filters.words]


def with_rule(filters: Filters) -> Conditions:
    """Runs in which the rule found something."""
    if filters.rule is None:
        return []
    return [models.Run.id.in_(select(models.Finding.run_id).where(models.Finding.rule == filters.rule))]


def among_runs(
    session: Session,
    filters: Filters,
    column: ColumnElement[Any] | InstrumentedAttribute[Any],
    of_run: InstrumentedAttribute[Any],
    *conditions: ColumnElement[bool],
) -> Conditions:
    """Rows whose `column` is `of_run` of a run that meets what is said of runs, and `conditions`; [] if nothing is."""
    wanted = [*of_runs(session, filters), *conditions]
    runs: Select[Any] = select(of_run).where(*wanted)
    return [column.in_(runs)] if wanted else []


def without(filters: Filters, *names: str) -> Filters:
    """The filters but those of these names, which a list meets in another way."""
    nothing: Any = dict.fromkeys(names)
    return replace(filters, **nothing)


def _labelled(session: Session, filters: Filters) -> Conditions:
    if not filters.labels:
        return []
    if _is_postgresql(session):
        if len(dict(filters.labels)) < len(set(filters.labels)):  # no run has two values of one label
            return [false()]
        return [type_coerce(models.Run.labels, JSONB).contains(dict(filters.labels))]
    return [_has_label(session, value, key) for key, value in filters.labels]


def _has_label(session: Session, value: str, key: str | None = None) -> ColumnElement[bool]:
    """Runs with a label of this value."""
    pairs = func.jsonb_each_text if _is_postgresql(session) else func.json_each
    each = pairs(models.Run.labels).table_valued("key", "value").alias()
    one = select(literal(1)).select_from(each).where(each.c.value == value)
    return (one if key is None else one.where(each.c.key == key)).exists()


def _finds(session: Session, word: str) -> ColumnElement[bool]:
    """Runs in which a word is found; see `Filters.words`. No index helps: all runs may be looked at."""
    run, workflow = models.Run, models.Workflow
    named = (column.icontains(word, autoescape=True) for column in (workflow.name, workflow.team, workflow.owner))
    return or_(
        run.key.startswith(word, autoescape=True),
        run.name.icontains(word, autoescape=True),
        run.git_commit.startswith(word.lower(), autoescape=True),
        run.workflow_id.in_(select(workflow.id).where(or_(*named))),
        run.host_name.icontains(word, autoescape=True),
        run.user_name == word,
        run.external_id == word,
        _has_label(session, word),
    )


def _is_postgresql(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"

"""Samples as they are listed, on both databases: whose each is, filters, pages, and what a team sees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from records import GPU, T0, S, batch, ended, held, host_samples, run_samples, samples, started
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.reporters import Reporter
from tightship_platform.database.teams import see_team
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.queries.samples import RECENT_NS, list_samples
from tightship_platform.results.filters import Filters
from tightship_platform.results.sample import METRICS, Sample, place_of

NOW = T0 + 60 * S
ALL = Filters(since_ns=T0 - 100 * S)
TIMES = range(T0, T0 + 10 * S, S)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """Ten seconds of a device: of run a1, from the fourth of a2 as well, from the sixth of a2 alone, then of nobody."""
    with database.session() as opened:
        red, blue = Reporter(name="red", is_admin=True, team="red"), Reporter(name="blue", is_admin=True, team="blue")
        ingest.apply_run(opened, started("a1", "train"), reporter=red, now=NOW)
        ingest.apply_run(opened, ended("a2", "eval", end_ns=T0 + 8 * S), reporter=blue, now=NOW)
        of_a1, of_a2 = held("a1", T0, T0 + 6 * S, "GPU-1"), held("a2", T0 + 4 * S, None, "GPU-1")
        seen = samples(TIMES, "GPU-1", sm_active_frac=0.5, memory_used_bytes=1 << 30)
        described = {"devices": [GPU], "samples": seen}
        used = {"run_samples": run_samples([T0 + 2 * S], "a1", "GPU-1", util_frac=0.25)}
        ingest.apply_batch(opened, batch(allocations=[of_a1], **described, **used), now=NOW, reporter=red)
        ingest.apply_batch(opened, batch(allocations=[of_a2]), now=NOW, reporter=blue)
        there = {"host_samples": host_samples([T0 + 2 * S], cpu_frac=0.125), "samples": samples([T0 + S], power_w=90.5)}
        ingest.apply_batch(opened, batch("h2", **there), now=NOW)
        yield opened
    see_team(None)


def runs_of(found: list[Sample]) -> list[str | None]:
    """Of a device's samples, the oldest first."""
    return [sample.run for sample in reversed(found) if sample.metric == "sm_active_frac"]


def test_each_value_names_its_place_and_the_run_that_alone_held_the_device_then(session: Session) -> None:
    found = list_samples(session, ALL)
    assert len(found) == 23
    assert runs_of(found) == ["a1"] * 4 + [None] * 2 + ["a2"] * 2 + [None] * 2
    at = {"time_ns": T0 + 2 * S, "host": "h1", "device": "GPU-1"}
    assert [sample for sample in found if sample.time_ns == T0 + 2 * S] == [
        Sample(**at, run="a1", metric="sm_active_frac", value=0.5),
        Sample(**at, run="a1", metric="memory_used_bytes", value=1 << 30),
        Sample(time_ns=T0 + 2 * S, host="h2", device=None, run=None, metric="host_cpu_frac", value=0.125),
        Sample(**at, run="a1", metric="run_util_frac", value=0.25),
    ]
    assert [sample.time_ns for sample in found] == sorted((sample.time_ns for sample in found), reverse=True)


def test_what_is_asked_for_is_what_comes(session: Session) -> None:
    assert runs_of(list_samples(session, ALL, run="a1")) == ["a1"] * 4
    assert {s.metric for s in list_samples(session, run="a1")} == {
        *("sm_active_frac", "memory_used_bytes", "run_util_frac")
    }
    assert runs_of(list_samples(session, Filters(since_ns=T0 - S, workflow="eval"))) == ["a2"] * 2
    assert runs_of(list_samples(session, Filters(since_ns=T0 - S, state="running"))) == ["a1"] * 4
    (only,) = list_samples(session, ALL, metrics=["power_w"])
    assert (only.host, only.device, only.value) == ("h2", "cpu", 90.5)
    assert {s.host for s in list_samples(session, Filters(since_ns=T0 - S, host="h2"))} == {"h2"}
    assert {s.device for s in list_samples(session, ALL, device="GPU-1")} == {"GPU-1"}
    seconds = Filters(since_ns=T0 + 2 * S, until_ns=T0 + 4 * S)
    assert {s.time_ns for s in list_samples(session, seconds)} == {T0 + 2 * S, T0 + 3 * S}
    assert list_samples(session, now=T0 + RECENT_NS + 8 * S) == list_samples(session, Filters(since_ns=T0 + 8 * S))
    with pytest.raises(Invalid, match="metric is 'sm_activ'; expected one of util_frac, "):
        list_samples(session, metrics=["sm_activ"])
    with pytest.raises(NotFound):
        list_samples(session, run="a3")
    with pytest.raises(Invalid, match="limit is 0"):
        list_samples(session, limit=0)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_hold_each_sample_once(session: Session, limit: int) -> None:
    whole, shown = list_samples(session, ALL), list_samples(session, ALL, limit=limit)
    while page := list_samples(session, ALL, limit=limit, after=place_of(shown[-1])):
        assert len(page) <= limit
        shown += page
    assert shown == whole


def test_a_page_begins_after_a_sample_or_not_at_all(session: Session) -> None:
    for text in ("x", "1/h/d/r", "1/h/d/r/none", f"{10**19}/h/d/r/power_w", "-1/h/d/r/power_w"):
        with pytest.raises(Invalid, match="TIME_NS/HOST/DEVICE/RUN/METRIC"):
            list_samples(session, ALL, after=text)
    with pytest.raises(NotFound, match="begin again without `after`"):
        list_samples(session, ALL, after=f"{T0}/h3/GPU-1//power_w")
    odd = Sample(time_ns=1, host="a/b %", device=None, run=None, metric=METRICS[0], value=0)
    with pytest.raises(NotFound, match="a/b %"):
        list_samples(session, ALL, after=place_of(odd))


def test_a_team_sees_devices_while_a_run_of_theirs_holds_them(session: Session) -> None:
    see_team("blue")
    found = list_samples(session, ALL)
    assert runs_of(found) == [None] * 2 + ["a2"] * 2
    assert {sample.metric for sample in found} == {"sm_active_frac", "memory_used_bytes", "host_cpu_frac"}
    assert runs_of(list_samples(session, run="a2")) == ["a2"] * 2
    with pytest.raises(NotFound):
        list_samples(session, run="a1")
    see_team("red")
    assert runs_of(list_samples(session, ALL)) == ["a1"] * 4 + [None] * 2

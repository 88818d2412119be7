"""The reference fleets, against what was computed of them by other means."""

from __future__ import annotations

from typing import Any

import pytest
from made_history import Direct, account_all, take
from reference_data import FLEETS

from tightship_platform.database.engine import Database, open_database
from tightship_platform.queries.account import fleet_account
from tightship_platform.queries.fleets import get_fleet
from tightship_platform.results.filters import Filters
from tightship_platform.results.fleet import AccountGroup
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import AccountBy, FleetFormat

pytestmark = pytest.mark.reference
HOUR = 3600 * NS_PER_S


@pytest.fixture
def sqlite(make_database_url: Any, tmp_path: Any) -> Any:
    settings = Settings(home=tmp_path, database_url=make_database_url("sqlite", migrated=True))
    with open_database(settings) as opened:
        yield opened


def is_conserved(groups: list[AccountGroup]) -> bool:
    return all(
        sum(one.buckets.values()) == one.device_ns == (one.busy_ns or 0) + (one.idle_ns or 0) + one.unmeasured_ns
        for one in groups
    )


def test_gentd26(sqlite: Database) -> None:
    source, sent = take(Direct(sqlite), FleetFormat.ALIBABA_GENAI, FLEETS / "alibaba_genai_2026")
    assert sent.runs == 143
    assert source.refused.count == 1, "a pod has memory and no duty cycle"
    assert source.interval_ns == 57 * NS_PER_S
    with sqlite.session() as session:
        account_all(session)
        fleet = get_fleet(session, source.name)
        groups = fleet_account(session, AccountBy.RUN, Filters(fleet=source.name)).groups
    assert len(groups) == fleet.runs == 143
    assert is_conserved(groups)
    assert fleet.device_ns == 157_417 * 57 * NS_PER_S
    assert fleet.device_ns / HOUR == pytest.approx(2492, rel=0.005)
    assert fleet.busy_ns is not None
    assert fleet.idle_ns is not None
    assert fleet.long_idle_ns is not None
    assert fleet.busy_ns / HOUR == pytest.approx(175.1, rel=0.005)
    assert fleet.idle_ns / HOUR == pytest.approx(2317, rel=0.005)
    assert 1181 <= fleet.long_idle_ns / HOUR <= 1209
    assert fleet.unmeasured_ns == 0


def test_supercloud(sqlite: Database) -> None:
    path = FLEETS / "mit_supercloud" / "slurm-log-queueing-clean.csv.gz"
    source, sent = take(Direct(sqlite), FleetFormat.SLURM_SACCT, path)
    assert (source.rows, sent.runs) == (9628, 2401)
    assert source.refused.counts == {"a job without GPUs": 9628 - 2401}
    with sqlite.session() as session:
        account_all(session)
        groups = fleet_account(session, AccountBy.STATE, Filters(fleet=source.name)).groups
        runs = fleet_account(session, AccountBy.RUN, Filters(fleet=source.name)).groups
    assert is_conserved(groups)
    assert is_conserved(runs)
    assert len(runs) == 2401
    hours = {one.key: round(one.device_ns / HOUR) for one in groups}
    assert round(sum(one.device_ns for one in groups) / HOUR) == 43847
    expected = {"finished": 17398, "cancelled": 14280, "timeout": 6354, "failed": 5791, "out_of_memory": 25}
    assert hours == expected
    waited = {one.key: one.waiting_ns for one in groups}
    assert round(sum(waited.values()) / HOUR) == 4681, "by time_start - time_eligible"
    assert sum(one.waiting_runs for one in groups) == 2401
    lost = {one.key: round(one.buckets["lost"] / HOUR) for one in groups if one.buckets["lost"]}
    assert lost == {"timeout": 6354, "failed": 5791, "out_of_memory": 25}, "Slurm tells no checkpoint"
    assert all(one.busy_ns is None and one.devices is None for one in groups), "nothing measured activity"

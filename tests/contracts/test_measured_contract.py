"""Metrics that come by a standard, on both databases: stored once, beside what agents send, of hosts whose they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from records import GPU, HOUR, T0, S, batch, beat, samples
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.api.auth import create_token, revoke_token
from tightship_platform.database import reporters
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Device, DirtyHour, Host, Sample
from tightship_platform.database.reporters import ANYBODY, Reporter
from tightship_platform.errors import Forbidden
from tightship_platform.ingest.standards.measured import MeasuredHost, apply_measured, by_host, find_devices
from tightship_platform.ingest.standards.places import Place
from tightship_platform.queries.samples import list_samples
from tightship_platform.results.filters import Filters
from tightship_platform.vocabulary import Scope

NOW = T0 + 60 * S
PROMETHEUS = Reporter(name="prometheus")


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.session() as opened:
        for name, team in (("agent", None), ("prometheus", None), ("red", "red"), ("blue", "blue")):
            create_token(opened, name, [Scope.INGEST], team=team)
        yield opened


def measured(host: str = "h1", uuid: str = "GPU-1", **rows: dict[str, float]) -> MeasuredHost:
    """Rows by their second: `s1={"power_w": 90.0}`."""
    return MeasuredHost(name=host, devices={uuid: {T0 + int(at[1:]) * S: dict(row) for at, row in rows.items()}})


def apply(session: Session, host: MeasuredHost, reporter: Reporter = ANYBODY, keep_days: int = 0) -> tuple[int, int]:
    return apply_measured(session, host, reporter=reporter, keep_days=keep_days, now=NOW)


def values(session: Session) -> set[tuple[int, str, float]]:
    listed = list_samples(session, Filters(since_ns=T0 - HOUR))
    return {((one.time_ns - T0) // S, one.metric, one.value) for one in listed}


def test_what_comes_in_parts_is_one_row_and_nothing_is_changed(session: Session) -> None:
    assert apply(session, measured(s1={"power_w": 90.5, "util_frac": 0.5}, s2={"power_w": 91.0})) == (3, 0)
    again = measured(s1={"power_w": 1.0, "memory_used_bytes": 40_960 << 20})
    assert apply(session, again) == apply(session, again) == (2, 0)
    kept = {(1, "power_w", 90.5), (1, "util_frac", 0.5), (1, "memory_used_bytes", 42_949_672_960), (2, "power_w", 91.0)}
    assert values(session) == kept
    assert session.scalar(select(func.count()).select_from(Sample)) == 2
    ingest.apply_batch(session, batch(devices=[GPU], samples=samples([T0 + 3 * S], "GPU-1", power_w=2.0)), now=NOW)
    apply(session, measured(s3={"power_w": 9.0, "sm_active_frac": 0.41}))
    assert values(session) == kept | {(3, "power_w", 2.0), (3, "sm_active_frac", 0.41)}


def test_old_values_are_counted_and_late_ones_rolled_up_again(session: Session) -> None:
    ingest.apply_batch(session, batch(samples=samples([NOW], power_w=2.0)), now=NOW)
    old = MeasuredHost(
        name="h1", devices={"GPU-1": {T0 - 50 * 24 * HOUR: {"power_w": 1.0}, T0 - 2 * HOUR: {"power_w": 2.0}}}
    )
    assert apply(session, old, keep_days=30) == (1, 1)
    assert session.scalars(select(DirtyHour.hour_ns)).all() == [T0 - 2 * HOUR - (T0 % HOUR)]


def test_devices_are_described_where_nobody_has(session: Session) -> None:
    ingest.apply_batch(session, batch(devices=[GPU]), now=NOW)
    host = measured(s1={"power_w": 1.0})
    host.devices["GPU-2"] = {T0: {"power_w": 2.0}}
    host.models = {"GPU-1": "another name", "GPU-2": "NVIDIA H100 80GB HBM3"}
    apply(session, host)
    rows = session.execute(select(Device.uuid, Device.name, Device.memory_bytes).order_by(Device.uuid)).all()
    assert [tuple(row) for row in rows] == [
        ("GPU-1", GPU.name, GPU.memory_bytes),
        ("GPU-2", host.models["GPU-2"], None),
    ]


def test_a_host_is_heard_of_by_its_agent_where_it_has_one(session: Session) -> None:
    ingest.apply_heartbeat(session, beat(time_ns=T0, host="h1"), now=T0)
    for name in ("h1", "h2"):
        apply(session, measured(name, s30={"power_w": 1.0}))
    seen = dict(session.execute(select(Host.name, Host.last_seen_ns)).all())  # type: ignore[arg-type]
    assert seen == {"h1": T0, "h2": T0 + 30 * S}


def test_metrics_are_taken_of_hosts_of_the_same_team_and_of_nobodys(session: Session) -> None:
    red, blue = Reporter(name="red", team="red"), Reporter(name="blue", team="blue")
    one = measured(s1={"power_w": 1.0})
    apply(session, one, PROMETHEUS)
    # The agent comes later, and the host is its own.
    ingest.apply_batch(session, batch(), now=NOW, reporter=red)
    apply(session, one, red)
    for other in (PROMETHEUS, blue, Reporter(name="user", team="red", user="ann"), Reporter(name="h", host="h2")):
        with pytest.raises(Forbidden, match="h1"):
            apply(session, one, other)
    apply(session, one, Reporter(name="second", team="red"))
    apply(session, one, Reporter(name="own", host="h1"))
    revoke_token(session, "red")
    apply(session, one, blue)
    ingest.apply_batch(session, batch("h3"), now=NOW, reporter=Reporter(name="agent"))
    apply(session, measured("h3", s1={"power_w": 1.0}), PROMETHEUS)


def test_hosts_without_an_agent_are_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "MEASURED_HOSTS", 2)
    for name in ("h1", "h2", "h1"):
        apply(session, measured(name, s1={"power_w": 1.0}))
    with pytest.raises(Forbidden, match="Host 'h3' is new, and 2 hosts without an agent"):
        apply(session, measured("h3", s1={"power_w": 1.0}))


def test_a_device_is_where_its_agent_says(session: Session) -> None:
    ingest.apply_heartbeat(session, beat(time_ns=T0, host="gpu17", devices=[GPU]), now=T0)
    apply(session, measured("10.0.0.1", "GPU-9", s1={"power_w": 1.0}))

    def found(host: str, uuid: str | None, index: str = "0") -> tuple[str, str] | str:
        place = Place(host=host, uuid=uuid, index=index, model=None)
        return find_devices(session, [place])[place]

    assert found("10.0.0.1", "GPU-1") == ("gpu17", "GPU-1")
    assert found("10.0.0.1", "GPU-9") == ("10.0.0.1", "GPU-9")
    assert found("gpu17", None, "3") == ("gpu17", "GPU-1")
    assert found("elsewhere", None, "3") == ("elsewhere", "gpu3")
    apply(session, measured("gpu17", "GPU-2", s1={"power_w": 1.0}))
    assert "is named by its number alone, and the host has 2" in str(found("gpu17", None))
    places = [Place(host=name, uuid="GPU-1", index="0", model=None) for name in ("gpu17", "10.0.0.1")]
    rows = {places[0]: {T0: {"power_w": 1.0}}, places[1]: {T0: {"power_w": 2.0, "util_frac": 0.5}}}
    (host,), lost = by_host(rows, find_devices(session, places))  # type: ignore[arg-type]
    assert (host.devices, lost) == ({"GPU-1": {T0: {"power_w": 1.0, "util_frac": 0.5}}}, {})

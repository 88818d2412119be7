"""What an offload plan is made from, on both databases: a workflow's captures, and the machine of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from records import GPU, MIN, T0, S, ask, batch, beat, held, live, started
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.database.engine import Database
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.queries import hosts
from tightship_platform.queries.captures import get_capture, list_captures, newest_captures
from tightship_platform.results.filters import Filters
from tightship_platform.wire import CaptureParams, DeviceRecord

NOW = T0 + MIN
GIB = 2**30


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """Runs a1 and a2 of workflow train live on h1, run b1 of eval on h2; workflow bare has never been captured."""
    with database.session() as opened:
        for run, workflow, host in (("a1", "train", "h1"), ("a2", "train", "h1"), ("b1", "eval", "h2")):
            ingest.apply_run(opened, started(run, workflow, host=host), now=NOW)
        ingest.apply_run(opened, started("c1", "bare", host="h2"), now=NOW)
        ingest.apply_heartbeat(opened, beat(live("a1", devices=()), live("a2"), time_ns=NOW), now=NOW)
        ingest.apply_heartbeat(opened, beat(live("b1"), time_ns=NOW, host="h2"), now=NOW)
        yield opened


def _ask(session: Session, run: str, second: int, *, stacks: bool = True) -> str:
    params = CaptureParams(stacks=stacks)
    return captures.request(session, ask(run, params=params), now=NOW + second * S).key


def test_the_newest_captures_of_every_workflow(session: Session) -> None:
    first, second = _ask(session, "a1", 1), _ask(session, "a2", 2, stacks=False)
    other = _ask(session, "b1", 3)
    found = newest_captures(session, each=5)
    assert {name: [one.capture for one in listed] for name, listed in found.items()} == {
        "bare": [],
        "eval": [other],
        "train": [second, first],
    }
    assert found["train"][0] == get_capture(session, second)
    assert [one.capture for one in newest_captures(session, each=1)["train"]] == [second]
    with pytest.raises(Invalid):
        newest_captures(session, each=0)


def test_captures_of_a_workflow(session: Session) -> None:
    first, second = _ask(session, "a1", 1), _ask(session, "a2", 2)
    _ask(session, "b1", 3)
    listed = list_captures(session, Filters(workflow="train"))
    assert [one.capture for one in listed] == [second, first]
    assert [one.capture for one in list_captures(session, Filters(workflow="train"), run="a1")] == [first]
    assert list_captures(session, Filters(workflow="bare")) == []
    assert list_captures(session, Filters(workflow="no'such%work\\flow")) == []


def test_the_machine_of_a_run(session: Session) -> None:
    assert hosts.machine_of(session, "a1") is None
    second = DeviceRecord(uuid="GPU-2", kind="gpu", name="Test accelerator", memory_bytes=80 * GIB)
    spare = DeviceRecord(uuid="GPU-3", kind="gpu", name="Another one", memory_bytes=None)
    info = {"cpus": 32, "memory_bytes": 256 * GIB}
    ingest.apply_heartbeat(session, beat(time_ns=NOW, devices=(GPU, second, spare), info=info), now=NOW)
    allocations = [held(device="GPU-1", end_ns=T0 + S), held(start_ns=T0 + S, device="GPU-1"), held(device="GPU-2")]
    ingest.apply_batch(session, batch(allocations=allocations), now=NOW)
    ingest.apply_batch(session, batch("h2", devices=[spare], allocations=[held(device="GPU-3")]), now=NOW)
    assert vars(hosts.machine_of(session, "a1")) == {
        "host": "h1",
        "devices": 2,
        "kind": "gpu",
        "device": "Test accelerator",
        "device_bytes": 80 * GIB,
        "host_bytes": 256 * GIB,
        "cores": 32,
    }
    with pytest.raises(NotFound):
        hosts.machine_of(session, "nope")


def test_what_no_agent_reported_is_missing(session: Session) -> None:
    ingest.apply_batch(session, batch(allocations=[held(device="GPU-1")]), now=NOW)
    machine = hosts.machine_of(session, "a1")
    assert machine is not None
    assert (machine.device_bytes, machine.host_bytes, machine.cores) == (None, None, None)
    ingest.apply_heartbeat(session, beat(time_ns=NOW, info={"cpus": "32", "memory_bytes": -1}), now=NOW)
    machine = hosts.machine_of(session, "a1")
    assert machine is not None
    assert (machine.host_bytes, machine.cores) == (None, None)

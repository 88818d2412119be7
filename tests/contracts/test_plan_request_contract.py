"""Planning requests as rows, on both databases: claimed once, answered or refused once, taken back from the dead."""

from __future__ import annotations

import json
import signal
import threading
import zlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

import pytest
from captured import a_capture, begin
from captured_workflow import record
from celery.exceptions import SoftTimeLimitExceeded
from plan_requests import GIB, PROFILE, request_for, slow_profile
from records import T0, S
from sqlalchemy import delete, func, select, update

from tightship_analyzers.offload_planner import candidate, planner, planning, requests
from tightship_analyzers.offload_planner.answer import answer
from tightship_analyzers.offload_planner.request import VERSION, Request, decode_request
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, PlanRequest, Trace
from tightship_platform.errors import Conflict, TightshipError
from tightship_platform.results.plan_answer import PlanAnswer, PlanSource
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import PlanState

REQUEST = request_for()
KEY = REQUEST.key
SEARCH = (planner.__file__, candidate.__file__)


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "artifacts"))


@pytest.fixture(scope="module")
def answered() -> PlanAnswer:
    return answer(REQUEST)


def create(database: Database, request: Request = REQUEST, *, now: int = T0) -> bool:
    with database.session() as session:
        return requests.create(session, request, now=now)


def claim(database: Database, key: str = KEY, *, now: int = T0) -> requests.Claim | None:
    with database.session() as session:
        return requests.begin(session, key, now=now)


def claimed(database: Database, key: str = KEY, *, now: int = T0) -> requests.Claim:
    found = claim(database, key, now=now)
    assert found is not None
    return found


def sweep(database: Database, now: int) -> requests.Swept:
    with database.session() as session:
        return requests.sweep(session, now=now)


def row(database: Database, key: str = KEY) -> PlanRequest:
    with database.session() as session:
        return session.scalars(select(PlanRequest).where(PlanRequest.key == key)).one()


def progress(database: Database, key: str = KEY) -> requests.Progress:
    with database.session() as session:
        found = requests.progress_of(session, key, now=T0 + S)
    assert found is not None
    return found


# ---- transitions -----------------------------------------------------------------------------------------------------


def test_the_same_request_is_one_row(database: Database) -> None:
    assert create(database)
    assert not create(database, replace(REQUEST, workflow="of another page"))
    assert create(database, replace(REQUEST, budget_bytes=GIB))
    with database.session() as session:
        assert session.scalar(select(func.count(PlanRequest.id))) == 2
        assert requests.progress_of(session, "nope") is None
    assert decode_request(row(database).request) == REQUEST
    now = progress(database)
    assert (now.state, now.stage, now.refusal, now.waited_ns) == ("requested", "waiting for a worker", None, S)


def test_servers_that_create_it_at_once_create_one_row(database: Database) -> None:
    start, failed = threading.Barrier(4), []

    def one() -> None:
        start.wait()
        try:
            create(database)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert row(database).state == PlanState.REQUESTED


def test_from_request_to_answer(database: Database, answered: PlanAnswer) -> None:
    create(database)
    mine = claimed(database, now=T0 + S)
    assert claim(database, now=T0 + S) is None, "it is another worker's"
    with database.session() as session:
        assert requests.renew(session, mine, "trying windows", now=T0 + 2 * S)
    assert (progress(database).state, progress(database).stage) == ("planning", "trying windows")
    with database.session() as session:
        assert requests.finish(session, mine, answered, now=T0 + 3 * S)
    kept = row(database)
    assert (kept.created_ns, kept.started_ns, kept.finished_ns) == (T0, T0 + S, T0 + 3 * S)
    assert progress(database).state is PlanState.PLANNED
    with database.session() as session:
        assert requests.answer_of(session, KEY) == answered
    assert claim(database) is None, "there is nothing left to do"
    assert not create(database, now=T0 + 1000 * S)


def test_a_claim_that_was_lost_changes_nothing(database: Database, answered: PlanAnswer) -> None:
    create(database)
    dead = claimed(database)
    assert sweep(database, T0 + requests.LEASE_NS - 1).due == []
    assert sweep(database, T0 + requests.LEASE_NS).due == [KEY]
    assert progress(database).stage == "waiting for a worker: the last one died (attempt 1 of 3)"
    alive = claimed(database, now=T0 + requests.LEASE_NS)
    assert (dead.attempt, alive.attempt) == (1, 2)
    with database.session() as session:
        assert not requests.renew(session, dead, "nonsense")
        assert not requests.finish(session, dead, answered)
        assert not requests.refuse(session, dead, "nonsense")
    assert progress(database).stage == "starting"
    with database.session() as session:
        assert requests.refuse(session, alive, "it\ncannot be", now=T0)
        assert not requests.finish(session, alive, answered)
    assert (progress(database).state, progress(database).refusal) == ("refused", "it cannot be")


def test_signs_of_life_keep_a_claim(database: Database) -> None:
    create(database)
    mine, now = claimed(database), T0
    for _ in range(5):
        now += requests.LEASE_NS - 1
        with database.session() as session:
            assert requests.renew(session, mine, now=now)
        assert sweep(database, now).due == []
    assert row(database).attempts == 1


def test_what_kills_its_workers_is_given_up_and_may_be_requested_again(database: Database) -> None:
    create(database)
    now = T0
    for attempt in range(1, requests.MAX_ATTEMPTS + 1):
        assert claimed(database, now=now).attempt == attempt
        now += requests.LEASE_NS
        swept = sweep(database, now)
    assert (swept.due, swept.refused) == ([], [KEY])
    refusal = progress(database).refusal
    assert refusal is not None
    assert refusal.startswith("its worker died 3 times, as when memory is short")
    assert not create(database, now=now + requests.RETRY_NS - 1), "the refusal still holds"
    assert create(database, now=now + requests.RETRY_NS)
    fresh = row(database)
    assert (fresh.state, fresh.refusal, fresh.attempts, fresh.finished_ns) == ("requested", None, 0, None)


def test_what_nobody_began_is_sent_again(database: Database) -> None:
    create(database)
    assert sweep(database, T0 + requests.RESEND_NS - 1).due == []
    assert sweep(database, T0 + requests.RESEND_NS).due == [KEY]
    assert sweep(database, T0 + requests.RESEND_NS + S).due == [], "it was sent a moment ago"
    assert sweep(database, T0 + 2 * requests.RESEND_NS).due == [KEY]


def test_so_many_are_planned_at_once_and_the_oldest_comes_next(database: Database, answered: PlanAnswer) -> None:
    several = [request_for(cores=cores).key for cores in range(1, requests.AT_ONCE + 3)]
    for age, key in enumerate(several):
        assert create(database, request_for(cores=age + 1), now=T0 + age)
        assert len(key) == 64
    running = [claimed(database, key) for key in several[: requests.AT_ONCE]]
    assert claim(database, several[-1]) is None
    assert sweep(database, T0 + requests.LEASE_NS - 1).due == []
    with database.session() as session:
        assert requests.due(session, sent_before=T0 + S, now=T0 + S) == []
        requests.finish(session, running[0], answered, now=T0 + S)
        assert requests.due(session, sent_before=T0 + S, now=T0 + S) == [several[requests.AT_ONCE]]


def test_too_many_that_wait_are_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_WAITING", 2)
    create(database)
    create(database, request_for(cores=1))
    with pytest.raises(Conflict, match="2 plans wait already; try again in a minute") as caught:
        create(database, request_for(cores=2))
    assert "\n" not in str(caught.value)
    assert not create(database), "what is known needs no place"
    with database.session() as session:
        requests.refuse(session, claimed(database), "no")
    assert create(database, request_for(cores=2))


def test_old_plans_go_and_what_is_unfinished_stays(database: Database, answered: PlanAnswer) -> None:
    create(database)
    create(database, request_for(cores=1), now=T0 + 1)
    with database.session() as session:
        requests.finish(session, claimed(database), answered, now=T0)
    assert sweep(database, T0 + requests.KEEP_NS).removed == 0
    assert sweep(database, T0 + requests.KEEP_NS + 1).removed == 1
    with database.session() as session:
        assert requests.progress_of(session, KEY) is None
        assert requests.progress_of(session, request_for(cores=1).key) is not None


@pytest.mark.parametrize("damage", ["cut", "older", "text", "bomb", "nothing"])
def test_an_answer_that_cannot_be_read_is_one_line_and_made_again(
    database: Database, answered: PlanAnswer, damage: str
) -> None:
    create(database)
    with database.session() as session:
        requests.finish(session, claimed(database), answered, now=T0)
        whole = row_bytes = session.scalar(select(PlanRequest.answer))
        assert whole is not None and row_bytes is not None
        older = {"version": VERSION, "answer": asdict(answered) | {"window": None}}
        damaged = {
            "cut": whole[:-9],
            "older": zlib.compress(json.dumps(older).encode()),
            "text": b"{}",
            "bomb": zlib.compress(b"[" + b" " * (requests.MAX_ANSWER_BYTES + 1)),
            "nothing": None,
        }[damage]
        session.execute(update(PlanRequest).values(answer=damaged))
    with database.session() as session, pytest.raises(TightshipError, match="The stored plan cannot be read"):
        requests.answer_of(session, KEY)
    assert create(database)
    assert progress(database).state is PlanState.REQUESTED


# ---- the worker's part -----------------------------------------------------------------------------------------------


def planned(database: Database, artifacts: ArtifactStore, request: Request) -> PlanAnswer:
    create(database, request, now=now_ns())
    assert planning.plan(database, artifacts, request.key)
    assert progress(database, request.key).refusal is None
    with database.session() as session:
        return requests.answer_of(session, request.key)


def refused(database: Database, artifacts: ArtifactStore, request: Request) -> str:
    create(database, request, now=now_ns())
    assert planning.plan(database, artifacts, request.key)
    refusal = progress(database, request.key).refusal
    assert refusal is not None
    assert refusal.isprintable()
    return refusal


def test_a_worker_makes_the_plan_once(database: Database, artifacts: ArtifactStore, answered: PlanAnswer) -> None:
    assert planned(database, artifacts, REQUEST) == answered
    assert not planning.plan(database, artifacts, KEY), "a message that comes twice changes nothing"
    assert not planning.plan(database, artifacts, "nope")
    assert row(database).attempts == 1


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("version: 7", "its version is 7; this release reads version 1"),
        ("\x00", "no YAML"),
        ("a: \ud800", "no YAML"),
        ("\u202e: 1", "version"),
    ],
)
def test_a_hostile_profile_is_refused_in_one_line(
    database: Database, artifacts: ArtifactStore, profile: str, words: str
) -> None:
    assert words in refused(database, artifacts, request_for(profile=profile, device="x\x00\ud800'"))


def test_a_request_of_another_release_is_refused(database: Database, artifacts: ArtifactStore) -> None:
    create(database, now=now_ns())
    with database.session() as session:
        session.execute(update(PlanRequest).values(request='{"question": 1, "cores": "many"}'))
    assert planning.plan(database, artifacts, KEY)
    assert progress(database).refusal == (
        "the stored request cannot be read: another release wrote it; request it again"
    )


def test_memory_that_is_short_is_one_line(
    database: Database, artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "answer", lambda *_args, **_more: bytearray(1 << 62))
    assert "too large for the memory of the worker (" in refused(database, artifacts, REQUEST)


def test_a_defect_is_one_line_and_in_the_log(
    database: Database, artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(planning, "answer", lambda *_args, **_more: 1 // 0)
    assert refused(database, artifacts, REQUEST) == "planning failed; the worker's log has the details"
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture
def limited() -> Iterator[None]:
    """As Celery sets a task's time limit, but as soon as it searches, and where Python does not drop the exception, as
    it does in callbacks of its garbage collector."""
    raised = False

    def stop(_number: int, frame: FrameType | None) -> None:
        nonlocal raised
        outer = frame
        while outer is not None and outer.f_code is not planner.search.__code__:
            outer = outer.f_back
        if not raised and outer is not None and frame is not None and frame.f_code.co_filename in SEARCH:
            raised = True
            raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.01)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert raised


def test_a_plan_that_takes_too_long_is_one_line(database: Database, artifacts: ArtifactStore, limited: None) -> None:
    slow = request_for(profile=slow_profile(), cores=1, host_bytes=4096 * GIB, budget_bytes=20 * GIB)
    assert refused(database, artifacts, slow).startswith("planning took more than 300 s; `tightship offload plan`")


# ---- traces ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace_data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return record(tmp_path_factory.mktemp("recorded"))


def of_traces(database: Database, **changes: object) -> Request:
    """A request for the stored traces of workflow `train`."""
    with database.session() as session:
        sources = tuple(
            PlanSource(
                capture="c",
                run="a1",
                rank=trace.rank,
                trace=trace.id,
                sha256=trace.sha256,
                size_bytes=trace.bytes,
                requested_ns=T0,
            )
            for trace in session.scalars(select(Trace).order_by(Trace.id))
        )
    given = {"workflow": "train", "recorded_on": "cpu", "host_bytes": GIB, "cores": 1} | changes
    return Request(sources=sources, **given)  # type: ignore[arg-type]


def store(database: Database, artifacts: ArtifactStore, data: bytes) -> None:
    with database.session() as session:
        begin(session)
    a_capture(database, artifacts, "a1", {0: data}, now=now_ns())


@pytest.mark.torch
def test_a_trace_is_read_once_for_all_requests(database: Database, artifacts: ArtifactStore, trace_data: bytes) -> None:
    store(database, artifacts, trace_data)
    first, second = of_traces(database), of_traces(database, budget_bytes=2 * 2**20)
    assert first.key != second.key
    found = planned(database, artifacts, first)
    assert found.source == first.sources[0]
    assert found.model == "Net"
    with database.session() as session:
        assert artifacts.delete(session.scalars(select(Trace.url)).one())
    again = planned(database, artifacts, second)
    assert (again.source, again.profile) == (found.source, found.profile)


def test_traces_that_are_gone_are_one_line(database: Database, artifacts: ArtifactStore) -> None:
    store(database, artifacts, b"whatever")
    gone = "the traces of workflow 'train' that were to be planned from are gone: it was deleted, or their files were "
    kept = of_traces(database)
    with database.session() as session:
        session.execute(update(Trace).values(sha256="0" * 64))
    assert refused(database, artifacts, kept).startswith(gone), "the number of a deleted trace was given again"
    aged = of_traces(database)
    with database.session() as session:
        session.execute(update(Trace).values(removed_ns=T0))
    assert refused(database, artifacts, aged).startswith(gone)
    deleted = of_traces(database, cores=2)
    with database.session() as session:
        session.execute(delete(Capture))
        assert session.scalar(select(func.count(Trace.id))) == 0
    assert refused(database, artifacts, deleted).startswith(gone)


def test_a_file_that_the_store_has_lost_is_one_line(database: Database, artifacts: ArtifactStore) -> None:
    store(database, artifacts, b"whatever")
    with database.session() as session:
        artifacts.delete(session.scalars(select(Trace.url)).one())
    assert "No stored file named" in refused(database, artifacts, of_traces(database))


def test_the_key_depends_on_content_and_machine_and_not_on_the_place() -> None:
    here = PlanSource(capture="c1", run="a1", rank=0, trace=1, sha256="ab", size_bytes=5, requested_ns=T0)
    there = replace(here, capture="c2", run="a2", trace=9, requested_ns=T0 + 1)
    keys = {Request(sources=(one,), workflow=one.run).key for one in (here, there)}
    assert len(keys) == 1
    others = [replace(here, sha256="cd")], [here, here]
    for sources in others:
        assert Request(sources=tuple(sources)).key not in keys
    assert Request(sources=(here,), cores=2).key not in keys
    assert Request(sources=(here,)).traces_key == Request(sources=(there,), cores=2).traces_key
    assert Request(profile=json.dumps(PROFILE)).traces_key is None

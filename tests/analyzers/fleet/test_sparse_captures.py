"""A capture that holds almost none of its window is not called clean: it says so, and is recorded once more."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from captured import a_capture, analyze_capture, begin, finish
from records import T0, S

from tightship_analyzers.fleet import capture_analysis
from tightship_analyzers.fleet.sparse_captures import AGAIN
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.engine import Database
from tightship_platform.queries.captures import get_capture, list_captures
from tightship_platform.results.capture import Capture

Analyzed = Callable[[dict[str, Any]], Capture]


def trace(*events: tuple[float, float]) -> dict[str, Any]:
    """Operators from µs to µs."""
    ops = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": start, "dur": end - start}
        for start, end in events
    ]
    return {"schemaVersion": 1, "traceEvents": ops}


@pytest.fixture
def analyzed(database: Database, platform_env: Any) -> Analyzed:
    """`analyzed(trace)` → the capture of a live run that has this trace."""
    artifacts = open_artifacts(platform_env.settings)
    with database.session() as session:
        begin(session)

    def analyze(content: dict[str, Any]) -> Capture:
        key = a_capture(database, artifacts, "a1", {0: gzip.compress(json.dumps(content).encode())}, now=T0 + S)
        assert analyze_capture(database, artifacts, key)
        with database.session() as session:
            return get_capture(session, key)

    return analyze


@pytest.mark.parametrize(
    ("content", "state", "words"),
    [
        (trace(), "failed", "the trace of rank 0 holds no event with a duration"),
        (trace((0, 1500)), "analyzed", "the recording of 1.00 s holds 1.50 ms of work"),
    ],
)
def test_it_says_so_and_is_recorded_once_more(
    database: Database, analyzed: Analyzed, content: dict[str, Any], state: str, words: str
) -> None:
    first = analyzed(content)
    capture_analysis._join(database, first.capture)  # as a slow worker does whose lease another took over
    assert first.state == state and first.reason is not None and first.reason.startswith(words)
    with database.session() as session:
        [again, _] = list_captures(session, run="a1")
        assert (again.requested_by, again.state) == (AGAIN, "requested")
        assert first.reason.endswith(f"capture {again.capture} records again")


def test_what_holds_its_window_or_one_that_has_ended_is_left(database: Database, analyzed: Analyzed) -> None:
    assert analyzed(trace((0, 600_000), (1_000_000, 2_000_000))).reason is None
    with database.session() as session:
        finish(session)
        assert len(list_captures(session, run="a1")) == 1

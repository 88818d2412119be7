"""Who waits for the last work of a recording keeps nothing waiting; before other work the same wait costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, GpuJob
from reference_data import TRACES
from rule_jobs import scalar_read, shape_read, synchronize, waiting_copy, work

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.trace.model import Trace

AFTER_NS = 2 * MS
WAITS = {
    "explicit-synchronization": synchronize,
    "synchronous-copy": waiting_copy,
    "synchronous-scalar-read": scalar_read,
    "data-dependent-shape": shape_read,
}


def request(folder: Path, rule: str, *, ends: bool) -> Trace:
    """One step that ends by reading what it computed; `ends`: nothing follows, else another request does."""
    job = GpuJob()
    begun = job.now_ns
    work(job, 20)
    WAITS[rule](job, True)
    job.pause(AFTER_NS)
    if not ends:
        work(job)
        job.drain()
    job.step_of(begun)
    return job.read(folder)


@pytest.mark.parametrize("rule", WAITS)
def test_the_last_wait_of_a_recording_is_no_finding(tmp_path: Path, rule: str) -> None:
    for ends in (True, False):
        trace = request(tmp_path, rule, ends=ends)
        found = [finding.rule for finding in judge_trace(trace).findings]
        causes = Facts(trace)[IdleCauses].window.by_cause()
        assert (rule in found) is not ends
        assert (causes.get(Cause.WINDOW_EDGE, 0) >= AFTER_NS) is ends
        waited_ns = causes.get(Cause.HOST_SYNC, 0) + causes.get(Cause.SYNC_COPY, 0)
        assert (waited_ns >= AFTER_NS) is not ends


@pytest.mark.reference
def test_the_read_of_the_final_result_is_no_finding() -> None:
    path = TRACES / "tracelens" / "h100" / "facebook_timesformer-base-finetuned-k400__1016002.json.gz"
    found = [finding.rule for finding in judge_trace(traces.open(path)).findings]
    assert "unfused-attention" in found
    assert "synchronous-copy" not in found

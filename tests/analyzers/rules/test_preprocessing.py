"""What the host does in a step before it first launches anything, and the functions that have the time."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, PLACE, US, GpuJob
from reference_data import TRACES
from rule_jobs import work

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.evidence import Fact

IMAGES, RESIZE_NS, SCALE_NS, DECODE_NS = 16, 100 * US, 300 * US, 4 * MS
PREPARED_NS = IMAGES * (RESIZE_NS + SCALE_NS) + DECODE_NS
LIBRARY = "transformers/image_transforms.py"


def request(folder: Path, *, late: bool = False) -> Trace:
    """One request: images are prepared on the host, then the device works.

    :param late: the first kernel begins long after its launch, for the device still runs what is not in the file.
    """
    job = GpuJob()
    begun = job.now_ns
    entered = job.now_ns
    job.pause(DECODE_NS)
    job.frame_of("av/container.py(20): decode", entered)
    for _ in range(IMAGES):
        for name, took_ns in (("normalize", SCALE_NS), ("resize", RESIZE_NS)):
            since = job.now_ns
            job.pause(took_ns)
            job.frame_of(f"{LIBRARY}(90): {name}", since)
    if late:
        job.free_ns[7] = job.now_ns + 2 * MS
    work(job, 10)
    job.drain()
    job.step_of(begun)
    return job.read(folder)


def busy(trace: Trace) -> list[Finding]:
    return [finding for finding in judge_trace(trace).findings if finding.rule == "busy-host"]


def test_preparing_a_request_on_the_host_is_found_by_its_functions(tmp_path: Path) -> None:
    [finding] = busy(request(tmp_path))
    assert finding.place == PLACE
    assert finding.saving.high == pytest.approx(PREPARED_NS, rel=0.02)
    assert finding.saving.low == 0
    lines = [one.text for one in finding.evidence if isinstance(one, Fact)]
    functions = [line for line in lines if line.startswith("In ")]
    assert [line.split(":")[0] for line in functions] == [f"In {LIBRARY}", "In av/container.py", f"In {LIBRARY}"]
    assert f"(normalize), {IMAGES} calls: 4.80 ms" in functions[0]
    assert "(decode), 1 call: 4.00 ms" in functions[1]
    assert f"(resize), {IMAGES} calls: 1.60 ms" in functions[2]


def test_a_device_that_may_have_run_earlier_work_is_not_said_to_wait(tmp_path: Path) -> None:
    assert busy(request(tmp_path, late=True)) == []


@pytest.mark.reference
def test_of_a_video_classifier_preprocessing_is_more_than_half_of_the_step() -> None:
    path = TRACES / "tracelens" / "h100" / "facebook_timesformer-base-finetuned-k400__1016002.json.gz"
    [finding] = busy(traces.open(path))
    assert 100 * MS < finding.saving.high < 220 * MS
    lines = " ".join(one.text for one in finding.evidence if isinstance(one, Fact))
    assert "(normalize), 128 calls" in lines
    assert "(rescale), 128 calls" in lines
    assert "read_video_pyav" in lines

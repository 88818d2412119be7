"""The figures that every part exports: their form, and that docs/operations.md lists exactly these."""

from __future__ import annotations

import multiprocessing
import re
import threading

import pytest
from metric_text import figures_of
from source_tree import ROOT

from tightship_platform.errors import Invalid
from tightship_platform.processes.metrics import FAMILIES, Figure, Histogram, Metrics
from tightship_platform.settings import load_settings
from tightship_platform.tasks.task_times import TaskTimes


def test_what_was_counted_is_what_is_read() -> None:
    metrics = Metrics()
    metrics.count("tightship_requests_total", "GET", "/x", "200")
    metrics.count("tightship_requests_total", "GET", "/x", "200", by=2)
    metrics.count("tightship_requests_total", "GET", 'a"b\\c\nd', "404")
    for value in (0.001, 0.2, 99.0):
        metrics.observe("tightship_request_seconds", value, "/x")
    metrics.add_source("a", lambda: [Figure(name="tightship_spool_bytes", value=0.5)])
    found = figures_of(metrics.render("server", Figure(name="tightship_runs", value=7)))
    assert found['tightship_requests_total{method="GET",route="/x",status="200"}'] == 3
    assert found['tightship_requests_total{method="GET",route="a\\"b\\\\c\\nd",status="404"}'] == 1
    assert found['tightship_request_seconds_bucket{route="/x",le="0.001"}'] == 1
    assert found['tightship_request_seconds_bucket{route="/x",le="0.25"}'] == 2
    assert found['tightship_request_seconds_bucket{route="/x",le="+Inf"}'] == 3
    assert found['tightship_request_seconds_count{route="/x"}'] == 3
    assert found['tightship_request_seconds_sum{route="/x"}'] == pytest.approx(99.201)
    assert (found["tightship_spool_bytes"], found["tightship_runs"]) == (0.5, 7)
    assert found["process_resident_memory_bytes"] > 2**20


def test_no_count_is_lost_among_threads() -> None:
    metrics = Metrics()
    threads = [
        threading.Thread(target=lambda: [metrics.count("tightship_deliveries_total", "taken") for _ in range(2000)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert figures_of(metrics.render("agent"))['tightship_deliveries_total{outcome="taken"}'] == 16_000


def test_tasks_are_counted_over_all_processes() -> None:
    times = TaskTimes(["b", "a"])

    def work() -> None:
        for number in range(50):
            times.begin(f"{number}")
            times.end(f"{number}", "b", failed=number == 0)
            times.end("begun elsewhere", "b", failed=False)

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    read = list(times.read())
    figures = {kept.labels: kept.value for kept in read if isinstance(kept, Figure)}
    assert figures == {("a", "ended"): 0, ("a", "failed"): 0, ("b", "ended"): 196, ("b", "failed"): 4}
    (histogram,) = (kept for kept in read if isinstance(kept, Histogram))
    assert histogram.labels == ("b",) and sum(histogram.counts[:-1]) == 200


def test_every_figure_is_documented_and_every_documented_one_is_there() -> None:
    section = (ROOT / "docs/operations.md").read_text().partition("## What it says of itself")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z_]+)", section, re.MULTILINE)) == set(FAMILIES)
    for family in FAMILIES.values():
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.bounds == tuple(sorted(family.bounds)) and bool(family.bounds) == (family.kind == "histogram")


@pytest.mark.parametrize("address", ["9105", ":9105", "h:", "h:0", "h:65536", "h:x", "http://h:1", "a b:1"])
def test_an_address_that_is_none_is_one_line(address: str) -> None:
    with pytest.raises(Invalid, match="TIGHTSHIP_METRICS_ADDRESS"):
        load_settings({"TIGHTSHIP_HOME": "/nowhere", "TIGHTSHIP_METRICS_ADDRESS": address})


def test_a_log_format_that_is_none_is_one_line() -> None:
    with pytest.raises(Invalid, match="TIGHTSHIP_LOG_FORMAT is 'xml'; expected one of text, json"):
        load_settings({"TIGHTSHIP_HOME": "/nowhere", "TIGHTSHIP_LOG_FORMAT": "xml"})

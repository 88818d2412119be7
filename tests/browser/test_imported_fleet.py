"""The page of an imported fleet in a real browser: beside the live one, in both themes, with what it assumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_calls import Served, serving
from made_history import SACCT, TWO, Direct, account_all, archive, duty, take, written

from tightship_platform.vocabulary import FleetFormat

pytestmark = pytest.mark.browser

Tab = Any
PODS = {f"{pod:02d}": [(step, 0.0 if step % 40 else 80.0) for step in range(200)] for pod in range(5)}


@pytest.fixture(scope="module")
def imported(make_platform_env: Callable[..., Any], tmp_path_factory: Any) -> Iterator[Served]:
    """A server with two imported fleets and nothing live."""
    folder: Path = tmp_path_factory.mktemp("history")
    with serving(make_platform_env().settings) as served:
        api = Direct(served.database)
        archive(folder / "pod_gpu_duty_cycle_anon.tar.gz", duty(PODS))
        take(api, FleetFormat.ALIBABA_GENAI, folder, "pods")
        times = "2025-03-01T10:00:00|2025-03-01T12:00:00||0:0"
        jobs = written(folder / "jobs.txt", SACCT, f"7|7|<b>x|ann|vision|TIMEOUT|{times}|{TWO}|n1", "half a row")
        take(api, FleetFormat.SLURM_SACCT, jobs, "jobs")
        with served.database.session() as session:
            account_all(session)
        yield served


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_page_tells_an_imported_fleet_at_a_glance(
    imported: Served, tab: Callable[..., Tab], scheme: str
) -> None:
    here = tab(imported.url, scheme=scheme)
    here.open("/")
    assert "no run held a device" in here.answer(), "what is imported is not live"
    here.page.get_by_role("navigation", name="Fleet").get_by_text("pods").click()
    here.page.wait_for_url("**/?fleet=pods")
    here.page.locator("#page .answer", has_text="In the imported history of pods").wait_for()
    assert "below 5 %" in here.answer()
    assert here.page.locator(".badge", has_text="imported: pods").count() == 1
    assert here.page.locator("#assumptions").inner_text().count("one device per pod") == 1
    assert here.page.locator("#activity th", has_text="idle for ≥ 10 min").count() == 1
    here.settle()
    for width in (390, 1440):
        here.look(scheme, width)
        assert not here.scrolls_sideways(), width
    here.open("/?fleet=jobs")
    assert "nothing measured how much of it was busy" in here.answer()
    assert "timeout" in here.page.locator("#states").inner_text()
    assert "1 row: not 12 columns" in here.page.locator("#assumptions").inner_text()
    here.page.locator("#page .answer a").first.click()
    here.page.wait_for_url("**/runs?fleet=jobs")
    here.page.wait_for_selector(".ag-row")
    assert here.page.locator(".badge", has_text="imported: jobs").count() == 1
    here.page.get_by_role("link", name="timeout", exact=True).click()
    here.page.wait_for_url("**fleet=jobs**state=timeout**")
    here.page.goto(imported.url + "/runs")
    here.page.locator("#page .answer", has_text="No run is known yet").wait_for()

"""*Will it fit, and how fast?* in a real browser, from the captured trace of a real training to a plan that loads."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from api_calls import Served, serving
from captured_workflow import record, store
from processes import Running

from tightship_analyzers.offload_planner.profile import write_profile
from tightship_analyzers.offload_planner.traced import profile_of_trace
from tightship_offload.plan.file import parse_plan, read_plan

pytestmark = [pytest.mark.browser, pytest.mark.torch, pytest.mark.timeout(600)]

Tab = Any
NAME = "blocks/of ü & 'co'"
PATIENCE_MS = 180_000


@pytest.fixture(scope="module")
def trace_data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def served(make_platform_env: Callable[..., Any], trace_data: bytes) -> Iterator[Served]:
    """A server and a worker, with one workflow that can be planned and one whose trace lacks shapes."""
    env = make_platform_env()
    with serving(env.settings) as server, Running(env.environ, "worker", "--beat"):
        with server.http() as api:
            store(api, trace_data, "00000000000000a1", NAME)
            store(api, trace_data, "00000000000000a2", "shapeless", shapes=False)
        yield server


@pytest.fixture
def patient(served: Served, tab: Callable[..., Tab]) -> Callable[..., Tab]:
    """`patient(path, …)` → an open tab that waits long for what it waits for."""

    def make(path: str, **context: Any) -> Tab:
        here = tab(served.url, **context)
        here.page.set_default_timeout(PATIENCE_MS)
        here.open(path)
        return here

    return make


def address(**query: str) -> str:
    return f"/will-it-fit?{urlencode(query)}"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_a_workflow_is_planned_from_its_own_trace(
    patient: Callable[..., Tab], tmp_path: Path, scheme: str, width: int
) -> None:
    path = address(workflow=NAME, memory="1900KiB")
    here = patient(path, scheme=scheme, width=width)
    here.page.locator("#machine").wait_for()
    for selector in ("#fit-window .scatterlayer path", "#options .ag-row", "#why li", "#machine dd"):
        here.page.wait_for_selector(selector, state="attached")
    here.settle()
    assert here.page.title() == "Will it fit, and how fast? · tightship"
    assert here.answer().startswith("Net does not fit in the budget given as it is (")
    assert ", simulated, " in here.answer()
    assert here.page.locator(".badge", has_text="simulated").count() == 2
    assert here.page.locator("#options .ag-center-cols-container .ag-row").count() >= 4
    assert "assumed from documents" in here.page.locator("#machine").inner_text()
    assert not here.scrolls_sideways()
    ticks = here.page.locator("#fit-window .xtick text").first
    ink = ticks.evaluate("e => getComputedStyle(e).fill")
    assert ink == ("rgb(92, 97, 104)" if scheme == "light" else "rgb(163, 168, 176)"), "the chart follows the theme"
    with here.page.expect_download() as download:
        here.page.get_by_role("link", name="Download plan.yaml").click()
    download.value.save_as(tmp_path / "plan.yaml")
    plan = read_plan(tmp_path / "plan.yaml")
    assert plan.prediction is not None
    assert plan.prediction.device_bytes <= 1900 * 1024
    assert plan.model.name == "Net"
    command = here.page.locator("#use .command code").inner_text()
    assert command.startswith("tightship run --offload plan.yaml --workflow 'blocks/of ü & '\"'\"'co'\"'\"'' -- ")
    assert command == here.page.locator("#use .copy").get_attribute("data-copy")


def test_a_workflow_is_picked_and_back_works(patient: Callable[..., Tab]) -> None:
    here = patient("/will-it-fit")
    assert here.answer() == "1 of 2 workflows has a trace to plan from. Pick one, or paste a profile."
    rows = here.page.locator("#workflows .ag-row")
    rows.filter(has_text="shapeless").filter(has_text="recorded without shapes").wait_for()
    here.page.locator("#fit-workflow").click()
    here.page.get_by_role("option", name=NAME).click()
    here.page.wait_for_url("**/will-it-fit?workflow=*")
    here.page.locator("#page .answer", has_text="fits in the host's memory without offload").wait_for()
    # A smaller budget is asked for in the form; it is in the address at once.
    here.page.locator("#fit-memory").fill("100KiB")
    here.page.keyboard.press("Enter")
    here.page.wait_for_url("**memory=100KiB*")
    here.page.locator("#page .answer", has_text="not even in a window").wait_for()
    assert "more device memory" in here.answer()
    here.page.locator("#fit-window .scatterlayer path").first.wait_for(state="attached")
    assert here.page.get_by_text("Download plan.yaml").count() == 0
    here.page.go_back()
    here.page.locator("#page .answer", has_text="fits in the host's memory without offload").wait_for()
    assert here.page.locator("#fit-memory").input_value() == ""


def test_what_cannot_be_planned_says_why_and_what_to_do(patient: Callable[..., Tab]) -> None:
    here = patient(address(workflow="shapeless"))
    assert here.answer() == "shapeless cannot be planned: its newest trace was recorded without shapes."
    command = here.page.locator("#fit-result .command code")
    assert command.inner_text() == "tightship profile --stacks --shapes --wait shapeless"
    here.open(address(workflow="<b>nope</b>"))
    assert here.answer().startswith("No workflow is named <b>nope</b>; pick one of the 2 below")
    here.open(address(workflow=NAME, cores="many"))
    here.page.locator("#fit-note .notice", has_text="Cores of the host is 'many'; expected a whole number").wait_for()
    here.open(address(workflow=NAME, memory="8 cows"))
    here.page.locator("#fit-note .notice", has_text="Size is '8 cows'").wait_for()
    here.open(address(workflow=NAME, gpu="NVIDIA H200"))
    here.page.locator("#page .answer", has_text="does not follow from them").wait_for()
    assert here.page.locator("#fit-result .command").is_visible()


def test_a_profile_is_pasted_and_a_hostile_one_is_refused(
    patient: Callable[..., Tab], trace_data: bytes, tmp_path: Path
) -> None:
    (tmp_path / "trace.json").write_bytes(gzip.decompress(trace_data))
    write_profile(profile_of_trace(tmp_path / "trace.json"), tmp_path / "profile.yaml")
    here = patient(address(gpu="NVIDIA H200", host="64GiB", cores="8"))
    here.page.locator("summary", has_text="Or paste a profile").click()

    def plan(text: str) -> None:
        here.page.locator("#fit-profile").fill(text)
        here.page.get_by_role("button", name="Plan this profile").click()

    plan("")
    here.page.locator("#fit-note .notice", has_text="There is no profile to plan").wait_for()
    plan("x" * 300_000)
    here.page.locator("#fit-note .notice", has_text="too large").wait_for()
    plan("version: 9")
    here.page.locator("#page .answer", has_text="its version is 9; this release reads version 1").wait_for()
    plan("a: &a [1, 2]\nb: [*a, *a]\n")
    here.page.locator("#page .answer", has_text="it uses a YAML alias").wait_for()
    plan((tmp_path / "profile.yaml").read_text())
    here.page.locator("#page .answer", has_text="Net fits on NVIDIA H200 without offload").wait_for()
    link = here.page.get_by_role("link", name="Download plan.yaml").get_attribute("href")
    text = here.page.evaluate("href => decodeURIComponent(href.split(',').slice(1).join(','))", link)
    assert parse_plan(text).hardware.device == "NVIDIA H200"  # type: ignore[union-attr]

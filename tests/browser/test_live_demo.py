"""The whole thing, seen from the dashboard: a real job, a real capture, asked for by button, read and judged."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Running
from services import free_port
from starved_job import STARVED

pytestmark = [pytest.mark.browser, pytest.mark.torch]

Tab = Any
PATIENCE_MS = 150_000


@pytest.mark.timeout(420)
def test_a_capture_of_a_real_job_from_the_button_to_the_fix(
    make_platform_env: Callable[..., Any], tab: Callable[..., Tab], tmp_path: Path
) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    environ = make_platform_env(migrated=False).environ | {"TIGHTSHIP_SERVER": base}
    script, stop = tmp_path / "train_pictures.py", tmp_path / "stop"
    script.write_text(STARVED)
    with Running(environ, "up", "--port", str(port)) as up:
        link = up.hear("Dashboard:").partition(": ")[2]
        launch = ("run", "--workflow", "pictures", "--team", "vision", "--", sys.executable, str(script), str(stop))
        with Running(environ, *launch) as job:
            here = tab(base, accept_downloads=True)
            here.page.set_default_timeout(PATIENCE_MS)
            here.page.goto(link)
            here.open("/runs")
            here.page.locator(".ag-row", has_text="pictures").get_by_role("link", name="pictures").click()
            here.page.wait_for_url("**/runs/*")
            # Steps are counted and the device is seen before anything is asked for.
            here.page.locator("#run-over-time .scatterlayer path.js-line").first.wait_for(state="attached")
            here.page.locator(".facts > div", has_text=re.compile(r"steps\s*[1-9]")).wait_for()
            here.page.get_by_role("button", name="Capture a trace now").click()
            here.page.locator(".capture-state.analyzed").wait_for()
            assert here.page.locator(".stages li.done").count() == 7
            with here.page.expect_download() as download:
                here.page.get_by_role("link", name="rank 0").click()
            assert Path(download.value.path()).stat().st_size > 1000
            # The finding comes without a reload, and leads to the gap and the change.
            here.page.locator("#run-findings-body a", has_text="loader").first.click()
            here.page.wait_for_url("**/findings/*")
            here.page.locator("#finding-gap .barlayer path").first.wait_for(state="attached")
            assert "num_workers" in here.page.locator("#fix .command").inner_text()
            here.page.get_by_text("The rule starved-input, in full").click()
            here.page.locator("#how").get_by_role("heading", name="What it finds").wait_for()
            here.page.get_by_role("link", name="pictures").first.click()
            here.page.locator("#page .answer", has_text="1 run of pictures is live").wait_for()
            stop.touch()
            assert job.process.wait(60) == 0
        here.page.locator(".ag-row", has_text="finished").wait_for()
        # Device time is accounted for in the background, and the fleet's page then has its answer.
        here.open("/")
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while "were productive" not in here.answer() and time.monotonic() < deadline:
            here.page.wait_for_timeout(2000)
            here.open("/")
        assert "were productive" in here.answer()
        here.page.locator(".ag-row", has_text="pictures").first.wait_for()
        here.settle()
        assert here.watch.wrong == []
        # The page polls no more once it is gone, so that the server can end at once.
        here.page.goto("about:blank")
        assert up.end(signal.SIGINT) == 0

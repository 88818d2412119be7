"""A real job that dies of memory under a real platform, from its last words to the page that plans the fix."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from processes import Running, own, tightship
from services import free_port
from waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.torch]

WORKFLOW = "big model & co"
JOB = textwrap.dedent(
    """
    import sys, time
    import torch

    torch.set_num_threads(1)
    weights = torch.randn(8, 8, requires_grad=True)
    until = time.time() + float(sys.argv[1])
    while time.time() < until:
        (torch.randn(4, 8) @ weights).sum().backward()
        time.sleep(0.05)
    if sys.argv[2] == "dies":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    """
)
SAID = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.timeout(420)
def test_a_job_that_dies_of_memory_leads_to_its_plan(
    make_platform_env: Callable[..., Any], tab: Callable[..., Any], tmp_path: Any
) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    environ = make_platform_env(migrated=False).environ | {"TIGHTSHIP_SERVER": base}
    script = tmp_path / "train.py"
    script.write_text(JOB)
    alone = subprocess.run([sys.executable, script, "0", "dies"], capture_output=True, text=True, timeout=120)

    def asked(*words: str) -> list[dict[str, Any]]:
        answer = tightship(environ, *words, "--json")
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found

    with Running(environ, "up", "--port", str(port)) as up:
        link = up.hear("Dashboard:").partition(": ")[2]
        up.hear("agent  | ")
        done = tightship(environ, "run", "--workflow", WORKFLOW, "--", sys.executable, str(script), "4", "dies")
        assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
        assert done.stderr.startswith(alone.stderr)
        [last] = done.stderr.removeprefix(alone.stderr).splitlines()
        assert (
            last.startswith("tightship: ")
            and f"Next: tightship offload measure -o profile.yaml -- {sys.executable}" in last
        )
        fine = tightship(environ, "run", "--workflow", "small", "--", sys.executable, str(script), "1", "ends")
        assert (fine.returncode, fine.stdout, fine.stderr) == (0, "", "")
        with httpx.Client(base_url=base, auth=own(environ), trust_env=False, timeout=PATIENCE_S) as api:
            wait_for(lambda: api.get("/api/v1/opportunities").json(), "the opportunity")
        [found], [todo] = asked("findings"), asked("opportunities")
        [run, _] = sorted(asked("runs"), key=lambda one: str(one["workflow"]))
        assert (found["rule"], todo["rules"]) == ("out-of-memory-run", ["out-of-memory-run"])
        assert todo["findings"] == [found["finding"]] and found["run"] == run["run"]
        assert todo["workflow"] == WORKFLOW
        assert (run["state"], run["exit_code"], run["reason"]) == ("failed", 1, f"ended with exit code 1: {SAID}")
        assert found["saving"]["method"] == "bound"
        assert 0 < found["saving"]["value"] <= found["saving"]["high"] <= run["device_ns"]
        assert f"tightship offload plan '--workflow={WORKFLOW}'" in todo["fix"]

        here = tab(base)
        here.page.goto(link)
        here.open(f"/runs/{run['run']}")
        here.page.locator("#run-head .why", has_text=SAID).wait_for()
        here.page.locator("#run-findings-body a").first.click()
        here.page.wait_for_url(f"**/findings/{found['finding']}")
        here.page.locator("#fix .command", has_text=f"--workflow={WORKFLOW}").wait_for()
        link = here.page.locator("#fix").get_by_role("link", name="Will it fit, and how fast?")
        assert link.get_attribute("href") == "/will-it-fit?workflow=big+model+%26+co"
        assert up.end() == 0

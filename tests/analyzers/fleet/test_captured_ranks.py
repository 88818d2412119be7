"""A real job of three ranks, of which one is late in each step, captured and analyzed by the platform: what it keeps is
what `tightship analyze` says of the same files."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_rig import Rig
from capture_jobs import ask, outcome, start_torch_job
from processes import own
from sqlalchemy import select
from waiting import PATIENCE_S, wait_for

from tightship_analyzers.analysis.analyze_rank import analyze_rank
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.join_ranks import join_ranks
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.fleet.capture_analysis import GAPS
from tightship_analyzers.report.sentences import headline
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import CaptureAnalysis, StoredPart
from tightship_platform.queries import findings
from tightship_platform.results.analysis.run import VERSION, RunAnalysis
from tightship_platform.results.codec import as_json, decode
from tightship_platform.results.packed import unpack
from tightship_platform.settings import load_settings

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RANKS, LATE = 3, 2


@pytest.fixture
def installation(make_platform_env: Callable[..., Any]) -> Iterator[Rig]:
    made = Rig(variables=make_platform_env().variables)
    made.start_server()
    made.start_agent()
    made._start("worker")
    yield made
    made.close()


def without_costs(analysis: RunAnalysis) -> dict[str, object]:
    """All but what it took to derive the facts, which no two runs share. The platform knows of which rank a file is;
    traces on demand do not say."""
    return as_json(replace(analysis, ranks=[replace(one, facts=[], named=True) for one in analysis.ranks]))


def test_the_platform_says_what_the_command_says(installation: Rig, tmp_path: Path) -> None:
    job = start_torch_job(installation, tmp_path / "job", workflow="late", how="late", ranks=RANKS)
    wait_for(lambda: installation.get(f"/runs/{job.run}")["steps"])  # how long a step takes that is not recorded
    key = ask(installation, "late", duration_ns=2_000_000_000, stacks=False)
    capture = outcome(installation, key, states=("analyzed", "failed", "expired"))
    assert capture["state"] == "analyzed", capture["reason"]
    assert job.end() == 0
    with open_database(load_settings(installation.environ)) as database, database.session() as session:
        stored = unpack(
            RunAnalysis, session.scalars(select(CaptureAnalysis.body)).one(), version=VERSION, what="analysis"
        )
        assert session.scalars(select(StoredPart)).all() == [], "the parts went into the whole"
        listed = findings.list_findings(session)
    answered = decode(RunAnalysis, installation.get(f"/captures/{key}/analysis"))
    assert answered == stored, "the API says what is stored"
    auth = own(installation.environ)
    address = f"http://127.0.0.1:{installation.port}/traces/{key}"
    page = httpx.get(address, auth=auth, trust_env=False, timeout=PATIENCE_S).text
    assert headline(stored) in html.unescape(page).replace("\xa0", " "), "and the page"
    [late] = [one for one in stored.findings if one.rule == "straggling-rank"]
    assert late.rank == LATE and late.of_ranks
    assert [(one.rule, one.rank) for one in listed if one.rule == "straggling-rank"] == [("straggling-rank", LATE)]

    folder = tmp_path / "files"
    folder.mkdir()
    parts = []
    for rank in capture["ranks"]:
        url = f"http://127.0.0.1:{installation.port}{rank['url']}"
        path = folder / f"rank{rank['rank']}.json.gz"
        path.write_bytes(httpx.get(url, auth=auth, trust_env=False, timeout=PATIENCE_S).content)
        untraced_ns = stored.ranks[rank["rank"]].summary.untraced_step_ns
        wanted = Wanted(untraced_step_ns=untraced_ns, gaps=GAPS)
        parts.append(analyze_rank(str(path), wanted, label=f"rank {rank['rank']}"))
    assert without_costs(join_ranks(parts)) == without_costs(stored), "field by field"

    command = analyze_paths([str(folder)])
    assert [as_json(one.figures) for one in command.ranks] == [as_json(one.figures) for one in stored.ranks]
    assert command.across_ranks == stored.across_ranks
    assert command.not_judged == stored.not_judged
    [said] = [one for one in command.findings if one.rule == "straggling-rank"]
    assert (said.rank, said.where, said.fix) == (late.rank, late.where, late.fix)

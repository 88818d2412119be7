"""`tightship run --apply`: the job runs with the change that the server names, or not at all."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from api_calls import Served, serving
from processes import Ended, tightship
from sqlalchemy import select, update
from stepping_runs import CODE, OVERLAY, PLAN, opportunity

from tightship_platform.database.models import Audit, Finding, Opportunity, OpportunityAction, PlanRequest, Run
from tightship_platform.errors import Invalid
from tightship_platform.results.overlay import ALLOCATOR, NEWER_ALLOCATOR, TF32, check_overlay, with_overlay

SHOW = ("sh", "-c", f'echo "tf32=${TF32} plan=$TIGHTSHIP_OFFLOAD_PLAN"')


@dataclass
class Offered:
    """A server with one opportunity, and a launcher's environment."""

    served: Served
    environ: dict[str, str]
    number: int

    def with_evidence(self, *evidence: dict[str, Any]) -> None:
        """Open, and of this evidence."""
        with self.served.database.session() as session:
            session.execute(update(Finding).values(evidence=list(evidence)))
            session.execute(update(Opportunity).values(state="open"))

    def run(self, *options: str, command: tuple[str, ...] = SHOW, **environ: str) -> Ended:
        return tightship(self.environ | environ, "run", *options, "--", *command)

    def actions(self) -> list[OpportunityAction]:
        with self.served.database.session() as session:
            return list(session.scalars(select(OpportunityAction).order_by(OpportunityAction.id)))


@pytest.fixture(scope="module")
def offered(make_platform_env: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offered]:
    env = make_platform_env()
    with serving(env.settings) as served:
        environ = env.environ | {"TIGHTSHIP_SERVER": served.url}
        number = opportunity(served.database, tmp_path_factory.mktemp("runs"))
        yield Offered(served, {name: value for name, value in environ.items() if name != TF32}, number)


def test_the_job_runs_with_the_variables_and_its_run_says_so(offered: Offered) -> None:
    offered.with_evidence(CODE, OVERLAY)
    done = offered.run("--apply", str(offered.number))
    assert (done.returncode, done.stdout) == (0, "tf32=1 plan=\n"), done.stderr
    action = offered.actions()[-1]
    assert done.stderr.splitlines() == [
        f"tightship: opportunity {offered.number}, action {action.id}: the job runs with {TF32}=1",
        "tightship: this changes numbers: Products round to TF32",
    ]
    again = offered.run("--apply", str(offered.number), "--workflow", "train")
    assert again.returncode == 0 and f"action {action.id}: " in again.stderr
    with offered.served.database.session() as session:
        launched = session.scalars(select(Run).where(Run.applied_action_id == action.id)).all()
        assert {(run.workflow.name, run.state) for run in launched} == {("train", "finished")} and len(launched) == 2
        assert session.scalars(select(Audit.action)).all().count("opportunity.apply") == 1
    assert f"apply {TF32}=1" in tightship(offered.environ | {"COLUMNS": "300"}, "actions").stdout
    assert f"action {action.id}; see" in tightship(offered.environ, "show", "@train").stdout
    shown = json.loads(tightship(offered.environ, "runs", "--json").stdout)
    assert {run["applied_action"] for run in shown} == {None, action.id}


def test_the_newest_plan_is_what_the_job_is_launched_with(offered: Offered) -> None:
    offered.with_evidence(PLAN)
    refused = offered.run("--apply", str(offered.number))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "No offload plan of 'train' was computed yet" in refused.stderr and "--offload plan.yaml" in refused.stderr
    answer = zlib.compress(
        json.dumps({"version": 1, "answer": {"plan": "# 8 layers on a GPU.\nversion: 1\n"}}).encode()
    )
    times = {"created_ns": 1, "renewed_ns": 1, "finished_ns": 1}
    with offered.served.database.session() as session:
        asked = json.dumps({"workflow": "train"})
        session.add(PlanRequest(key="k", request=asked, state="planned", stage="over", answer=answer, **times))
    done = offered.run("--apply", str(offered.number), "--offload-optional", "--offload-deadline", "90")
    path = Path(done.stdout.strip().removeprefix("tf32= plan="))
    assert path.read_text() == "# 8 layers on a GPU.\nversion: 1\n" and path.stat().st_mode & 0o077 == 0
    assert f"the job runs with the offload plan {path} (8 layers on a GPU)" in done.stderr
    own = path.with_name("mine.yaml")
    own.write_text("version: 1\n")
    done = offered.run("--apply", str(offered.number), "--offload", str(own))
    assert done.stdout == f"tf32= plan={own}\n"


REFUSED = [
    ("patch", (CODE,), (), {}, "is a change of the script, which a launcher cannot make: Give the loader workers"),
    ("workflow", (OVERLAY,), ("--workflow", "other"), {}, "is of the workflow 'train', not 'other'"),
    (
        "hostile",
        ({"kind": "environment", "variables": {"LD_PRELOAD": "/tmp/x.so"}, "numerics": ""},),
        (),
        {},
        "Variable to set is 'LD_PRELOAD'",
    ),
    ("away", (OVERLAY,), (), {"TIGHTSHIP_SERVER": "http://127.0.0.1:9"}, "No tightship server answers"),
    ("id", (OVERLAY,), ("--apply", "1;2"), {}, "--apply is '1;2'; expected the id of an opportunity"),
    ("gone", (OVERLAY,), ("--apply", "999"), {}, "No opportunity named '999'"),
]


@pytest.mark.parametrize(
    ("evidence", "options", "environ", "why"), [one[1:] for one in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_a_job_that_cannot_have_the_change_does_not_run(
    offered: Offered, evidence: tuple[Any, ...], options: tuple[str, ...], environ: dict[str, str], why: str
) -> None:
    offered.with_evidence(*evidence)
    done = offered.run("--apply", str(offered.number), *options, **environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and why in done.stderr


def test_a_run_that_has_begun_is_not_changed(offered: Offered) -> None:
    offered.with_evidence(OVERLAY)
    inner = ("sh", "-c", f'"$PYTHON" -m tightship_platform.cli run --apply {offered.number} -- echo ran; echo $?')
    done = offered.run(command=inner, PYTHON=sys.executable)
    assert done.stdout == "2\n" and "--apply changes nothing inside of run" in done.stderr


def test_variables_and_values_are_those_of_a_short_list() -> None:
    check_overlay({TF32: "1", ALLOCATOR: "expandable_segments:True,max_split_size_mb:512"})
    for variables in ({"PATH": "/tmp"}, {TF32: "1\n"}, {TF32: "2"}, {ALLOCATOR: "a:b;c"}, {ALLOCATOR: "x"}):
        with pytest.raises(Invalid):
            check_overlay(variables)


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        (None, "expandable_segments:True"),
        ("max_split_size_mb:512", "max_split_size_mb:512,expandable_segments:True"),
        ("expandable_segments:False", "expandable_segments:True"),
    ],
)
def test_other_settings_of_the_allocator_stay(given: str | None, merged: str) -> None:
    environ = {"HOME": os.sep} | ({} if given is None else {ALLOCATOR: given})
    found = with_overlay(environ, {ALLOCATOR: "expandable_segments:True"})
    assert found == {"HOME": os.sep, ALLOCATOR: merged}
    newer = with_overlay({NEWER_ALLOCATOR: "backend:native"}, {ALLOCATOR: "expandable_segments:True"})
    assert newer[NEWER_ALLOCATOR] == "backend:native,expandable_segments:True"

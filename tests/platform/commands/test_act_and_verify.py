"""`tightship apply`, `actions`, `verify`, and opportunities that are dismissed and opened again, against a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from api_calls import Served
from click.testing import CliRunner, Result
from stepping_runs import opportunity, record

from tightship_analyzers.fleet import verifying
from tightship_platform.cli import root
from tightship_platform.errors import TightshipError
from tightship_platform.units import now_ns

Call = Callable[..., Result]


@pytest.fixture
def call(served: Served, monkeypatch: pytest.MonkeyPatch) -> Call:
    for name, value in {"TIGHTSHIP_SERVER": served.url, "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    return lambda *arguments: CliRunner().invoke(root, arguments)


def test_what_is_applied_is_verified_by_the_next_run(served: Served, call: Call, tmp_path: Path) -> None:
    number = str(opportunity(served.database, tmp_path))
    assert "Nothing was done yet" in call("actions").stdout
    applied = call("apply", number, "--reason", "loader has 8 workers")
    assert applied.exit_code == 0, applied.output
    lines = [" ".join(line.split()) for line in applied.stdout.splitlines()]
    assert lines[0] == f"Opportunity {number} of train: The loader starves the device"
    assert lines[1:5] == [
        "What Give the loader workers",
        "Where train.py:7",
        "Now DataLoader(data)",
        "Instead DataLoader(data, num_workers=8)",
    ]
    assert lines[5] == "Predicted 30.0 % (25.0 % – 40.0 %), measured, of the step"
    assert lines[6].endswith("Make the change, then run train again; see: tightship actions")

    record(served.database, tmp_path, "after", start_ns=now_ns(), step_ms=14, seconds=900, spread=0.004, seed=2)
    verifying.verify_applications(served.database)
    [action] = json.loads(call("actions", "--json").stdout)
    assert (action["state"], action["reason"]) == ("verified", "loader has 8 workers")
    assert "verified" in call("actions").stdout
    compared = call("verify", "before", "after")
    assert compared.exit_code == 0 and compared.stdout.startswith("Verified: ")
    assert "; as predicted" in compared.stdout
    back = call("verify", "after", "before", "--json")
    assert back.exit_code == 1 and json.loads(back.stdout)["verdict"] == "refuted"


def test_a_dismissed_one_is_left_out_until_it_is_opened_again(served: Served, call: Call, tmp_path: Path) -> None:
    number = str(opportunity(served.database, tmp_path))
    assert "loader" in call("opportunities").stdout
    done = call("opportunities", "dismiss", number, "--reason", "we change the loader anyway")
    assert (done.exit_code, done.stdout.split("; ")[0]) == (0, f"Opportunity {number} of train is dismissed")
    assert "loader" not in call("opportunities").stdout
    assert "loader" in call("opportunities", "--dismissed").stdout
    assert isinstance(call("apply", number).exception, TightshipError)
    assert call("opportunities", "reopen", number, "--reason", "no, later").exit_code == 0
    assert call("apply", number).exit_code == 0


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("apply", "999999"), "No opportunity named '999999'"),
        (("apply", "-0x1"), "No such option"),
        (("apply", "1; drop"), "Id of an opportunity is '1; drop'"),
        (("opportunities", "dismiss", "1"), "Missing option '--reason'"),
        (("opportunities", "dismiss", "1", "--reason", "two\nlines"), "Reason"),
        (("verify", "gone", "before"), "No run named 'gone'"),
        (("verify", "before", "before"), "Both are run before"),
    ],
)
def test_what_cannot_be_is_one_line(
    served: Served, call: Call, tmp_path: Path, command: tuple[str, ...], why: str
) -> None:
    opportunity(served.database, tmp_path)
    done = call(*command)
    assert why in f"{done.exception} {done.output}"
    assert done.exit_code != 0 and json.loads(call("actions", "--json").stdout) == []

"""Records and JSON: there and back, what is left out, and one line for what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from made_records import make

from tightship_platform.errors import Invalid
from tightship_platform.results.codec import decode, fields_of
from tightship_platform.results.evidence import Change, Evidence, Fact, Gap, PlanAdvice
from tightship_platform.results.finding import Finding
from tightship_platform.results.run import Run, RunDetail

SPAN = {"name": "aten::mm", "start_ns": 1, "end_ns": 2, "depth": 0}
EVIDENCE = [
    {
        "kind": "gap",
        "step": None,
        "start_ns": 1,
        "end_ns": 9,
        "cause": "",
        "place": None,
        "lanes": [{"lane": "host", "spans": [SPAN]}],
    },
    {"kind": "fact", "text": "x", "value": 6, "unit": "steps"},
    {"kind": "change", "before": "a", "after": "b"},
    {"kind": "plan", "workflow": "w", "command": "c"},
]


def written(value: object) -> Any:
    return json.dumps(value, default=fields_of)


def test_a_record_reads_back_as_it_was_written() -> None:
    whole = make(Finding, finding=7, evidence=EVIDENCE, saving={"value": 5, "method": "bound", "share_frac": 0.5})
    assert [type(entry) for entry in whole.evidence] == [Gap, Fact, Change, PlanAdvice]
    assert decode(list[Finding], json.loads(written([whole]))) == [whole]
    assert json.loads(written(whole))["evidence"] == EVIDENCE


def test_numbers_stay_as_they_are_written() -> None:
    fact = decode(list[Evidence], EVIDENCE)[1]
    assert '"value": 6,' in written(fact), "an integer does not become 6.0"
    assert '"value": 2.5e+20' in written(replace(fact, value=2.5e20))


def test_keys_stand_in_the_order_of_the_fields() -> None:
    run = make(RunDetail, run="a", account={"productive": 1})
    assert list(json.loads(written(run)))[:4] == ["run", "workflow", "team", "owner"]
    assert list(json.loads(written(run)))[-1] == "offload"


def test_what_a_newer_server_adds_is_left_out() -> None:
    newer = json.loads(written(make(Run, run="a"))) | {"mood": "good", "devices": [DEVICE | {"colour": "red"}]}
    assert decode(Run, newer) == make(Run, run="a", devices=[DEVICE])
    assert decode(list[Evidence], [{"kind": "poem", "text": "…"}, *EVIDENCE]) == decode(list[Evidence], EVIDENCE)


DEVICE = {"host": "h", "uuid": "u", "kind": "gpu", "name": "n"}
RUN = json.loads(written(make(Run, run="a")))


@pytest.mark.parametrize(
    ("kind", "value", "line"),
    [
        (list[Run], {}, "runs is {}; expected a list"),
        (list[Run], None, "runs is None; expected a list"),
        (list[Run], [RUN, 7], "runs[1] is 7; expected an object with the keys of a Run"),
        (list[Run], [RUN | {"start_ns": "now"}], "runs[0].start_ns is 'now'; expected a whole number"),
        (list[Run], [RUN | {"start_ns": True}], "runs[0].start_ns is True; expected a whole number"),
        (list[Run], [RUN | {"team": 3}], "runs[0].team is 3; expected text or null"),
        (list[Run], [RUN | {"account": {"input": 0.5}}], "runs[0].account.input is 0.5; expected a whole number"),
        (list[Run], [RUN | {"devices": [DEVICE | {"uuid": None}]}], "runs[0].devices[0].uuid is None; expected text"),
        (list[Evidence], ["x"], "runs is ['x']; expected a list of objects"),
        (list[Evidence], [EVIDENCE[1] | {"value": "6"}], "runs[0].value is '6'; expected a number or null"),
    ],
)
def test_what_does_not_fit_is_one_line(kind: Any, value: Any, line: str) -> None:
    with pytest.raises(Invalid) as raised:
        decode(kind, value, "runs")
    assert str(raised.value) == line


def test_a_missing_key_is_named() -> None:
    with pytest.raises(
        Invalid, match=r"^run is \['run'\]; expected the keys of this release, of which workflow, team, "
    ):
        decode(Run, {"run": "a"}, "run")


def test_what_is_no_record_is_no_json() -> None:
    with pytest.raises(TypeError, match="set has no form in JSON"):
        written({1})
